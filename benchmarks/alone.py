"""One measurement in a process of its own."""

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
"""The result of a measurement: plain numbers by name."""


def environment() -> dict[str, str]:
    """Variables of a measurement's process: this folder is importable, nothing is sent anywhere."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled"}


def alone(module: str, **spec: Any) -> Measured:
    """Run `python -m <module> <spec as JSON>` and return the numbers that it answered with.

    Raises RuntimeError with what the process said where it failed.
    """
    command = [sys.executable, "-m", module, json.dumps(spec)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(measure: Callable[..., Measured]) -> None:
    """Measure what was asked for and print it as the last line, when such a module is run."""
    print("\n" + json.dumps(measure(**json.loads(sys.argv[1]))))


def take_turns(
    measures: dict[str, Callable[[int], Measured]], repeats: int, title: str
) -> dict[str, list[Measured]]:
    """Make every measurement once a round, for `repeats` rounds: A B C, C B A, A B C, and so on.

    measures: by name, each called with the number of the round. Progress goes to the standard error.
    """
    results: dict[str, list[Measured]] = {name: [] for name in measures}
    for round_ in range(repeats):
        for name in list(measures)[:: -1 if round_ % 2 else 1]:
            print(f"{title}, round {round_ + 1} of {repeats}: {name}", file=sys.stderr, flush=True)
            results[name].append(measures[name](round_))
    return results
