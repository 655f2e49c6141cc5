"""Runs and experiments in processes of their own, and how tests wait for and find these processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import Command, start_labrl
from paced import PACED

from labrl.processes.signals import SIGNALS
from labrl.run.experiment import Experiment

ENDLESS = ["agent=random", "env.max_frame=1e9", "env.num_envs=1", "meta.tensorboard=false", "seed=1"]
ENDLESS += ["meta.report=false", "meta.videos=false", "meta.log_frequency=50", PACED]

QUICK = [
    "agent=random",
    "env.num_envs=1",
    "env.max_frame=256",
    "meta.log_frequency=128",
    "meta.progress=false",
    "meta.report=false",
    "meta.videos=false",
    "meta.tensorboard=false",
]

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists children by /proc")


@contextmanager
def running(folder: Path, *overrides: str) -> Iterator[Command]:
    """Run the command with this run folder in a process group of its own, as a terminal does."""
    for number in SIGNALS:
        # nohup, or `&` in a script, makes this process ignore signals, and labrl would inherit that.
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    process = start_labrl(f"hydra.run.dir={folder}", *overrides)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def experiment_running(*overrides: str) -> Iterator[Command]:
    """Start the command in its own process group, as a terminal does, and kill it at the end."""
    process = start_labrl("-m", "hydra.sweep.dir=e", *overrides)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def fails_with_seed(seed: int) -> str:
    """Write a callback to the working folder. Return the override with which the trial with this seed fails
    at frame 100."""
    Path("breaking.py").write_text(
        "from labrl.session.callbacks import Callback\n"
        "class Break(Callback):\n"
        "    def step(self, session):\n"
        f"        if session.config.seed == {seed} and session.clock.frame == 100:\n"
        "            raise RuntimeError('a wheel came off')\n"
    )
    return "+callbacks.breaking._target_=breaking.Break"


def frame(folder: Path, index: int = 0) -> int:
    """Return the frame that a session has reported, 0 if none."""
    try:
        return json.loads((folder / f"session_{index}" / "progress.json").read_text())["frame"]
    except FileNotFoundError:
        return 0


def wait_for(condition: Callable[[], Any], process: Command) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def children(process: Command) -> list[int]:
    """Return the process ids of the trial's sessions, in order, which are children of its fork server."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in _children_of(process.pid)}
    servers = [pid for pid, command in commands.items() if "forkserver" in command]
    return [pid for server in servers for pid in _children_of(server)]


def _children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(trial: Path) -> int:
    """Return the id of the process that runs a trial, read from the trial's lock."""
    return int((trial / ".lock").read_text().split()[1])


def trial_statuses(folder: Path) -> list[str]:
    """Return the status of each trial of an experiment."""
    return [trial.status for trial in Experiment.open(folder).trials()]
