"""Output that nobody takes any more ends no training, and a command that only prints says so."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import start_labrl

from labrl.errors import FAILED, WRONG_INPUT
from labrl.steady_output import doing, steady_output

TRAIN = ["agent=random", "env.max_frame=512", "meta.tensorboard=false", "meta.report=false", "seed=1"]
PRINT = ["-c", "import labrl.cli, sys; sys.exit(labrl.cli.list_envs([]))"]

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


def python(
    overrides: list[str], folder: Path, stdout: int, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *overrides],
        cwd=folder,
        text=True,
        timeout=120,
        check=False,
        stdout=stdout,
        stderr=stderr,
    )


def status(folder: Path) -> str:
    (run,) = folder.glob("runs/*/run.json")
    return str(json.loads(run.read_text())["status"])


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_terminal_without_control_sequences_gets_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "__stderr__", terminal)
    monkeypatch.setenv("TERM", kind)
    with steady_output():
        doing("loading")
        print("done")
    assert ("\x1b" in terminal.getvalue()) == (kind == "xterm")


@needs_full
def test_training_goes_on_where_its_log_has_no_room(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = start_labrl(*TRAIN, cwd=tmp_path, stdout=full.fileno())
    complaints, _ = command.communicate()
    assert (command.returncode, status(tmp_path)) == (0, "finished")
    (said,) = complaints.splitlines()
    assert os.strerror(errno.ENOSPC) in said


def test_training_goes_on_where_its_terminal_is_gone(tmp_path: Path) -> None:
    """Closed windows take away the terminal of what was started with `&` and `disown`."""
    import pty

    terminal, inside = pty.openpty()
    os.close(terminal)
    ended = python(["-m", "labrl", *TRAIN], tmp_path, stdout=inside, stderr=inside)
    os.close(inside)
    assert (ended.returncode, status(tmp_path)) == (0, "finished")


def test_training_goes_on_where_its_reader_has_read_enough(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = start_labrl(*TRAIN, cwd=tmp_path, stdout=writing)
    os.close(writing)
    complaints, _ = command.communicate()
    assert (command.returncode, complaints, status(tmp_path)) == (0, "", "finished")


@needs_full
def test_a_list_that_cannot_be_printed_has_failed(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = python(PRINT, tmp_path, stdout=full.fileno())
    assert ended.returncode == FAILED
    (said,) = ended.stderr.splitlines()
    assert os.strerror(errno.ENOSPC) in said


def test_a_list_of_which_the_head_is_read_has_not(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = python(PRINT, tmp_path, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_training_goes_on_where_output_was_closed_from_the_beginning(closed: int, tmp_path: Path) -> None:
    overrides = ["-m", "labrl", *TRAIN]
    command = f'exec "$0" "$@" {closed}>&-'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable, *overrides], cwd=tmp_path, check=False, timeout=120
    )
    assert ended.returncode == 0
    assert status(tmp_path) == "finished"


def test_a_working_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    command = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" "$@"'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable, "-m", "labrl", *TRAIN],
        cwd=tmp_path, check=False, timeout=120, text=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert ended.returncode == WRONG_INPUT
    assert len(ended.stderr.splitlines()) == 1
