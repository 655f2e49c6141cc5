"""The command `labrl-session`, which runs sessions of runs on disk, one after another.

Everything that a session needs is in the folder of its run, except secrets. A `Worker` sends these with the
environment through a socket, so that they are never written to disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from labrl.errors import BusyFolderError, LabrlError
from labrl.processes import collect_seldom, let_threads_sleep, name_user_and_home, signals_leave
from labrl.run.run import Run
from labrl.run.session import SessionResult
from labrl.seeding import session_seed
from labrl.session.worker import take_orders
from labrl.steady_output import refused, steady_output


def main() -> int:
    """Run the command. Return the largest exit code of its sessions."""
    parser = argparse.ArgumentParser(
        prog="labrl-session",
        description="Run sessions of run folders, one after another. labrl starts this command itself.",
        usage="labrl-session <run folder> <number of the session> [<run folder> <number> ...]",
    )
    parser.add_argument("sessions", nargs="*")
    parser.add_argument("--orders", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folders, numbers = given.sessions[::2], given.sessions[1::2]
    collect_seldom()
    name_user_and_home()
    let_threads_sleep()
    if given.orders is not None:
        return take_orders(given.orders, "labrl.session.run", _carry_out)
    if len(folders) != len(numbers) or not folders or not all(number.isdigit() for number in numbers):
        parser.error("needs the number of a session after each run folder, as in: runs/a 0 runs/b 0")
    with signals_leave("labrl-session: interrupted\n"), steady_output():
        return max(_run(folder, int(number)) for folder, number in zip(folders, numbers, strict=True))


def _run(folder: str, index: int) -> int:
    """Run a session, and write a result also if it is refused. Return its exit code."""
    # Imported late: a worker is told its environment before it imports PyTorch.
    from labrl.session.run import run

    try:
        code, _ = run(Run.open(folder), index)
    except BusyFolderError as error:  # another process writes the result
        return refused(error, full_error=False)
    except LabrlError as error:
        opened = Run.open(folder)
        seed = session_seed(opened.read_config()["seed"], index)
        result = SessionResult(index=index, seed=seed, status="failed", error=str(error))
        session = opened.session(index)
        session.write_result(result)
        code = error.exit_code
    return code


def _carry_out(order: Mapping[str, Any]) -> tuple[int, None]:
    return _run(order["folder"], order["index"]), None


if __name__ == "__main__":
    sys.exit(main())
