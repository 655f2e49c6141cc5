"""Entry points of the commands, which handle Ctrl-C before they import anything else."""

from __future__ import annotations

import gc
import signal
import sys

TYPE_CHECKING = False  # typing takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable


def _command(name: str, function: str) -> Callable[[], int]:
    """Return an entry point, a function that returns the exit code.

    name: name of the command; function: name of a function in `labrl.cli`.
    """

    def run() -> int:
        try:
            from labrl.processes.signals import signals_raise
            from labrl.processes.startup import collect_seldom, let_threads_sleep, name_user_and_home

            collect_seldom()
            with signals_raise(name):
                from labrl.processes.output import doing

                if name == "labrl":
                    doing("starting")
                import labrl.cli  # imported here, because it takes a quarter of a second

                name_user_and_home()
                let_threads_sleep()
                return int(vars(labrl.cli)[function]())
        except KeyboardInterrupt as stop:
            print(f"{name}: interrupted", file=sys.stderr)
            from labrl.processes.signals import Stopped

            return stop.exit_code if isinstance(stop, Stopped) else 130  # labrl.errors.INTERRUPTED
        except Exception as error:
            from labrl.processes.output import print_failure  # without secrets, unlike the interpreter

            return print_failure(error)
        finally:
            gc.freeze()  # otherwise the interpreter visits all of PyTorch's objects at exit, for 0.3 s
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # avoids a traceback from the interpreter's exit

    return run


main = _command("labrl", "main")
envs = _command("labrl-envs", "list_envs")
wandb = _command("labrl-wandb", "send_to_wandb")
runs = _command("labrl-runs", "list_runs")
replay = _command("labrl-replay", "replay")
report = _command("labrl-report", "report")
clean = _command("labrl-clean", "clean")
export = _command("labrl-export", "export_policy")
