"""The commands as the system starts them: an interruption is told while they are still being loaded, too."""

from __future__ import annotations

import sys
from collections.abc import Callable


def _command(name: str, function: str) -> Callable[[], int]:
    """name: as it is typed; function: of `labrl.cli`. What it gives returns the exit code."""

    def run() -> int:
        try:
            import labrl.cli  # here: it takes a quarter of a second
            from labrl.processes import let_threads_sleep, name_user_and_home

            let_threads_sleep()
            name_user_and_home()

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
