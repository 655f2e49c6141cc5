"""The command `labrl-session`, which runs sessions of run folders one after another.

Everything that a session needs is in its run folder, except secrets, which are environment variables.
"""

from __future__ import annotations

import argparse
import sys

from labrl.processes.output import steady_output
from labrl.processes.signals import signals_raise
from labrl.processes.startup import collect_seldom, let_threads_sleep, name_user_and_home


def main() -> int:
    """Run the command. Return the largest exit code of its sessions."""
    parser = argparse.ArgumentParser(
        prog="labrl-session",
        description="Run sessions of planned run folders one after another, for use by your own scheduler.",
        usage="labrl-session <run folder> <index of the session> [<run folder> <index> ...]",
    )
    parser.add_argument("sessions", nargs="+")
    given = parser.parse_args().sessions
    folders, numbers = given[::2], given[1::2]
    if len(folders) != len(numbers) or not all(number.isdigit() for number in numbers):
        parser.error("each run folder must be followed by the index of a session, as in: runs/a 0 runs/b 0")
    collect_seldom()
    name_user_and_home()
    let_threads_sleep()
    with signals_raise("labrl-session"), steady_output():
        # Imported late: PyTorch must not be imported before its threads are told to sleep.
        from labrl.session.main import carry_out

        orders = zip(folders, numbers, strict=True)
        return max(carry_out({"folder": folder, "index": int(number)})[0] for folder, number in orders)


if __name__ == "__main__":
    sys.exit(main())
