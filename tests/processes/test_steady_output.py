"""Tests of output that cannot be written: training continues, and a command that only prints fails."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from commands import start_labrl

from labrl.errors import FAILED

TRAIN = ["agent=random", "env.max_frame=512", "meta.tensorboard=false", "meta.report=false", "seed=1"]

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full does not exist")


FULL_DISK = pytest.param("full disk", marks=needs_full)


def unwritable(kind: str) -> int:
    """Return the descriptor of an output that cannot be written."""
    if kind == "full disk":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = pty.openpty() if kind == "closed terminal" else os.pipe()
    os.close(reader)
    return writer


def status(folder: Path) -> str:
    (run,) = folder.glob("runs/*/run.json")
    return str(json.loads(run.read_text())["status"])


@pytest.mark.extended
@pytest.mark.parametrize("kind", [FULL_DISK, "closed terminal", "closed pipe"])
def test_training_continues_when_its_output_cannot_be_written(kind: str, tmp_path: Path) -> None:
    """A program started with `&` and `disown` loses its terminal when the window is closed."""
    output = unwritable(kind)
    errors = output if kind == "closed terminal" else None
    command = start_labrl(*TRAIN, cwd=tmp_path, stdout=output, stderr=errors)
    os.close(output)
    _, printed = command.communicate()
    assert (command.returncode, status(tmp_path)) == (0, "finished")
    if kind == "full disk":
        (line,) = printed.splitlines()
        assert os.strerror(errno.ENOSPC) in line
    if kind == "closed pipe":
        assert printed == ""


@pytest.mark.extended
@pytest.mark.parametrize("kind", [FULL_DISK, "closed pipe"])
def test_printing_a_list_fails_on_a_full_disk_and_succeeds_with_a_closed_pipe(kind: str) -> None:
    output = unwritable(kind)
    program = [sys.executable, "-c", "import labrl.cli, sys; sys.exit(labrl.cli.list_envs([]))"]
    ended = subprocess.run(program, text=True, check=False, stdout=output, stderr=subprocess.PIPE)
    os.close(output)
    if kind == "full disk":
        assert ended.returncode == FAILED
        (line,) = ended.stderr.splitlines()
        assert os.strerror(errno.ENOSPC) in line
    else:
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.extended
def test_training_runs_when_its_output_is_closed_from_the_start(tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-m", "labrl", *TRAIN]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    assert status(tmp_path) == "finished"
