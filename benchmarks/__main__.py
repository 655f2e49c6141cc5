"""python -m benchmarks [case ...] [--repeats N] [--out FOLDER]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import asynchronous, checkpoint, compiled, overhead, replay, scheduling, solve, speed, startup
from benchmarks.problems import PROBLEMS
from benchmarks.report import Report, Results, describe_setting, setting_line

CASES: dict[str, Callable[[int, bool], Report]] = {
    **{case: partial(speed.run, case) for case in PROBLEMS},
    **{f"solve-{name}": partial(solve.run, name) for name in solve.TASKS},
    "overhead": overhead.run,
    "startup": startup.run,
    "replay": replay.run,
    "checkpoint": checkpoint.run,
    "compile": compiled.run,
    "async": asynchronous.run,
    "scheduling": scheduling.run,
}


def main() -> None:
    """Measure the chosen cases; print Markdown, and keep results, table and chart in a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"{', '.join(CASES)}; all without any")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds of each case (5)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=Path("runs/bench"),
        help="where results.json, table.md and the chart are kept and brought up to date (%(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="only to see that it works: the numbers mean nothing"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    setting, results = describe_setting(), Results(arguments.out)
    for case in arguments.cases or CASES:
        report = CASES[case](arguments.repeats, arguments.quick)
        print(report.markdown() + "\n", flush=True)
        # After each case, so that an interruption costs only the case it falls into.
        results.add(report, setting, arguments.repeats)
    print(setting_line(setting))
    print(f"results: {arguments.out}")
    if arguments.quick:
        print("--quick: these numbers mean nothing.", file=sys.stderr)


if __name__ == "__main__":
    main()
