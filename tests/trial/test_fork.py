"""Tests of forks: a fork has the past of another run bit for bit, and only edits change its future."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import run_ranks, start_labrl
from exact_cases import (
    differences,
    newest_checkpoint,
    recorded_differences,
    rows,
    small,
    unequal,
)
from one_process import ONE_PROCESS
from paced import PACED
from tensorboard_files import board

import labrl
from labrl.analysis.report.build import build
from labrl.cli import main
from labrl.errors import InputError
from labrl.run.checkpoint import CheckpointStore
from labrl.run.experiment import Experiment
from labrl.run.folder import EXPERIMENT_MARKER
from labrl.run.run import MARKER, Run
from labrl.run.signature import signed

PPO = small("ppo", "cartpole")
DQN = small("dqn", "cartpole")
FILES = ["agent.memory.storage=mmap"]
AT = 800
SHORT = "env.max_frame=1600"
KEEP = f"meta.keep_every={AT}"
EDIT = "agent.gamma=0.5"
HIDDEN = "agent.network.torso.mlp.hidden"
CONSTANT = ["agent.lr=1e-3", "agent.clip_range=0.2"]


pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.extended]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of PPO that has kept a checkpoint every AT frames."""
    folder = tmp_path_factory.mktemp("trunk") / "run"
    assert main([*PPO, KEEP, f"hydra.run.dir={folder}"]) == 0
    return folder


def fork(of: Path | str, at: int = AT) -> list[str]:
    return [f"+fork={of}", f"at={at}"]


def store(run: Path | str) -> CheckpointStore:
    return CheckpointStore(Path(run) / "session_0" / "checkpoints", keep_last=2)


def refusal(*overrides: str) -> InputError:
    """Return the error with which labrl refuses to train with the overrides."""
    with pytest.raises(InputError) as refused:
        labrl.train(list(overrides))
    return refused.value


def rows_until(run: Path | str, frame: int, table: str = "train") -> list[dict[str, str]]:
    """Return the rows of a table of metrics up to `frame`."""
    return [row for row in rows(Path(run) / f"session_0/{table}.csv") if int(row["frame"]) <= frame]


@pytest.mark.parametrize("overrides", [PPO, DQN, [*DQN, *FILES]], ids=["ppo", "dqn", "dqn in files"])
def test_fork_without_edits_equals_the_original_run(overrides: list[str]) -> None:
    overrides = [*overrides, SHORT, "meta.tensorboard=true"]
    assert main([*overrides, KEEP, "hydra.run.dir=original"]) == 0
    assert main([*fork("original"), "hydra.run.dir=forked"]) == 0
    assert differences(Path("original"), Path("forked")) == []
    assert recorded_differences(Path("original"), Path("forked")) == []
    assert store("original").best_frame() == store("forked").best_frame()
    assert board(Path("original")) == board(Path("forked"))


def test_fork_at_the_end_of_a_run_equals_a_run_with_the_larger_budget(trunk: Path) -> None:
    assert main([*PPO, "env.max_frame=1288", "hydra.run.dir=short"]) == 0
    assert main([*fork("short", 1288), "env.max_frame=2400", "hydra.run.dir=forked"]) == 0
    assert differences(trunk, Path("forked")) == []


def test_edits_that_a_resume_refuses_change_only_the_future_of_a_fork(trunk: Path) -> None:
    assert refusal(f"+resume={trunk}", EDIT, "env.max_frame=4800").code == "changed-past"
    # A frame between two steps means the step that crosses it.
    assert main([*fork(trunk, AT - 3), EDIT, "hydra.run.dir=forked"]) == 0
    for table in ("train", "eval"):
        assert rows_until("forked", AT, table) == rows_until(trunk, AT, table) != []
        assert rows_until("forked", 2400, table) != rows_until(trunk, 2400, table)
    entry = json.loads(Path("forked/run.json").read_text())["fork"]
    assert (entry["folder"], entry["frame"], entry["edits"]) == (str(trunk), AT, [EDIT])
    assert [change["key"] for change in entry["changed"]] == ["agent.gamma"]
    assert main(["+resume=forked", "env.max_frame=2600", *CONSTANT]) == 0
    assert refusal("+rerun=forked").key == "+rerun"
    assert refusal("+resume=forked", "meta.max_session=2").key == "meta.max_session"


def test_fork_takes_over_the_best_model_of_its_past() -> None:
    """The best model up to the fork is taken over, even if the original run found better ones later."""
    # Single episodes of evaluation vary so much that the best one may lie before the fork.
    noisy, end = [*PPO, "meta.rigorous_eval=1", "seed=23"], "env.max_frame=1120"
    assert main([*noisy, "meta.keep_every=1/3", "hydra.run.dir=run"]) == 0
    assert main([*noisy, end, "hydra.run.dir=short"]) == 0
    assert main([*fork("run"), end, "hydra.run.dir=forked"]) == 0
    forked, expected = store("forked").best(), store("short").best()
    assert forked is not None
    assert expected is not None
    assert forked.frame == expected.frame < AT, "it does not lie before the fork: choose another seed"
    assert store("run").best_frame() not in (None, forked.frame)
    assert unequal(forked.state["agent"], expected.state["agent"]) == []
    latest: Any = store("forked").latest()
    assert latest.state["callbacks"]["Evaluate:0"]["best_frame"] == forked.frame


def test_kept_checkpoints_remain_and_can_be_played(trunk: Path) -> None:
    kept = {AT, 2 * AT, 2400}
    assert kept <= set(store(trunk).frames())
    assert main([f"+enjoy={trunk}", f"checkpoint={AT}", "episodes=1", "videos=0"]) == 0
    shutil.copytree(trunk, "longer")
    assert main(["+resume=longer", "meta.keep_every=null", "env.max_frame=2800", *CONSTANT]) == 0
    assert kept | {2800} <= set(store("longer").frames())


def test_fork_needs_the_replay_buffer_of_its_checkpoint() -> None:
    assert main([*DQN, *FILES, SHORT, KEEP, "hydra.run.dir=run"]) == 0
    last, before = store("run").frames()[:2]
    assert main([*fork("run", before), "hydra.run.dir=newest"]) == 0
    assert differences(Path("run"), Path("newest")) == []
    shutil.rmtree(f"run/session_0/checkpoints/frame_{AT:012d}/replay")
    refused = refusal(*fork("run"))
    assert (refused.code, refused.key) == ("resources", "at")
    assert {str(last), str(before)} <= set(re.findall(r"\d+", str(refused)))
    assert "meta.keep_every" in str(refused)


def test_each_session_is_forked_from_its_own_past() -> None:
    overrides = [*PPO, SHORT, KEEP, "meta.max_session=2"]
    assert main([*overrides, "hydra.run.dir=two"]) == 0
    assert main([*fork("two"), "hydra.run.dir=forked"]) == 0
    assert differences(Path("two"), Path("forked")) == []
    assert main([*fork("two"), "meta.max_session=1", "hydra.run.dir=one"]) == 0
    assert rows(Path("one/session_0/train.csv")) == rows(Path("two/session_0/train.csv"))
    assert refusal(*fork("two"), "meta.max_session=3").key == "meta.max_session"


def test_running_run_can_be_forked(tmp_path: Path) -> None:
    overrides = [*PPO, KEEP, "env.max_frame=1e6", "hydra.run.dir=running"]
    process = start_labrl(*overrides, PACED, output=False)
    try:
        while newest_checkpoint(tmp_path / "running") < 2000 and process.poll() is None:
            time.sleep(0.01)
        assert main([*fork("running"), "env.max_frame=1600", "hydra.run.dir=forked"]) == 0
        assert process.poll() is None, "the original run has ended"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert rows_until("forked", 1500) == rows_until("running", 1500) != []


def test_run_with_several_ranks_can_be_forked(tmp_path: Path) -> None:
    overrides = [*PPO, "meta.num_cpus=2", "meta.keep_every=400", "env.max_frame=800"]
    for one in ([*overrides, "hydra.run.dir=run"], [*fork(tmp_path / "run", 400), "hydra.run.dir=forked"]):
        ended = run_ranks(*one)
        assert [code for code, _ in ended] == [0, 0], ended
    assert differences(Path("run"), Path("forked")) == []
    assert refusal(*fork("run", 400)).key == "+resume"


def test_report_of_an_experiment_compares_its_branches_in_pairs() -> None:
    assert main([*PPO, SHORT, KEEP, "meta.max_session=2", "hydra.run.dir=trunk"]) == 0
    swept = ["-m", *fork("trunk"), "agent.lr=1e-2,1e-3", "hydra.sweep.dir=branches", ONE_PROCESS]
    assert main(swept) == 0
    runs = Experiment.load("branches").runs
    assert [run.config["agent"]["lr"] for run in runs] == [1e-2, 1e-3]
    for run in runs:
        assert rows_until(run.path, AT) == rows_until("trunk", AT) != []
        assert run.info["fork"]["frame"] == AT
    first, second = (rows_until(run.path, 1600) for run in runs)
    assert first != second
    built = build("branches")
    pairs = built.statistics["envs"][0]["branches"]
    (pair,) = pairs["pairs"]
    groups = built.statistics["envs"][0]["groups"]
    finals = [[session["final_return"] for session in group["sessions"]] for group in groups]
    gaps = [x - y for x, y in zip(*finals, strict=True)]
    assert (pairs["frame"], pair["n"]) == (AT, 2)
    assert pair["value"] == pytest.approx(sum(gaps) / 2)
    # A branch that is added later forks from the same past.
    assert main(["-m", "+resume=branches", "agent.lr=1e-4"]) == 0
    assert len(Experiment.load("branches").runs) == 3
    added = Experiment.load("branches").runs[2]
    assert rows_until(added.path, AT) == rows_until("trunk", AT)


def test_trial_killed_while_its_past_was_copied_starts_again(trunk: Path) -> None:
    swept = ["-m", *fork(trunk), SHORT, "agent.lr=1e-2,1e-3", "hydra.sweep.dir=branches", ONE_PROCESS]
    assert main(swept) == 0
    (run,) = Path("branches").glob("1_*")
    info = json.loads((Path("branches") / EXPERIMENT_MARKER).read_text())
    info["trials"][1]["status"] = "running"
    (Path("branches") / EXPERIMENT_MARKER).write_text(json.dumps(signed(info)))
    expected = rows(run / "session_0/train.csv")
    for path in [*run.iterdir(), *(run / "session_0").iterdir()]:
        if path.is_file() and path.name not in (MARKER, "train.csv"):
            path.unlink()
    Run.open(run).set_status("running")
    assert main(["-m", "+resume=branches"]) == 0
    assert rows(run / "session_0/train.csv") == expected


def test_wrong_fork_is_refused_with_its_key(trunk: Path, tmp_path: Path) -> None:
    near = refusal(*fork(trunk, 900))
    assert (near.code, near.key) == ("not-found", "at")
    assert {"800", "1600"} <= set(re.findall(r"\d+", str(near)))
    assert "meta.keep_every" in str(near)
    cases: list[tuple[list[str], str, str]] = [
        ([f"+fork={trunk}"], "missing", "at"),
        ([f"+fork={trunk}", "at=800,1600"], "type", "at"),
        (["at=800"], "usage", "at"),
        ([*fork(trunk), f"+resume={trunk}"], "contradiction", "+resume"),
        ([*fork(trunk), "+force=true"], "usage", "+force"),
        ([*fork(tmp_path / "nowhere")], "not-found", str(tmp_path / "nowhere")),
        ([*fork(trunk), "env.max_frame=800"], "range", "env.max_frame"),
        ([*fork(trunk), "seed=7"], "changed-past", "seed"),
        ([*fork(trunk), EDIT, f"{HIDDEN}=[32,32]"], "changed-past", HIDDEN),
    ]
    for overrides, code, key in cases:
        refused = refusal(*overrides, "hydra.run.dir=refused")
        assert (refused.code, refused.key) == (code, key), overrides
        assert not Path("refused").exists(), overrides
    assert main(["-m", *fork(trunk), "hydra/sweeper=optuna", "search=ppo"]) == 2
    for edit in ("seed=1,2", "seed=7", "meta.max_session=1,3", "env.max_frame=800,1600"):
        assert main(["-m", *fork(trunk), edit, "hydra.sweep.dir=refused"]) == 2
        assert not Path("refused").exists(), "no trial of it could begin"
    assert main([*PPO, "env.max_frame=128", "meta.log_frequency=1e6", "hydra.run.dir=young"]) == 0
    for checkpoint in Path("young/session_0/checkpoints").iterdir():
        (checkpoint / "state.pt").unlink()
    none = refusal(*fork("young", 128))
    assert (none.code, none.key) == ("not-found", "+fork")


def test_commands_of_the_page_create_the_runs_that_it_describes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fork.md").read_text()
    commands = [one for one in re.findall(r"^    labrl (.*)$", page, re.MULTILINE) if "runs/easy" not in one]
    assert len(commands) == 4
    for command in commands:
        for frames in (8192, 4096, 10_000):
            command = command.replace(str(frames), str(frames // 4))
        arguments = [*shlex.split(command), "meta.progress=false", "meta.tensorboard=false"]
        arguments += [ONE_PROCESS] if "-m" in arguments else []
        assert main(arguments) == 0, command
    assert len(list(Path("runs/branches").glob(f"*/{MARKER}"))) == 3
    (branch,) = rows(Path("runs/branch/session_0/train.csv"))[-1:]
    assert int(branch["frame"]) >= 2500


def test_fork_may_add_a_transform_without_statistics_but_none_with(trunk: Path) -> None:
    assert main([*fork(trunk), "transforms/reward=clip", "hydra.run.dir=clipped"]) == 0
    config = yaml.safe_load(Path("clipped/config.yaml").read_text())
    assert config["transforms"]["reward"]["_target_"].endswith("ScaleReward")
    error = refusal(*fork(trunk), "transforms/reward=normalize", "hydra.run.dir=normalized")
    assert "transforms.reward" in str(error)
    assert not Path("normalized").exists()
