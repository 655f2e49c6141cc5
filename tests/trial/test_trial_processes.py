"""Tests of the processes of a trial: killed and interrupted sessions, and signals at its start and end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from exact_cases import differences
from paced import last_row
from trial_processes import ENDLESS, children, needs_proc, running, servers, wait_for

from labrl.cli import main
from labrl.run.run import Run


def frame(folder: Path, index: int) -> int:
    """Return the frame that a session has reported, 0 if none."""
    try:
        return json.loads((folder / f"session_{index}" / "progress.json").read_text())["frame"]
    except FileNotFoundError:
        return 0


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
    killed = json.loads((folder / "run.json").read_text())["sessions"][0]
    assert killed["frame"] > 0, "the frame that the killed session had reached is lost"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        pytest.param(signal.SIGINT, True, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, False, 143, id="kill"),
        pytest.param(signal.SIGINT, False, 130, id="kill -INT", marks=pytest.mark.matrix),
        pytest.param(signal.SIGTERM, True, 143, id="terminal", marks=pytest.mark.matrix),
    ],
)
def test_signal_interrupts_all_sessions_and_each_saves_a_checkpoint(
    number: signal.Signals, to_all: bool, code: int, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "meta.max_session=2") as process:
        wait_for(lambda: last_row(folder, 0) and last_row(folder, 1), process)
        (os.killpg if to_all else os.kill)(process.pid, number)
        output, _ = process.communicate()
    assert process.returncode == code
    assert "Traceback" not in output
    assert statuses(folder) == ["interrupted", "interrupted"]
    for index in (0, 1):
        assert list((folder / f"session_{index}" / "checkpoints").glob("frame_*"))


def saved(session: Path) -> list[str]:
    """Return the names of the checkpoints of a session that are complete."""
    return sorted(path.parent.name for path in session.glob("checkpoints/frame_*/manifest.json"))


@pytest.mark.extended
@pytest.mark.parametrize("to_all", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_sigusr2_saves_a_checkpoint_of_each_session_and_training_goes_on(
    to_all: bool, tmp_path: Path
) -> None:
    """Regression test: typed by habit of ALF, it killed the run, which stayed `running` and saved nothing."""
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "meta.max_session=2", "meta.log_frequency=1e8") as process:
        wait_for(lambda: frame(folder, 0) and frame(folder, 1), process)
        assert [saved(folder / f"session_{index}") for index in (0, 1)] == [[], []]
        (os.killpg if to_all else os.kill)(process.pid, signal.SIGUSR2)
        wait_for(lambda: all(saved(folder / f"session_{index}") for index in (0, 1)), process)
        reached = frame(folder, 0), frame(folder, 1)
        wait_for(lambda: frame(folder, 0) > reached[0] and frame(folder, 1) > reached[1], process)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 143, output
    assert statuses(folder) == ["interrupted", "interrupted"]
    assert all(len(saved(folder / f"session_{index}")) == 2 for index in (0, 1))


@pytest.mark.extended
def test_sigusr2_before_the_first_step_does_not_end_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, *ENDLESS) as process:
        wait_for(folder.exists, process)

        def trains_despite_signals() -> bool:
            process.send_signal(signal.SIGUSR2)
            return frame(folder, 0) > 0

        wait_for(trains_despite_signals, process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 143, output


def test_checkpoint_on_sigusr2_changes_no_row_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saves.py").write_text(
        "import os, signal\n"
        "from labrl.session.callbacks import Callback\n"
        "class Save(Callback):\n"
        "    def step(self, session):\n"
        "        if session.clock.frame == 40:\n"
        "            os.kill(os.getpid(), signal.SIGUSR2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ppo = [
        *(
            "agent=ppo",
            "env.num_envs=1",
            "agent.horizon=16",
            "agent.batch_size=16",
            "agent.epochs=1",
            "agent.network.torso.mlp.hidden=[8]",
            "seed=1",
        ),
        *("env.max_frame=128", "meta.log_frequency=64", "meta.keep_last=9", "meta.tensorboard=false"),
    ]
    plain, signalled, forked = (tmp_path / name for name in ("plain", "signalled", "forked"))
    assert main([*ppo, f"hydra.run.dir={plain}"]) == 0
    assert main([*ppo, "+callbacks.save={_target_: saves.Save}", f"hydra.run.dir={signalled}"]) == 0
    assert saved(signalled / "session_0") == [f"frame_{number:012}" for number in (40, 64, 128)]
    assert "frame 40" in (signalled / "session_0" / "session.log").read_text()
    assert [place for place in differences(plain, signalled) if "callbacks" not in place] == []
    assert main([f"+fork={signalled}", "at=40", f"hydra.run.dir={forked}"]) == 0
    assert [place for place in differences(plain, forked) if "callbacks" not in place] == []


@pytest.mark.extended
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.matrix),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.matrix),
    ],
    ids=lambda n: n.name,
)
def test_environment_workers_survive_a_signal_until_the_session_has_saved(
    number: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "env.vectorization=async", "env.num_envs=2") as process:
        wait_for(lambda: last_row(folder), process)
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert statuses(folder) == ["interrupted"]
    assert list((folder / "session_0" / "checkpoints").glob("frame_*"))


@pytest.mark.extended
def test_ctrl_c_while_sessions_start_interrupts_without_a_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "meta.max_session=2") as process:
        wait_for((folder / "session_1").exists, process)
        wait_for(lambda: not Path("/proc").exists() or len(children(process)) == 2, process)
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in output
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert statuses(folder) == ["interrupted", "interrupted"]


@pytest.mark.extended
@needs_proc
def test_killed_fork_server_ends_the_trial_with_a_message_and_leaves_a_folder_to_resume(
    tmp_path: Path,
) -> None:
    """Regression test: it ended in a traceback of multiprocessing."""
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "meta.max_session=2") as process:
        wait_for(lambda: servers(process), process)
        (server,) = servers(process)
        os.kill(server, signal.SIGSTOP)  # so that the trial waits for its answer
        wait_for(lambda: (folder / "run.json").exists() and Run.open(folder).status == "running", process)
        time.sleep(0.5)
        os.kill(server, signal.SIGKILL)
        output, _ = process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in output
    assert f"+resume={folder}" in output
    assert main([f"+resume={folder}", "env.max_frame=8", "+force=true"]) == 0


@pytest.mark.extended
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGHUP, 143, marks=pytest.mark.matrix),
    ],
    ids=str,
)
def test_signal_before_the_first_step_prints_how_to_resume(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    (tmp_path / "slow_start.py").write_text(
        "import time\n"
        "from labrl.session.callbacks import Callback\n"
        "class Slow(Callback):\n"
        "    def __init__(self):\n"
        "        time.sleep(60)\n"
    )
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "+callbacks.slow={_target_: slow_start.Slow}", path=tmp_path) as process:
        wait_for((folder / "session_0").exists, process)
        time.sleep(0.3)
        os.kill(process.pid, number)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert f"labrl +resume={folder}" in output
    assert "Traceback" not in output
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.extended
def test_signal_after_the_end_of_a_session_is_ignored(tmp_path: Path) -> None:
    """Regression test: a trial of two finished sessions was called resumable, and its resume refused."""
    (tmp_path / "late_signal.py").write_text(
        "import atexit, os, signal\n"
        "from labrl.session.callbacks import Callback\n"
        "class Late(Callback):\n"
        "    def finish(self, session):\n"
        "        atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
    )
    folder = tmp_path / "run"
    overrides = [
        *ENDLESS,
        "env.max_frame=64",
        "meta.max_session=2",
        "+callbacks.late._target_=late_signal.Late",
    ]
    with running(folder, *overrides, path=tmp_path) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "+resume" not in output
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert statuses(folder) == ["finished", "finished"]
