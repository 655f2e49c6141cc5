"""Tests of the processes of a trial: killed and interrupted sessions, and signals at its start and end."""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from pathlib import Path

import pytest
from exact_cases import differences, small
from paced import last_row
from trial_processes import ENDLESS, children, frame, needs_proc, running, wait_for

from labrl.cli import main
from labrl.run.run import Run
from labrl.session.callbacks.callback import Callback, SessionView


def statuses(folder: Path) -> list[str]:
    return [session["status"] for session in json.loads((folder / "run.json").read_text())["sessions"]]


@pytest.mark.extended
@needs_proc
def test_killed_session_is_named_and_does_not_stop_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "meta.max_session=2") as process:
        wait_for(lambda: frame(folder, 0) and last_row(folder, 1), process)
        os.kill(children(process)[0], signal.SIGKILL)
        reached = last_row(folder, 1)
        wait_for(lambda: last_row(folder, 1) > reached, process)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 1
    assert "session 0" in output
    assert "SIGKILL" in output
    assert statuses(folder) == ["failed", "interrupted"]
    assert [session.status for session in Run.open(folder).sessions] == ["failed", "interrupted"]
    killed = json.loads((folder / "run.json").read_text())["sessions"][0]
    assert killed["frame"] > 0, "the frame that the killed session had reached is lost"


SESSIONS, WORKERS = ["meta.max_session=2"], ["env.vectorization=async", "env.num_envs=2"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("number", "to_all", "code", "more"),
    [
        (signal.SIGINT, True, 130, SESSIONS),
        (signal.SIGTERM, False, 143, SESSIONS),
        (signal.SIGTERM, True, 143, WORKERS),
    ],
    ids=["ctrl-c", "kill", "workers"],
)
def test_signal_interrupts_all_sessions_and_each_saves_a_checkpoint(
    number: signal.Signals, to_all: bool, code: int, more: list[str], tmp_path: Path
) -> None:
    folder, count = tmp_path / "run", 2 if more == SESSIONS else 1
    with running(folder, *ENDLESS, *more) as process:
        wait_for(lambda: all(last_row(folder, index) for index in range(count)), process)
        (os.killpg if to_all else os.kill)(process.pid, number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in output
    assert statuses(folder) == ["interrupted"] * count
    assert all(saved(folder / f"session_{index}") for index in range(count))


def saved(session: Path) -> list[str]:
    """Return the names of the checkpoints of a session that are complete."""
    return sorted(path.parent.name for path in session.glob("checkpoints/frame_*/manifest.json"))


@pytest.mark.extended
def test_sigusr2_saves_a_checkpoint_of_each_session_and_training_goes_on(tmp_path: Path) -> None:
    """Regression test: typed by habit of ALF, it killed the run, which stayed `running` and saved nothing."""
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, *SESSIONS, "meta.log_frequency=1e8", "meta.keep_last=99") as process:
        wait_for(folder.exists, process)

        def saved_in_each() -> bool:
            os.kill(process.pid, signal.SIGUSR2)  # before the first step, too
            found = [saved(folder / f"session_{index}") for index in (0, 1)]
            return all(names and names[-1] > "frame_000000000000" for names in found)

        wait_for(saved_in_each, process)
        reached = frame(folder, 0), frame(folder, 1)
        wait_for(lambda: frame(folder, 0) > reached[0] and frame(folder, 1) > reached[1], process)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 143, output
    assert statuses(folder) == ["interrupted", "interrupted"]


class Save(Callback):
    def step(self, session: SessionView) -> None:
        if session.clock.frame == 40:
            signal.raise_signal(signal.SIGUSR2)


def test_checkpoint_on_sigusr2_changes_no_row_and_can_be_continued(tmp_path: Path) -> None:
    ppo = [*small("ppo", "cartpole"), "env.num_envs=2", "env.max_frame=128", "meta.log_frequency=64"]
    ppo += ["meta.keep_last=9", "meta.eval_frequency=64"]
    plain, signalled, forked = (tmp_path / name for name in ("plain", "signalled", "forked"))
    assert main([*ppo, f"hydra.run.dir={plain}"]) == 0
    assert (
        main([*ppo, "+callbacks.save._target_=test_trial_processes.Save", f"hydra.run.dir={signalled}"]) == 0
    )
    assert saved(signalled / "session_0") == [f"frame_{number:012}" for number in (40, 64, 128)]
    assert "frame 40" in (signalled / "session_0" / "session.log").read_text()
    assert [place for place in differences(plain, signalled) if "callbacks" not in place] == []
    assert main([f"+fork={signalled}", "at=40", f"hydra.run.dir={forked}"]) == 0
    assert [place for place in differences(plain, forked) if "callbacks" not in place] == []


class SlowStart(Callback):
    def __init__(self) -> None:
        time.sleep(60)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("number", "code", "more"),
    [(signal.SIGTERM, 143, []), (signal.SIGINT, 130, SESSIONS)],
    ids=str,
)
def test_signal_before_the_first_step_prints_how_to_resume(
    number: signal.Signals, code: int, more: list[str], tmp_path: Path
) -> None:
    folder, slow = tmp_path / "run", "+callbacks.slow._target_=test_trial_processes.SlowStart"
    with running(folder, *ENDLESS, slow, *more) as process:
        wait_for((folder / ("session_1" if more else "session_0")).exists, process)
        time.sleep(0.3)
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert f"labrl +resume={folder}" in output
    assert "Traceback" not in output
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"


class SignalAtExit(Callback):
    def finish(self, session: SessionView) -> None:
        atexit.register(os.kill, os.getpid(), signal.SIGTERM)


@pytest.mark.extended
def test_signal_after_the_end_of_a_session_is_ignored(tmp_path: Path) -> None:
    """Regression test: a trial of two finished sessions was called resumable, and its resume refused."""
    folder = tmp_path / "run"
    late = "+callbacks.late._target_=test_trial_processes.SignalAtExit"
    with running(folder, *ENDLESS, "env.max_frame=64", *SESSIONS, late) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "+resume" not in output
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert statuses(folder) == ["finished", "finished"]
