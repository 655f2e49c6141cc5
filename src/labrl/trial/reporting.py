"""The report of a run or an experiment, made by a process of its own so that training never waits for plots.

`python -m labrl.trial.reporting <folder>` is that process.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.config.consistency import ABSENT, changes
from labrl.errors import DONE, LabrlError
from labrl.storage.atomic import write_json
from labrl.storage.provenance import read_command, recorded_config
from labrl.storage.run_folder import MARKER, RunFolder
from labrl.trial.past import newest_folder

LONGEST = 300.0
"""Seconds after which a report is given up."""

MOST_WARNINGS = 8
"""Those that a terminal shows."""

_NOT_DEFAULTS = {"seed"}
"""Keys of which no value is a default."""


def make_report(folder: Path) -> Path | None:
    """Statistics, plots and `report.html` of the run or experiment in `folder`; the path of the report.

    None where that failed or Ctrl-C ended it, which is then told in one line. Never raises.
    """
    from labrl.trial.summary import how_to_report, say

    try:
        return _in_a_process(folder)
    except KeyboardInterrupt:
        reason = "interrupted"
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {LONGEST:.0f} seconds"
    except Exception as error:
        reason = str(error) or type(error).__name__
    say(f"no report ({reason}); to make it: {how_to_report(folder)}")
    return None


def _in_a_process(folder: Path) -> Path:
    """Raises RuntimeError with the process's last words where it failed."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "labrl.trial.reporting", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **one_thread},
        start_new_session=True,  # a terminal's Ctrl-C is for this process to tell
    )
    try:
        said, complaint = process.communicate(timeout=LONGEST)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        lines = complaint.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {process.returncode}")
    return Path(said.strip().splitlines()[-1])


def record_changes(folder: RunFolder) -> None:
    """Write `changed.json`: what of the configuration is not the default of its agent and environment.

    Composed with this labrl, so best when the run has just ended. Nothing is written where the
    defaults cannot be composed: a required value, a folder of groups that is gone.
    """
    try:
        command, config = read_command(folder), recorded_config(folder)
        defaults = _defaults(command.choices, command.config_dir)
    except LabrlError as error:
        logging.getLogger(__name__).info("%s: no defaults to compare with: %s", folder.path, error)
        return
    entries = [
        {"key": change.key, **{name: value for name, value in pair if value is not ABSENT}}
        for change in changes(defaults, config)
        if change.key not in _NOT_DEFAULTS
        for pair in [(("default", change.old), ("value", change.new))]
    ]
    write_json(folder.changed, entries)


def _defaults(choices: dict[str, str], config_dir: str | None) -> dict[str, object]:
    from labrl.config.compose import compose, to_plain

    words = [f"{group}={choices[group]}" for group in ("agent", "env") if group in choices]
    return to_plain(compose(words, config_dir))


def report_experiment(folder: Path) -> None:
    """Make the report of an experiment and say where it is."""
    from labrl.trial.summary import say

    report = make_report(folder)
    if report is not None:
        say(f"report: {report}")


def wants_report(folder: Path) -> bool:
    """Whether a trial of the experiment does (`meta.report`)."""
    for path in folder.glob(f"*/{MARKER}"):
        try:
            if recorded_config(RunFolder.open(path.parent))["meta"].get("report", True):
                return True
        except (LabrlError, KeyError, TypeError, AttributeError):
            continue  # of which nobody knows what was wanted
    return False


def report_on(places: Sequence[str], out: str | None, by: str | None, form: str | None) -> None:
    """What `labrl-report` does: build, print the table, and say where the report is.

    places: folders, globs, or `latest`; out: folder for the files; by: see `grouped`; form: of the table:
    `md`, `csv` or `latex`, which then is all that goes to the standard output. Raises InputError.
    """
    from labrl.analysis.report.build import build, build_comparison
    from labrl.analysis.runs import find_runs
    from labrl.analysis.tables import LEGEND, as_csv, as_latex, as_markdown, comparison_rows

    target = Path(os.path.expanduser(out)) if out else None
    places = [str(newest_folder()) if place == "latest" else place for place in places]
    if len(places) == 1 and by is None and Path(os.path.expanduser(places[0])).is_dir():
        folder = Path(os.path.expanduser(places[0]))
        if (folder / MARKER).exists() and not _up_to_date(RunFolder(folder)):
            with contextlib.suppress(OSError):  # someone else's run, or a full disk: then it is not known
                record_changes(RunFolder(folder))
        built = build(folder, target)
    else:
        built = build_comparison(find_runs(places), target or Path("comparison"), by)
    rows = comparison_rows(built.statistics)
    if form is None:
        _print(rows, built.warnings)
        if "search" in built.statistics:  # whose rows are the trials, each on the seeds of the search
            print(built.verdict)
    else:
        table = {"md": as_markdown, "csv": as_csv, "latex": as_latex}[form](rows)
        # a CSV file has no place for a remark
        print({"md": f"{table}\n{LEGEND}\n", "csv": table, "latex": f"% {LEGEND}\n{table}"}[form], end="")
    print(f"report: {built.path.resolve()}", file=sys.stderr if form else sys.stdout)


def _print(rows: Sequence[Mapping[str, Any]], warnings: Sequence[str]) -> None:
    """The table for a terminal, environment by environment."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from labrl.analysis.tables import LEGEND, readable

    console = Console(width=None if sys.stdout.isatty() else 200)
    heads, *body = readable(rows)
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(heads):
        table.add_column(Text(name), justify="left" if place < 2 else "right", overflow="fold")
    for line in body:
        table.add_row(*map(Text, line))
    console.print(table)
    if any(
        row.get(f"{name}_low") is not None for row in rows for name in ("final_return_iqm", "improvement")
    ):
        print(LEGEND)
    for warning in warnings[:MOST_WARNINGS]:
        print(warning)
    if len(warnings) > MOST_WARNINGS:
        print(f"and {len(warnings) - MOST_WARNINGS} more to keep in mind, which the report tells")


def _up_to_date(folder: RunFolder) -> bool:
    """Whether `changed.json` is of the present configuration, which a resume may have changed."""
    try:
        return folder.changed.stat().st_mtime >= folder.config.stat().st_mtime
    except OSError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Make the report of a folder and print its path. Returns the exit code."""
    from labrl.analysis.report.build import build

    parser = argparse.ArgumentParser(prog="python -m labrl.trial.reporting", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run folder or an experiment folder")
    folder = parser.parse_args(argv).folder
    try:
        if (folder / MARKER).exists():
            from labrl.trial.baseline import ensure_baseline

            record_changes(RunFolder.open(folder))
            ensure_baseline(folder)
        print(build(folder).path)
    except LabrlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return DONE


if __name__ == "__main__":
    sys.exit(main())
