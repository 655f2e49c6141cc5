"""`python -m labrl.analysis <folder> [--out DIR]`: statistics, plots and report of a run or experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from labrl.errors import DONE, LabrlError


def main(argv: Sequence[str] | None = None) -> int:
    """Make the report of a folder and print its path. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m labrl.analysis", description=__doc__)
    parser.add_argument("folder", help="a run folder, an experiment folder, or a folder with runs below it")
    parser.add_argument("--out", type=Path, help="where the files go; by default into the folder itself")
    words = parser.parse_args(argv)
    from labrl.analysis.report.build import build

    try:
        print(build(words.folder, words.out).path)
    except LabrlError as error:
        print(f"labrl: {error}", file=sys.stderr)
        return error.exit_code
    return DONE


if __name__ == "__main__":
    sys.exit(main())
