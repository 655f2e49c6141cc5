"""Tests of processes: their signals."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.extended
def test_signal_during_the_start_of_children_is_not_lost() -> None:
    program = """
import os, signal
from labrl.processes.signals import signals_wait_in_children
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(1))
with signals_wait_in_children():
    os.kill(os.getpid(), signal.SIGTERM)
    assert not received
assert received, "the signal was lost"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.extended
def test_programs_started_by_a_process_that_ignores_signals_react_to_them() -> None:
    program = """
import os, signal, subprocess, sys
from labrl.processes.signals import ignore_signals
ignore_signals()
os.kill(os.getpid(), signal.SIGTERM)
child = subprocess.Popen(["sleep", "60"])
child.terminate()
assert child.wait() == -signal.SIGTERM
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
