"""Wall and CPU time of the commands that a new user types first: medians of three, for reading only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shlex
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = "times"

REPEATS = 3

PR_SET_CHILD_SUBREAPER = 36
"""Constant of Linux's prctl."""

FIRST_ROW = "to the row of frame 8: "
"""Before a command that is killed once it has written its first row."""

COMMANDS = {
    "labrl --help": 0,
    "labrl agent.lrr=1": 2,
    "labrl-envs pong": 0,
    f"{FIRST_ROW}labrl seed=7 meta.log_frequency=8 hydra.run.dir=killed": -signal.SIGKILL,
    "labrl seed=7": 0,
    "labrl seed=7 env.max_frame=2e4 meta.max_opt_step=640": 0,
    "labrl +resume=latest meta.max_opt_step=null": 0,
    "labrl +enjoy=latest episodes=3": 0,
    "labrl-report latest": 0,
    "labrl -m seed=0,1 env.max_frame=2e4": 0,
    "labrl-runs": 0,
}
"""Commands that run one after the other in one folder, with their exit codes."""


def take(before: Any) -> dict[str, Any]:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # to wait for the children of ended children
    seconds: dict[str, list[tuple[float, float]]] = {command: [] for command in COMMANDS}
    load = os.getloadavg()[0]
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory(prefix="labrl-records-") as folder:
            for command in COMMANDS:
                seconds[command].append(measured(command, Path(folder)))
    where = f"{processor()}, {os.cpu_count()} cores, {load:.1f} other processes at the beginning"
    medians = {
        command: [round(statistics.median(column), 2) for column in zip(*both, strict=True)]
        for command, both in seconds.items()
    }
    return {"where": where, **medians}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def measured(command: str, folder: Path) -> tuple[float, float]:
    """Run a command in `folder`, and return its wall and CPU seconds."""
    program, *arguments = shlex.split(command.removeprefix(FIRST_ROW))
    path = str(Path(sys.executable).with_name(program))
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # of records.py, not of users
            os.environ.pop(name, None)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os.execv(path, [path, *arguments])
    rows = folder / "killed" / "session_0" / "train.csv"
    if command.startswith(FIRST_ROW):
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if rows.exists() and rows.read_text().count("\n") > 1:
                os.killpg(child, signal.SIGKILL)
                break
            time.sleep(0.005)
    _, status, used = os.wait4(child, 0)
    wall, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    with contextlib.suppress(ChildProcessError):
        while True:  # what the command started and did not wait for
            _, _, used = os.wait4(-1, 0)
            cpu += used.ru_utime + used.ru_stime
    code = os.waitstatus_to_exitcode(status)
    print(f"{command}: {wall:.2f} s, {cpu:.2f} CPU s", file=sys.stderr, flush=True)
    assert code == COMMANDS[command], f"{command} ended with {code}"
    return wall, cpu


def differences(old: Any, new: Any) -> list[str]:
    """Print both records side by side. No time is a difference."""
    print(f"before: {old['where']}\nnow:    {new['where']}")
    print(f"{'wall before, now':>19} {'CPU before, now':>19}  (seconds)")
    for command in (name for name in {**old, **new} if name != "where"):
        pairs = zip(old.get(command, ("", "")), new.get(command, ("", "")), strict=True)
        print(" ".join(f"{was:>9} {now:>9}" for was, now in pairs), f" {command}")
    return []
