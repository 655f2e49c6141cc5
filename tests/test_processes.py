"""Processes that work for another one end when it does, and outlast what is said to all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from labrl.processes import how_it_ended

ORPHAN = """
import signal, sys, time
from labrl.processes import stop_when_orphaned

stop_when_orphaned()
print("begun", flush=True)
try:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    time.sleep(60)
finally:
    open(sys.argv[1], "w").write("told")
"""

LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def test_a_process_whose_starter_was_killed_is_told_to_stop(tmp_path: Path) -> None:
    word = tmp_path / "word"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, ORPHAN, str(word)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "begun\n"
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    for _ in range(300):
        if word.exists():
            break
        time.sleep(0.1)
    assert word.read_text() == "told"


def test_a_signal_that_comes_while_children_are_started_is_not_lost() -> None:
    program = """
import os, signal
from labrl.processes import signals_wait_in_children
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
with signals_wait_in_children():
    os.kill(os.getpid(), signal.SIGTERM)
    assert not heard
assert heard, "lost"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_programs_of_a_process_that_heeds_no_signals_heed_them() -> None:
    program = """
import os, signal, subprocess, sys
from labrl.processes import ignore_signals
ignore_signals()
os.kill(os.getpid(), signal.SIGTERM)
child = subprocess.Popen(["sleep", "60"])
child.terminate()
assert child.wait() == -signal.SIGTERM
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_how_a_process_ended_is_told_in_words() -> None:
    assert "3" in how_it_ended(3)
    assert "SIGKILL" in how_it_ended(-signal.SIGKILL)
    assert "SIGSEGV" in how_it_ended(-signal.SIGSEGV)
    assert "99" in how_it_ended(-99)
    assert len(how_it_ended(-signal.SIGKILL)) > len(how_it_ended(-signal.SIGSEGV)), "a hint at memory"
