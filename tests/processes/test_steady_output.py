"""Tests of output that cannot be written: training continues, and a command that only prints fails."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import start_labrl

from labrl.errors import FAILED, WRONG_INPUT

TRAIN = ["agent=random", "env.max_frame=512", "meta.tensorboard=false", "meta.report=false", "seed=1"]
PRINT = ["-c", "import labrl.cli, sys; sys.exit(labrl.cli.list_envs([]))"]

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full does not exist")


def python(overrides: list[str], folder: Path, stdout: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *overrides],
        cwd=folder,
        text=True,
        timeout=120,
        check=False,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def status(folder: Path) -> str:
    (run,) = folder.glob("runs/*/run.json")
    return str(json.loads(run.read_text())["status"])


@pytest.mark.extended
@needs_full
def test_training_continues_when_its_output_file_is_on_a_full_disk(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = start_labrl(*TRAIN, cwd=tmp_path, stdout=full.fileno())
    _, error_output = command.communicate()
    assert (command.returncode, status(tmp_path)) == (0, "finished")
    (line,) = error_output.splitlines()
    assert os.strerror(errno.ENOSPC) in line


@pytest.mark.extended
def test_training_continues_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """A program started with `&` and `disown` loses its terminal when the window is closed."""
    import pty

    terminal, inside = pty.openpty()
    os.close(terminal)
    command = start_labrl(*TRAIN, cwd=tmp_path, stdout=inside, stderr=inside)
    os.close(inside)
    assert (command.wait(timeout=120), status(tmp_path)) == (0, "finished")


@pytest.mark.extended
def test_training_continues_when_its_pipe_is_closed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = start_labrl(*TRAIN, cwd=tmp_path, stdout=writing)
    os.close(writing)
    _, error_output = command.communicate()
    assert (command.returncode, error_output, status(tmp_path)) == (0, "", "finished")


@pytest.mark.extended
@needs_full
def test_printing_a_list_to_a_full_disk_fails(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = python(PRINT, tmp_path, stdout=full.fileno())
    assert ended.returncode == FAILED
    (line,) = ended.stderr.splitlines()
    assert os.strerror(errno.ENOSPC) in line


@pytest.mark.extended
def test_printing_a_list_to_a_closed_pipe_succeeds(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = python(PRINT, tmp_path, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.extended
@pytest.mark.parametrize("closed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_training_runs_when_its_output_is_closed_from_the_start(closed: int, tmp_path: Path) -> None:
    overrides = ["-m", "labrl", *TRAIN]
    command = f'exec "$0" "$@" {closed}>&-'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable, *overrides], cwd=tmp_path, check=False, timeout=120
    )
    assert ended.returncode == 0
    assert status(tmp_path) == "finished"


@pytest.mark.extended
def test_deleted_working_folder_is_refused_with_one_line(tmp_path: Path) -> None:
    command = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" "$@"'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable, "-m", "labrl", *TRAIN],
        cwd=tmp_path, check=False, timeout=120, text=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert ended.returncode == WRONG_INPUT
    assert len(ended.stderr.splitlines()) == 1
