"""Tests of `labrl +enjoy`: it plays any run, finished or not, and changes nothing that the run recorded."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import av
import pytest
from exact_cases import QUIET, small
from recorded import recorded

import labrl
from labrl.cli import main
from labrl.run.run import Run

RUNS = {
    "rainbow_pong": [
        *(*small("dqn", "pong"), "agent.memory.storage=mmap", "env.image_size=44"),
        *("env.max_frame=80", "env.max_episode_frames=80", "agent.learning_starts=40"),
    ],
    "random_pendulum": [*small("random", "pendulum"), "env.max_frame=240"],
}
"""Runs that cover the kinds of agents, actions and backends; one has a replay buffer in files."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the recorded run, as `ppo_cartpole`, and of a finished run for each of RUNS."""
    path = tmp_path_factory.mktemp("runs") / "runs"
    shutil.copytree(recorded("run"), path / "ppo_cartpole")
    for name, overrides in RUNS.items():
        assert labrl.train([*overrides, "meta.videos=false", f"hydra.run.dir={path / name}"]).exit_code == 0
    return path


def checksums(run: Path) -> dict[str, str]:
    """Return the checksums of all files that a run recorded, without locks, which name their last owner."""
    files = [path for path in run.rglob("*") if path.is_file() and "enjoy" not in path.parts]
    files = [path for path in files if path.name != ".lock"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def enjoy_result(run: Path) -> dict:
    """Return the only result of `+enjoy` in a run folder."""
    (path,) = (run / "enjoy").glob("*/result.json")
    return json.loads(path.read_text())


def refused(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Expect labrl to refuse the overrides without a traceback, and return its error message."""
    capsys.readouterr()
    assert main(list(overrides)) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


@pytest.mark.extended
@pytest.mark.parametrize("name", ["ppo_cartpole", *RUNS])
def test_enjoy_plays_episodes_and_leaves_the_records_unchanged(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / name
    before = checksums(run)
    assert main([f"+enjoy={run}", "episodes=2", "videos=1"]) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    assert " ± " in output
    assert checksums(run) == before
    result = enjoy_result(run)
    returns = [episode["return"] for episode in result["episodes"]]
    assert result["return_mean"] == pytest.approx(sum(returns) / 2)
    assert [episode["video"] for episode in result["episodes"]] == ["episode_0.mp4", None]
    with av.open(str(next((run / "enjoy").glob("*/episode_0.mp4")))) as video:
        stream = video.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.width % 2 == stream.height % 2 == 0
        assert sum(1 for _ in video.decode(stream)) == result["episodes"][0]["length"] + 1
    # The same seed plays the same episodes again; another seed gets a folder of its own.
    assert main([f"+enjoy={run}", "episodes=2", "videos=0"]) == 0
    again = enjoy_result(run)
    assert [(one["seed"], one["return"]) for one in again["episodes"]] == [
        (one["seed"], one["return"]) for one in result["episodes"]
    ]
    assert main([f"+enjoy={run}", "episodes=1", "videos=0", "seed=1"]) == 0
    assert len(list((run / "enjoy").iterdir())) == 2


def test_first_episodes_do_not_depend_on_the_number_of_episodes(folder: Path, tmp_path: Path) -> None:
    run = folder / "random_pendulum"
    found = []
    for episodes in (18, 20):  # more than are played side by side
        assert main([f"+enjoy={run}", f"episodes={episodes}", "videos=0", "seed=7"]) == 0
        path = next((run / "enjoy").glob("*seed_7/result.json"))
        found.append([one["seed"] for one in json.loads(path.read_text())["episodes"]])
    assert found[0] == found[1][:18]
    assert len(set(found[1])) == 20


def test_running_or_killed_run_can_be_enjoyed(folder: Path) -> None:
    run = Run.open(folder / "ppo_cartpole")
    (run.path / "session_0" / "result.json").unlink()
    run.set_status("running")
    with open(run.path / "session_0" / "eval.csv", "a") as file:
        file.write("2500,2500,1")  # an incomplete row, as while a session is writing it
    before = checksums(run.path)
    assert main([f"+enjoy={run.path}", "episodes=1", "videos=0"]) == 0  # a killed run
    with run.lock(), run.session(0).lock():
        assert main([f"+enjoy={run.path}", "episodes=1", "videos=0"]) == 0  # a running one
    after = checksums(run.path)
    assert {path: after[path] for path in before} == before


def test_greedy_and_checkpoint_can_be_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "ppo_cartpole"
    for overrides in (["checkpoint=latest", "greedy=true"], ["checkpoint=1.92e2"], ["checkpoint=best"]):
        assert main([f"+enjoy={run}", "episodes=1", "videos=0", *overrides]) == 0
    found = [json.loads(path.read_text()) for path in (run / "enjoy").glob("*/result.json")]
    assert {(256, True), (192, False)} <= {(result["frame"], result["greedy"]) for result in found}
    message = refused(capsys, f"+enjoy={run}", "checkpoint=77")
    assert all(part in message for part in ("checkpoint=77", "256, 192, 128", "best"))
    message = refused(capsys, f"+enjoy={folder / 'random_pendulum'}", "greedy=true")
    assert "greedy=true" in message
    assert "labrl.agents.random.RandomAgent" in message


def test_session_with_the_best_score_plays_unless_another_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*QUIET, "agent=random", "env=cartpole", "env.max_frame=600", "meta.max_session=2"]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    scores = [session.best_return for session in result.sessions]
    best = scores.index(max(scores))
    capsys.readouterr()
    assert main([f"+enjoy={result.folder}", "episodes=1", "videos=0"]) == 0
    assert main([f"+enjoy={result.folder}", "episodes=1", "videos=0", f"session={1 - best}"]) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("run: "))
    assert f"session {best}" in first
    assert f"session {1 - best}" in second
    message = refused(capsys, f"+enjoy={result.folder}", "session=2")
    assert "session=2" in message
    assert "0, 1" in message


WRONG = {
    "episodes=0": "episodes",
    "epsilon=2": "epsilon",
    "greedy=maybe": "greedy",
    "render=rgb": "render",
    "checkpoint=first": "checkpoint",
    "agent.lr=1": "agent.lr",
    "episodes": "episodes",
    "+enjoy=latest": "+enjoy",
}
"""Wrong overrides, and the keys that their messages name."""


@pytest.mark.parametrize("override", WRONG)
def test_wrong_override_is_refused(override: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert WRONG[override] in refused(capsys, f"+enjoy={folder / 'ppo_cartpole'}", override)


def test_missing_run_or_display_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Path("runs").absolute()) in refused(capsys, "+enjoy=latest")
    assert "nowhere" in refused(capsys, "+enjoy=nowhere")
    assert "+enjoy=<run folder>" in refused(capsys, "+enjoy=")
    assert "+enjoy=latest" in refused(capsys, "enjoy=latest")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    message = refused(capsys, f"+enjoy={folder / 'ppo_cartpole'}", "render=human")
    assert "render=human" in message
    assert "DISPLAY" in message


def test_render_human_plays_in_a_window_without_videos(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr("labrl.envs.screen.frames_per_second", lambda metadata: 5000.0)
    run = folder / "ppo_cartpole"
    assert main([f"+enjoy={run}", "episodes=2", "render=human", "seed=3"]) == 0
    result = next((run / "enjoy").glob("*seed_3/result.json"))
    assert [one["video"] for one in json.loads(result.read_text())["episodes"]] == [None, None]


def test_enjoy_takes_a_pattern_that_matches_one_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"+enjoy={folder}/*cartp*", "episodes=1", "videos=0", "seed=5"]) == 0
    assert list((folder / "ppo_cartpole" / "enjoy").glob("*_seed_5/result.json"))
    message = refused(capsys, f"+enjoy={folder}/*p*")
    assert [name for name in RUNS if str(folder / name) not in message] == []
    assert f"+enjoy={folder}/*acrobot*" in refused(capsys, f"+enjoy={folder}/*acrobot*")
