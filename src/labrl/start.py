"""The entry points of the commands, which handle Ctrl-C before they load anything else."""

from __future__ import annotations

import gc
import signal
import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable


def _command(name: str, function: str) -> Callable[[], int]:
    """name: as it is typed; function: of `labrl.cli`. What it gives returns the exit code."""

    def run() -> int:
        try:
            from labrl.processes import (
                collect_seldom,
                let_threads_sleep,
                name_user_and_home,
                signals_leave,
            )

            collect_seldom()
            with signals_leave(f"{name}: interrupted\n"):
                from labrl.steady_output import doing

                if name == "labrl":
                    doing("starting", early=True)
                import labrl.cli  # here: it takes a quarter of a second

                name_user_and_home()
                let_threads_sleep()
                return int(vars(labrl.cli)[function]())
        except KeyboardInterrupt as stop:
            print(f"{name}: interrupted", file=sys.stderr)
            from labrl.processes import Stopped

            return stop.exit_code if isinstance(stop, Stopped) else 130  # labrl.errors.INTERRUPTED
        finally:
            gc.freeze()  # the interpreter's end would go through all of PyTorch's objects, for 0.3 s
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done: no traceback of Python's own end

    return run


main = _command("labrl", "main")
envs = _command("labrl-envs", "list_envs")
wandb = _command("labrl-wandb", "send_to_wandb")
runs = _command("labrl-runs", "list_runs")
replay = _command("labrl-replay", "replay")
report = _command("labrl-report", "report")
export = _command("labrl-export", "export_policy")
