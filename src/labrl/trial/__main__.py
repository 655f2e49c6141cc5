"""The process of a `Worker` that trains the planned runs of an experiment, one after another."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labrl.errors import FAILED, LabrlError
from labrl.processes import collect_seldom, let_threads_sleep, name_user_and_home
from labrl.run.run import Run
from labrl.run.session_log import print_without_modules
from labrl.secrets import redact
from labrl.session.worker import take_orders
from labrl.steady_output import LabelledLines, print_traceback, printing_to


def main() -> int:
    """Run the command. Return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m labrl.trial")
    parser.add_argument("--orders", type=int, required=True)
    given = parser.parse_args()
    collect_seldom()
    name_user_and_home()
    let_threads_sleep()
    sys.stdout, sys.stderr = LabelledLines(sys.stdout), LabelledLines(sys.stderr)
    print_without_modules()
    return take_orders(given.orders, "labrl.trial.trial", _carry_out)


def _carry_out(order: Mapping[str, Any]) -> tuple[int, str | None]:
    """Train a run, whose output gets the label of its trial or goes to a log."""
    from labrl.envs.sample import kept_for_the_run
    from labrl.trial.trial import train

    label, log = order["label"], order["log"]
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, LabelledLines)
        stream.label = "" if log else label
    os.chdir(order["cwd"])
    with printing_to(Path(order["folder"], log) if log else None), kept_for_the_run():
        try:
            return train(Run.open(order["folder"])).exit_code, None
        except Exception as error:
            is_refusal = isinstance(error, LabrlError)
            if (log and not is_refusal) or os.environ.get("HYDRA_FULL_ERROR") == "1":
                print_traceback(error)
            if isinstance(error, LabrlError):
                return error.exit_code, str(error)
            return FAILED, redact(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
