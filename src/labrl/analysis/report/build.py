"""Build statistics, plots and `report.html` of a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from labrl.analysis.figures import Sheet, save_sheets
from labrl.analysis.groups import grouped
from labrl.analysis.report.comparison import comparison_report
from labrl.analysis.report.page import Report, render
from labrl.analysis.report.trial import trial_report
from labrl.analysis.runs import Experiment, Run, find_runs, load_experiment, load_run
from labrl.analysis.statistics import compare, trial_statistics
from labrl.analysis.tables import as_csv, comparison_rows
from labrl.errors import InputError
from labrl.storage.atomic import write_atomic, write_json
from labrl.storage.experiment_folder import is_experiment
from labrl.storage.run_folder import MARKER

REPORT = "report.html"
PLOTS = "plots"
STATISTICS_JSON = "statistics.json"
STATISTICS_CSV = "statistics.csv"


@dataclass(frozen=True)
class Built:
    """Files and statistics that were built."""

    path: Path
    """Path of `report.html`."""
    statistics: Mapping[str, Any]
    """Result of `compare`; for a single run, of its one group."""
    warnings: Sequence[str]
    """Warnings of the report: runs that are unfinished or failed, too few seeds, missing rows."""
    verdict: str = ""
    """The result, in a few sentences."""


def build(folder: str | os.PathLike[str], out: Path | None = None) -> Built:
    """Make the report of the run, the experiment, or all runs below `folder`.

    out: where it is written, beside `plots/` and the statistics; None: into the folder itself. Raises
    InputError where there is no run, or the files cannot be written.
    """
    path = Path(os.path.abspath(Path(folder).expanduser()))
    if is_experiment(path):
        return build_experiment(load_experiment(path), out)
    if (path / MARKER).exists():
        return build_run(load_run(path), out)
    return build_comparison(find_runs([path]), out or path)


def build_run(run: Run, out: Path | None = None) -> Built:
    """The report of one run; its `statistics.csv` has a row for each session."""
    comparison = compare(grouped([run]))
    statistics = trial_statistics(run, group=comparison["envs"][0]["groups"][0])
    report, sheets = trial_report(run, statistics)
    table = pl.DataFrame(statistics["sessions"], infer_schema_length=None)
    path = _write(out or run.path, report, sheets, statistics, table)
    return Built(path, comparison, report.warnings, report.verdict)


def build_experiment(experiment: Experiment, out: Path | None = None) -> Built:
    """The report of an experiment: its trials beside each other."""
    kind = "Search" if experiment.info.get("kind") == "search" else "Experiment"
    title = f"{kind} {experiment.path.name}"
    return build_comparison(experiment.runs, out or experiment.path, title=title, experiment=experiment)


def build_comparison(
    runs: Sequence[Run],
    out: Path,
    by: str | None = None,
    title: str = "Comparison",
    experiment: Experiment | None = None,
) -> Built:
    """The report of any runs beside each other; its `statistics.csv` has a row for each group.

    by: as `grouped`; experiment: whose runs they are, if all are of one.
    """
    if not runs:
        place = experiment.path if experiment else out
        raise InputError(
            f"{place}: no trial has begun, so there is nothing to report yet",
            code="not-found",
            key=str(place),
        )
    report, sheets, statistics = comparison_report(grouped(runs, by), out, title, experiment)
    path = _write(out, report, sheets, statistics, comparison_rows(statistics))
    return Built(path, statistics, report.warnings, report.verdict)


def _write(
    folder: Path, report: Report, sheets: Sequence[Sheet], statistics: dict[str, Any], table: pl.DataFrame
) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_sheets(sheets, folder / PLOTS)
        write_json(folder / STATISTICS_JSON, statistics)
        write_atomic(folder / STATISTICS_CSV, as_csv(table))
        write_atomic(folder / REPORT, render(report, folder))
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{folder} cannot be written ({reason}). Name another folder with --out <folder>",
            code="usage",
            key=str(folder),
        ) from error
    return folder / REPORT
