"""python -m benchmarks [case ...] [--repeats N] [--out FOLDER]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from benchmarks import (
    asynchronous,
    checkpoint,
    compiled,
    gpu,
    overhead,
    replay,
    scheduling,
    solve,
    speed,
    startup,
)
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
    "gpu": gpu.run,
    "gpu-sessions": gpu.run_sessions,
}

NEED_A_GPU = {"gpu", "gpu-sessions"}

GROUPS = {"solve": tuple(f"solve-{name}" for name in solve.TASKS)}
"""Names that stand for several cases."""


def main() -> None:
    """Measure the chosen cases, print them as Markdown, and update results, table and chart in a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="case",
        help=f"{', '.join([*GROUPS, *CASES])} (default: all that this machine can run)",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="rounds of each case (default: 5)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=Path("runs/bench"),
        help="folder of results.json, table.md and the chart (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="check that the cases run; the numbers mean nothing"
    )
    parser.add_argument(
        "--shared", action="store_true", help="other programs use the machine too, so frames count, not times"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES) - set(GROUPS))
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)} (choose from {', '.join([*GROUPS, *CASES])})")
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    found = torch.cuda.is_available() or arguments.quick
    lacking = sorted(NEED_A_GPU.intersection(arguments.cases))
    if lacking and not found:
        parser.error(
            f"{', '.join(lacking)} needs a GPU, and PyTorch finds none here; --quick tries it on the CPU"
        )
    chosen = arguments.cases or [case for case in CASES if found or case not in NEED_A_GPU]
    setting = describe_setting() | {"shared": arguments.shared, "quick": arguments.quick}
    results = Results(arguments.out)
    for case in chain.from_iterable(GROUPS.get(case, (case,)) for case in chosen):
        report = CASES[case](arguments.repeats, arguments.quick)
        print(report.markdown() + "\n", flush=True)
        # Results are written after each case, so that an interruption loses only the running case.
        results.add(report, setting, arguments.repeats)
    print(setting_line(setting))
    print(f"results: {arguments.out}")
    if arguments.quick:
        print("--quick: these numbers mean nothing.", file=sys.stderr)


if __name__ == "__main__":
    main()
