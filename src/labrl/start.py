"""The commands as the system starts them: an interruption is told while they are still being loaded, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping


def wait_kindly(environment: MutableMapping[str, str]) -> None:
    """Have threads of a matrix product that wait for each other sleep soon, before torch is loaded.

    They would count to 300,000 first: beside other busy processes, on a core that the thread they wait for
    could have had. With 10,000 SAC makes 2.6 times the frames there, and as many as before alone. Nothing
    is changed where the user has said how threads wait.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "10000")


def _command(name: str, function: str) -> Callable[[], int]:
    """name: as it is typed; function: of `labrl.cli`. What it gives returns the exit code."""

    def run() -> int:
        wait_kindly(os.environ)
        try:
            import labrl.cli  # here: it takes a quarter of a second

            return int(getattr(labrl.cli, function)())
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130  # labrl.lab.outcome.INTERRUPTED, which it may have been too early to load

    return run


main = _command("labrl", "main")
envs = _command("labrl-envs", "list_envs")
wandb = _command("labrl-wandb", "send_to_wandb")
runs = _command("labrl-runs", "list_runs")
replay = _command("labrl-replay", "replay")
report = _command("labrl-report", "report")
