"""python -m benchmarks [case ...] [--repeats N] [--json FILE]"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import asynchronous, checkpoint, compiled, overhead, replay, solve, speed, startup
from benchmarks.problems import PROBLEMS
from benchmarks.report import Report, describe_setting, setting_line

CASES: dict[str, Callable[[int, bool], Report]] = {
    **{case: partial(speed.run, case) for case in PROBLEMS},
    "solve": solve.run,
    "overhead": overhead.run,
    "startup": startup.run,
    "replay": replay.run,
    "checkpoint": checkpoint.run,
    "compile": compiled.run,
    "async": asynchronous.run,
}


def main() -> None:
    """Measure the chosen cases; print Markdown, and write all numbers as JSON where asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"{', '.join(CASES)}; all without any")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds of each case (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there, too")
    parser.add_argument(
        "--quick", action="store_true", help="only to see that it works: the numbers mean nothing"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    setting = describe_setting()
    reports = []
    for case in arguments.cases or CASES:
        report = CASES[case](arguments.repeats, arguments.quick)
        reports.append(report.plain())
        print(report.markdown() + "\n", flush=True)
        if arguments.json is not None:
            # After each case, so that an interruption costs only the case it falls into.
            whole = {"setting": setting, "repeats": arguments.repeats, "cases": reports}
            arguments.json.write_text(json.dumps(whole, indent=2) + "\n")
    print(setting_line(setting, arguments.repeats))
    if arguments.quick:
        print("--quick: these numbers mean nothing.", file=sys.stderr)


if __name__ == "__main__":
    main()
