"""Measure the time to the help text and to the first step and update of training."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.alone import Measured, environment, take_turns
from benchmarks.report import Report, Row

LABRL = Path(sys.executable).parent / "labrl"
WAITS = {
    "help": "`labrl --help`",
    "cartpole": "`labrl` to the first training step",
    "pong": "`labrl meta=fast_atari env=pong meta.max_session=1` to the first training step",
}


def run(repeats: int, quick: bool) -> Report:
    """Measure the seconds from starting the command."""
    results = take_turns(
        {
            "help": lambda i: _help(),
            "cartpole": lambda i: _training(["env.max_frame=2048"]),
            "pong": lambda i: _training(
                ["meta=fast_atari", "env=pong", "env.max_frame=2048", "meta.max_session=1"]
            ),
        },
        1 if quick else repeats,
        "Startup",
    )
    rows = [Row(WAITS[name], [m["first"] for m in measured], "s") for name, measured in results.items()]
    for name in ("cartpole", "pong"):
        title = WAITS[name].replace("step", "update")
        rows.append(Row(title, [m["update"] for m in results[name]], "s"))
    return Report("startup", "Startup", rows)


def _help() -> Measured:
    began = time.time()
    subprocess.run([LABRL, "--help"], check=True, capture_output=True)
    return {"first": time.time() - began}


def _training(overrides: list[str]) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="labrl-bench-"))
    note = folder / "probe.json"
    command = [
        str(LABRL),
        *overrides,
        "seed=0",
        f"hydra.run.dir={folder / 'run'}",
        "+callbacks.probe._target_=benchmarks.probe.Probe",
        f"+callbacks.probe.path={note}",
    ]
    began = time.time()
    subprocess.run(command, check=True, capture_output=True, env=environment())
    noted = json.loads(note.read_text())
    return {"first": noted["first_step"] - began, "update": noted["first_update"] - began}
