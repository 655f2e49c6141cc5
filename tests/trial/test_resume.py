"""Tests of resuming interrupted runs: a resumed run equals an uninterrupted one bit for bit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from exact_cases import (
    Moment,
    differences,
    folder_override,
    interrupt,
    newest_checkpoint,
    pins,
    recorded_differences,
    rows,
    small,
)
from tensorboard_files import board

from labrl.cli import main
from labrl.errors import FAILED, TERMINATED
from labrl.run.checkpoint import CheckpointStore
from labrl.session.callbacks.callback import Callback, SessionView

PPO = small("ppo", "cartpole")
TENSORBOARD = "meta.tensorboard=true"


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main([*PPO, TENSORBOARD, f"hydra.run.dir={folder}"]) == 0
    return folder


@pytest.mark.extended
def test_killed_run_resumes_exactly(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "killed"
    overrides = [*PPO, TENSORBOARD, folder_override(folder)]
    code, output = interrupt(folder, overrides, signal.SIGKILL, Moment(800, seconds=0.03))
    assert code == -signal.SIGKILL, output
    assert 0 < newest_checkpoint(folder) < 2400
    (tmp_path / "runs" / "killed_before_its_start").mkdir()  # an empty folder, as Hydra creates it
    assert main(["+resume=latest"]) == 0
    assert differences(uninterrupted, folder) == []
    assert board(folder) == board(uninterrupted), "TensorBoard has duplicate or missing points"


@pytest.mark.extended
def test_extended_run_equals_a_run_that_started_with_the_larger_budget(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """The shorter budgets end between two regular rows, so their last rows must be removed on resume."""
    assert main([*PPO, TENSORBOARD, "env.max_frame=456", "hydra.run.dir=short"]) == 0
    assert main(["+resume=short", "env.max_frame=1288"]) == 0
    assert [row["frame"] for row in rows(Path("short/session_0/train.csv"))][-1] == "1288"
    assert main(["+resume=short", "env.max_frame=2400"]) == 0
    assert differences(uninterrupted, tmp_path / "short") == []
    assert board(tmp_path / "short") == board(uninterrupted)
    resumes = json.loads(Path("short/run.json").read_text())["resumes"]
    assert [entry["frames"] for entry in resumes] == [{"0": 456}, {"0": 1288}]


class FailsAtTheEnd(Callback):
    """Callback that is called only because the budget has ended, after the last checkpoint and before the
    last rows."""

    frequencies = (10**6,)

    def step(self, session: SessionView) -> None:
        raise RuntimeError


class StopsAtTheEnd(FailsAtTheEnd):
    def step(self, session: SessionView) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.extended
@pytest.mark.parametrize(("ends", "code"), [("FailsAtTheEnd", FAILED), ("StopsAtTheEnd", TERMINATED)])
def test_run_that_ends_between_its_last_checkpoint_and_its_last_rows_is_completed(
    ends: str, code: int
) -> None:
    overrides = [*PPO, TENSORBOARD, "env.max_frame=1288", "meta.rigorous_eval=1"]
    callback = f"+callbacks.ends._target_=test_resume.{ends}"
    assert main([*overrides, callback, "hydra.run.dir=run"]) == code
    assert newest_checkpoint(Path("run")) == 1288
    assert "budget" not in [row["end"] for row in rows(Path("run/session_0/eval.csv"))]
    assert main(["+resume=run", "~callbacks.ends"]) == 0
    assert main([*overrides, "hydra.run.dir=whole"]) == 0
    assert differences(Path("whole"), Path("run")) == []
    assert board(Path("run")) == board(Path("whole"))


@pytest.mark.extended
def test_extended_run_drops_the_evaluation_at_its_former_end(tmp_path: Path) -> None:
    """With this seed the return at frame 2,000, the first end, is above those at multiples of 900."""
    overrides = [*small("random", "cartpole"), "env.num_envs=1", "meta.log_frequency=400"]
    overrides += ["meta.rigorous_eval=1", "meta.eval_frequency=900", "meta.record_episodes=each"]
    overrides = [override for override in overrides if override != "seed=5"] + ["seed=0"]
    short, long = tmp_path / "short", tmp_path / "long"
    assert main([*overrides, "env.max_frame=2000", "hydra.run.dir=short"]) == 0
    checkpoints = CheckpointStore(short / "session_0" / "checkpoints", 1)
    evaluations = rows(short / "session_0" / "eval.csv")
    assert [row["end"] for row in evaluations] == ["", "", "budget"]
    best_row = max(evaluations, key=lambda row: float(row["return_mean"]))
    assert best_row["frame"] == "2000", "otherwise this test checks nothing"
    assert checkpoints.best_frame() == 900
    video = short / "session_0" / "videos" / "2000.mp4"
    video.parent.mkdir(exist_ok=True)
    video.write_bytes(b"of an episode that will be taken back")
    assert main(["+resume=short", "env.max_frame=2500"]) == 0
    assert main(["+resume=short", "env.max_frame=2900"]) == 0
    assert main([*overrides, "env.max_frame=2900", "hydra.run.dir=long"]) == 0
    assert differences(short, long) == []
    assert recorded_differences(short, long) == []
    assert not video.exists()
    for run in (short, long):
        assert CheckpointStore(run / "session_0" / "checkpoints", 1).best_frame() == 900
        assert json.loads((run / "session_0/result.json").read_text())["best_return"] == 21.0


CONSTANT = ["agent.lr=1e-3", "agent.clip_range=0.2"]
FALLING = [
    one for one in PPO if one not in pins(PPO) and not one.startswith(("agent.lr", "agent.clip_range"))
]
"""Overrides of a run whose learning rate and clip range fall to 0 at the end of its budget."""


@pytest.mark.extended
def test_extension_that_would_learn_nothing_is_refused_with_values_to_train_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FALLING, "env.max_frame=256", "hydra.run.dir=short"]) == 0
    before = {path: path.read_bytes() for path in Path("short").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["+resume=short", "env.max_frame=512"]) == 2
    on, anew = capsys.readouterr().err.splitlines()[1:]
    assert {path: path.read_bytes() for path in Path("short").rglob("*") if path.is_file()} == before
    suggested = re.findall(r"\S+=\S+", on)
    assert {one.partition("=")[0] for one in suggested} == {"env.max_frame", "agent.lr", "agent.clip_range"}
    assert main([*shlex.split(anew.partition(": labrl ")[2]), "hydra.run.dir=long"]) == 0
    assert rows(Path("long/session_0/train.csv"))[-1]["frame"] == "512"
    assert main(["+resume=short", *suggested]) == 0
    assert float(rows(Path("short/session_0/train.csv"))[-1]["lr"]) > 0


@pytest.mark.extended
def test_schedule_that_starts_in_its_middle_is_announced_with_one_that_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression test: a rate jumped to the middle of a line without a word. A later extension proposed the
    rate of frame 0, which had not been used since the change."""
    fixed = [*FALLING, "agent.clip_range=0.2", "meta.log_frequency=64"]
    assert main([*fixed, "agent.lr=1e-3", "env.max_frame=256", "hydra.run.dir=run"]) == 0
    assert main(["+resume=run", "env.max_frame=512", "agent.lr=2e-4"]) == 0
    shutil.copytree("run", "jumps")
    capsys.readouterr()
    changed = ["env.max_frame=1024", "agent.lr=linear:2e-4:0"]
    assert main(["+resume=jumps", *changed]) == 0
    assert main(["+fork=run", "at=512", "hydra.run.dir=branch", *changed]) == 0
    one, other = (line for line in capsys.readouterr().out.splitlines() if line.startswith("agent.lr is"))
    assert one == other
    assert one.split()[2] == "0.0001", "half of the frames have been played"
    recipe = one.partition("'")[2].rstrip("'")
    capsys.readouterr()
    assert main(["+resume=run", "env.max_frame=1024", recipe]) == 0
    assert "agent.lr is" not in capsys.readouterr().out
    found = {int(row["frame"]): float(row["lr"]) for row in rows(Path("run/session_0/train.csv"))}
    assert found[512] == 2e-4
    assert 1.5e-4 < found[576] < 2e-4
    assert found[1024] < 2e-5
    for run, rate in (("jumps", 1e-4), ("run", 2e-4)):
        assert main([f"+resume={run}", "env.max_frame=2048"]) == 2
        (proposed,) = re.findall(r"agent\.lr=(\S+)$", capsys.readouterr().err, re.MULTILINE)
        assert float(proposed) == pytest.approx(rate, rel=0.01), run


@pytest.mark.extended
def test_changed_coefficient_holds_from_the_checkpoint_on_and_a_rerun_repeats_it(tmp_path: Path) -> None:
    fixed = [*FALLING, "agent.lr=1e-3", "agent.entropy_coef=0.01", "meta.log_frequency=64"]
    assert main([*fixed, "agent.clip_range=0.2", "env.max_frame=256", "hydra.run.dir=run"]) == 0
    past = rows(Path("run/session_0/train.csv"))
    for budget, coefficient in ((512, 0.02), (768, 0.03)):
        edits = [f"env.max_frame={budget}", f"agent.entropy_coef={coefficient}"]
        assert main(["+resume=run", *edits]) == 0
    assert main(["+resume=run", "env.max_frame=896", "agent.lr=linear:1e-3:5e-4"]) == 0
    now = rows(Path("run/session_0/train.csv"))
    assert now[: len(past)] == past
    found = {int(row["frame"]): (float(row["entropy_coef"]), float(row["lr"])) for row in now}
    assert [found[frame][0] for frame in (256, 320, 512, 576, 896)] == [0.01, 0.02, 0.02, 0.03, 0.03]
    assert found[768][1] == 1e-3
    assert 5e-4 <= found[896][1] < found[832][1] < 1e-3
    recorded = yaml.safe_load(Path("run/config.yaml").read_text())["agent"]["entropy_coef"]
    assert recorded == {"kind": "sequence", "parts": [[0, 0.01], [256, 0.02], [512, 0.03]]}
    assert main(["+rerun=run", "hydra.run.dir=again"]) == 0


@pytest.mark.extended
def test_run_killed_before_its_first_checkpoint_starts_again(uninterrupted: Path) -> None:
    """Such a kill leaves the configuration and perhaps rows, but no state."""
    assert main([*PPO, TENSORBOARD, "env.max_frame=400", "hydra.run.dir=run"]) == 0
    for checkpoint in Path("run/session_0/checkpoints").iterdir():
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    Path("run/session_0/result.json").unlink()
    assert main(["+resume=run", "env.max_frame=2400"]) == 0
    assert json.loads(Path("run/run.json").read_text())["resumes"][-1]["frames"] == {"0": 0}
    assert differences(uninterrupted, Path("run")) == []
    assert board(Path("run")) == board(uninterrupted)


@pytest.mark.extended
def test_change_of_frequencies_does_not_change_what_is_learned(uninterrupted: Path) -> None:
    assert main([*PPO, "env.max_frame=1200", "hydra.run.dir=run"]) == 0
    edits = ["env.max_frame=2400", "meta.log_frequency=400", "meta.rigorous_eval=1", "meta.keep_last=1"]
    assert main(["+resume=run", *edits, "meta.eval_frequency=1200"]) == 0
    found = differences(uninterrupted, Path("run"))
    assert found == ["session_0/train.csv", "session_0/eval.csv"], "only the rows may differ"
    frames = [row["frame"] for row in rows(Path("run/session_0/train.csv"))]
    assert frames == ["200", "400", "600", "800", "1000", "1200", "1600", "2000", "2400"]


@pytest.mark.extended
def test_memory_mapped_buffer_keeps_its_checkpoint_frequency(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With rarer checkpoints the buffer would overwrite transitions that a resume after a kill needs."""
    overrides = [*small("dqn", "cartpole"), "agent.memory.storage=mmap", "meta.log_frequency=40"]
    assert main([*overrides, "env.max_frame=320", "hydra.run.dir=run"]) == 0
    edits = ["env.max_frame=800", "meta.log_frequency=400", "meta.eval_frequency=400"]
    assert main(["+resume=run", *edits]) == 0
    assert "40 frames" in capsys.readouterr().err
    assert CheckpointStore(Path("run/session_0/checkpoints"), 2).frames()[:2] == [800, 760]
