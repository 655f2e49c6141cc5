"""The command `labrl-session`, which runs sessions of runs on disk, one after another.

Everything that a session needs is in the folder of its run, except secrets. A `Worker` sends these with the
environment through a socket, so that they are never written to disk.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from labrl.errors import DONE, BusyFolderError, LabrlError
from labrl.processes import (
    collect_seldom,
    let_threads_sleep,
    name_user_and_home,
    signals_leave,
    take_signals,
)
from labrl.run.atomic import write_json
from labrl.run.run import Run
from labrl.run.session import SessionResult
from labrl.script import take_registered
from labrl.secrets import remembered
from labrl.seeding import session_seed
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
        return _take_orders(given.orders)
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
        with session.errors.tolerated(session.result_json):
            write_json(session.result_json, dataclasses.asdict(result))
        code = error.exit_code
    return code


def _take_orders(descriptor: int) -> int:
    """Run the sessions that a `Worker` orders until it closes the connection.

    If it does so during a session, because its process has ended, the session saves and ends.
    """
    os.set_inheritable(descriptor, False)
    line, orders, state = Connection(descriptor), queue.SimpleQueue[Any](), _State()
    take_signals()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                orders.put(json.loads(line.recv_bytes()))
        if not state.begun:
            os._exit(DONE)
        orders.put(None)
        if state.runs:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="orders", daemon=True).start()
    try:
        with signals_leave():  # while no session handles them
            importlib.import_module("labrl.session.run")  # while the first order is being written
            while (order := orders.get()) is not None:
                state.begun = state.runs = True
                _prepare(order)
                code = _run(order["folder"], order["index"])
                state.runs = False
                sys.stdout.flush()
                sys.stderr.flush()
                with contextlib.suppress(OSError):
                    line.send_bytes(json.dumps(code).encode())
    finally:
        gc.freeze()  # otherwise the interpreter visits all of PyTorch's objects at exit, for 0.3 s
    return DONE


@dataclasses.dataclass
class _State:
    begun: bool = False
    """Whether the first session has begun."""
    runs: bool = False
    """Whether a session runs."""


def _prepare(order: Mapping[str, Any]) -> None:
    """Set what a session finds in its process besides its folder."""
    os.environ.clear()
    os.environ.update(order["environment"])
    remembered.update(order["secrets"])
    sys.path += [folder for folder in order["path"] if folder not in sys.path]
    take_registered(order["modules"])


if __name__ == "__main__":
    sys.exit(main())
