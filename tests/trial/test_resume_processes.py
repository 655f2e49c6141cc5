"""Tests of resuming trials with several sessions, and of sessions whose trial process was killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from exact_cases import differences, newest_checkpoint
from paced import last_row
from run_cases import files_of
from trial_processes import ENDLESS, children, needs_proc, running, wait_for

import labrl.session.devices
import labrl.trial.train
from labrl.cli import main
from labrl.run.run import Run
from labrl.seeding import session_seed
from labrl.session.main import run as run_session

pytestmark = pytest.mark.extended

QUICK = ["agent=random", "env.max_frame=512", "meta.log_frequency=128", "meta.progress=false", "seed=1"]
QUICK += ["meta.report=false", "meta.videos=false"]


def test_resume_runs_only_unfinished_and_new_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulate a kill after one of two sessions has finished; later add a third session."""
    complete, run = tmp_path / "complete", tmp_path / "run"
    assert main([*QUICK, "meta.max_session=2", f"hydra.run.dir={complete}"]) == 0
    shutil.copytree(complete, run)
    killed = run / "session_1"
    (killed / "result.json").unlink()
    shutil.rmtree(killed / "checkpoints" / "frame_000000000512")
    done = files_of(run / "session_0")
    capsys.readouterr()

    assert main([f"+resume={run}"]) == 0
    stdout = capsys.readouterr().out
    assert json.loads((run / "run.json").read_text())["resumes"][-1]["frames"] == {"1": 384}
    assert [line[0] for line in re.findall(r"^(\d) +finished +512", stdout, re.MULTILINE)] == ["0", "1"]
    assert files_of(run / "session_0") == done
    assert differences(complete, run) == []

    done = files_of(run / "session_0") | files_of(run / "session_1")
    assert main([f"+resume={run}", "meta.max_session=3"]) == 0
    stdout = capsys.readouterr().out
    assert json.loads((run / "run.json").read_text())["resumes"][-1]["frames"] == {"2": 0}
    assert len(re.findall(r"^\d +finished +512", stdout, re.MULTILINE)) == 3
    assert files_of(run / "session_0") | files_of(run / "session_1") == done
    info = json.loads((run / "run.json").read_text())
    assert [session["seed"] for session in info["sessions"]] == [session_seed(1, i) for i in range(3)]
    assert info["status"] == "finished"

    for file in (run / "session_1").rglob("state.pt"):
        file.write_bytes(b"torn")
    assert main([f"+resume={run}", "env.max_frame=768"]) == 1
    sessions = json.loads((run / "run.json").read_text())["sessions"]
    assert [session["status"] for session in sessions] == ["finished", "failed", "finished"]
    before = json.loads((complete / "session_1/result.json").read_text())
    assert [session["frame"] for session in sessions] == [768, 512, 768]
    assert sessions[1]["return_mean"] == before["return_mean"]

    assert main([f"+resume={run}", "meta.max_session=1"]) == 2
    assert "meta.max_session" in capsys.readouterr().err


@needs_proc
def test_orphaned_sessions_save_and_block_a_resume_until_they_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with running(folder, *ENDLESS, "meta.max_session=2") as process:
        wait_for(lambda: last_row(folder, 0) and last_row(folder, 1), process)
        assert main([f"+resume={folder}"]) == 2
        stderr = capsys.readouterr().err
        assert str(folder) in stderr
        assert f"{process.pid} " in stderr
        sessions = children(process)
        os.kill(sessions[0], signal.SIGSTOP)  # keeps the session from ending
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        try:
            assert main([f"+resume={folder}"]) == 2
            assert f"{sessions[0]} " in capsys.readouterr().err
        finally:
            os.kill(sessions[0], signal.SIGCONT)
        process.communicate()  # returns when the last session has closed its output
    for index in (0, 1):
        progress = json.loads((folder / f"session_{index}" / "progress.json").read_text())
        assert progress["status"] == "interrupted"
        assert newest_checkpoint(folder, index) == progress["frame"]
    with Run.open(folder).lock():
        pass


def test_resumed_session_keeps_its_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    assert main([*QUICK, "meta.max_session=2", f"hydra.run.dir={run}"]) == 0
    shutil.rmtree(run / "session_1")
    monkeypatch.setattr(labrl.session.devices, "available_cpus", lambda: 4)
    code, _ = run_session(Run.open(run), 1)  # as the command does that a resume starts
    assert code == 0
    state = Run.open(run).session(1).store().latest()
    assert state is not None
    assert state.state["compute"]["num_threads"] == 2
