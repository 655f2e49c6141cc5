"""Tests of folder locks: one living process holds a folder, and its death releases the lock."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from refusals import busy, refused

from labrl.run.lock import FolderLock
from labrl.run.run import Run

HOLDER = """
import sys, time
from pathlib import Path
from labrl.run.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock of the folder, and return it once it does."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.extended
def test_lock_is_held_by_another_process_until_it_is_killed(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.holder() is None
    assert not lock.path.exists()
    process = holder(tmp_path)
    with busy(tmp_path) as error, FolderLock(tmp_path):
        pass
    assert str(process.pid) in str(error.value)
    assert str(process.pid) in str(lock.holder())
    process.kill()
    process.wait()
    assert lock.holder() is None
    with lock:
        assert str(os.getpid()) in str(FolderLock(tmp_path).holder())


def test_lock_is_held_by_this_process_until_it_is_released(tmp_path: Path) -> None:
    with FolderLock(tmp_path), busy(tmp_path) as error, FolderLock(tmp_path):
        pass
    assert str(os.getpid()) in str(error.value)
    with FolderLock(tmp_path):
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a folder that even root cannot write")
def test_folder_that_is_not_writable_is_refused() -> None:
    with refused("usage", "/proc/self"), FolderLock(Path("/proc/self")):
        pass


def run_until_killed(started: Any) -> None:
    started.set()
    time.sleep(600)


def test_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with FolderLock(tmp_path):
        started = context.Event()
        worker = context.Process(target=run_until_killed, args=(started,))
        worker.start()
        started.wait()
    try:
        with FolderLock(tmp_path):
            pass
    finally:
        worker.kill()
        worker.join()


def test_run_is_locked_while_one_of_its_sessions_is(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.session(0)
    with run.session(3).lock(), busy(run.path), run.lock():
        pass
    with run.lock():
        pass


def test_reader_that_inspects_the_lock_does_not_block_its_owner(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        pass
    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, [looking]).start()
    with FolderLock(tmp_path):
        pass
