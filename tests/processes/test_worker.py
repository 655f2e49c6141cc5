"""Tests of workers: they end with the session, and their errors are raised in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labrl.processes import worker
from labrl.processes.worker import ParentConnection, Worker, WorkerError


def divide(line: ParentConnection, divisor: int) -> None:
    line.send(1)
    line.receive()
    1 / divisor


def exit_with_3(line: ParentConnection) -> None:
    sys.exit(3)


def sleep_forever(line: ParentConnection) -> None:
    line.send(os.getpid())
    time.sleep(600)


def wait_for_stop(line: ParentConnection) -> None:
    line.send(os.getpid())
    while not line.stopped():
        time.sleep(0.01)


@contextmanager
def started(tmp_path: Path, work: Any, *arguments: Any) -> Iterator[Worker]:
    process = Worker("the worker", work, arguments, tmp_path / "session.log")
    try:
        yield process
    finally:
        process.close()
        process.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc/self").exists() else True


def test_error_is_raised_with_its_traceback_as_the_cause(tmp_path: Path) -> None:
    with started(tmp_path, divide, 0) as process:
        assert process.receive() == 1
        process.send("go on")
        with pytest.raises(WorkerError) as raised:
            process.receive()
    assert raised.value.code == "lost-process"
    assert "ZeroDivisionError" in str(raised.value)
    assert "1 / divisor" in str(raised.value.__cause__)


def test_exit_and_kill_are_reported_as_lost_process(tmp_path: Path) -> None:
    with started(tmp_path, exit_with_3) as process, pytest.raises(WorkerError) as raised:
        process.receive()
    assert "SystemExit: 3" in str(raised.value)
    with started(tmp_path, wait_for_stop) as process:
        os.kill(process.receive(), signal.SIGKILL)
        for talk in (process.receive, lambda: process.send(1)):
            with pytest.raises(WorkerError) as raised:
                talk()
            assert "the worker" in str(raised.value)
            assert "SIGKILL" in str(raised.value)


def test_worker_ignores_signals_and_ends_with_the_session(tmp_path: Path) -> None:
    with started(tmp_path, wait_for_stop) as process:
        pid = process.receive()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        assert not process.has_message(0.2)
    assert not alive(pid)


def test_hanging_worker_logs_its_stack_and_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LEAVE_SECONDS", 0.1)
    log = tmp_path / "session.log"
    with started(tmp_path, sleep_forever) as process:
        pid = process.receive()
        process.signal(signal.SIGUSR2)
        deadline = time.monotonic() + 60
        while "sleep_forever" not in log.read_text():
            assert alive(pid)
            assert time.monotonic() < deadline, "the worker did not log its stack within 60 s"
            time.sleep(0.01)
    assert not alive(pid)


@pytest.mark.extended
def test_worker_ends_when_its_session_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(
        f"import sys, time; sys.path.append({str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nfrom labrl.processes.worker import Worker\n"
        "from test_worker import sleep_forever\n"
        "if __name__ == '__main__':\n"
        f"    process = Worker('worker', sleep_forever, (), Path({str(tmp_path / 'log')!r}))\n"
        "    print(process.receive(), flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        pid = int(session.stdout.readline())
        session.kill()
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline, "the worker still runs 60 s after its session was killed"
        time.sleep(0.01)
