"""Run measurements in processes of their own, several of them in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Measured = dict[str, Any]
"""The result of a measurement: numbers by name."""


def environment() -> dict[str, str]:
    """Return the environment variables of a measurement's process: importable benchmarks, no W&B."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled"}


def alone(module: str, **spec: Any) -> Measured:
    """Run `python -m <module> <spec as JSON>` and return the numbers that it prints.

    Raises RuntimeError with the output of the process if it fails.
    """
    command = [sys.executable, "-m", module, json.dumps(spec)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(measure: Callable[..., Measured]) -> None:
    """Call `measure` with the arguments given as JSON on the command line, and print the result as JSON."""
    print("\n" + json.dumps(measure(**json.loads(sys.argv[1]))))


def take_turns(
    measures: dict[str, Callable[[int], Measured]], repeats: int, title: str
) -> dict[str, list[Measured]]:
    """Make every measurement once per round in alternating order: A B C, C B A, A B C, and so on.

    measures: functions by name, called with the number of the round. repeats: number of rounds. Progress is
    printed to the standard error.
    """
    results: dict[str, list[Measured]] = {name: [] for name in measures}
    for round_ in range(repeats):
        for name in list(measures)[:: -1 if round_ % 2 else 1]:
            print(f"{title}, round {round_ + 1} of {repeats}: {name}", file=sys.stderr, flush=True)
            results[name].append(measures[name](round_))
            print(f"  {json.dumps(results[name][-1])}", file=sys.stderr, flush=True)
    return results
