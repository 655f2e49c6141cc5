"""Build the statistics, plots and `report.html` of a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from labrl.analysis.figures import Sheet, save_sheets
from labrl.analysis.groups import group_runs
from labrl.analysis.report.comparison import comparison_report
from labrl.analysis.report.page import render
from labrl.analysis.report.trial import trial_report
from labrl.analysis.statistics import compare, trial_statistics
from labrl.analysis.tables import as_csv, comparison_rows
from labrl.errors import InputError
from labrl.run.atomic import write_atomic, write_json
from labrl.run.experiment import Experiment
from labrl.run.find import find_runs, load_run
from labrl.run.folder import REPORT_FILES, is_experiment
from labrl.run.run import MARKER, Run


class Built(NamedTuple):
    """The files and statistics that were built."""

    path: Path
    """Path of `report.html`."""
    statistics: Mapping[str, Any]
    """Result of `compare`. If there is a single run, it is the only group."""
    warnings: Sequence[str]
    """Warnings of the report: unfinished or failed runs, too few seeds, missing rows."""
    verdict: str = ""
    """The result in a few sentences."""

    @property
    def compares_groups(self) -> bool:
        """Whether there are several groups in an environment."""
        return any(len(env["groups"]) > 1 for env in self.statistics["envs"])


def build(folder: str | os.PathLike[str], out: Path | None = None) -> Built:
    """Build the report of a run, of an experiment, or of all runs below `folder`.

    The `statistics.csv` of a run has a row for each session; otherwise it has a row for each group. out:
    folder for the report, `plots/` and the statistics; None for `folder` itself. Raises InputError if there
    is no run, or if the files cannot be written.
    """
    path = Path(os.path.abspath(Path(folder).expanduser()))
    if is_experiment(path):
        experiment = Experiment.load(path)
        kind = "Search" if experiment.info.get("kind") == "search" else "Experiment"
        return build_comparison(experiment.runs, out or path, None, f"{kind} {path.name}", experiment)
    if not (path / MARKER).exists():
        return build_comparison(find_runs([path]), out or path)
    run = load_run(path)
    comparison = compare(group_runs([run]))
    statistics = trial_statistics(run, group=comparison["envs"][0]["groups"][0])
    content, sheets = trial_report(run, statistics)
    table = pl.DataFrame(statistics["sessions"], infer_schema_length=None)
    written = _write(out or path, render("trial", content, out or path), sheets, statistics, table)
    return Built(written, comparison, content["warnings"], content["verdict"])


def build_comparison(
    runs: Sequence[Run],
    out: Path,
    by: str | None = None,
    title: str = "Comparison",
    experiment: Experiment | None = None,
) -> Built:
    """Build a report that compares runs.

    by: see `group_runs`; experiment: the experiment that contains all runs; None if there is no such
    experiment.
    """
    if not runs:
        place = experiment.path if experiment else out
        raise InputError.not_found(place, "no trial has started, so there is nothing to report yet")
    content, sheets, statistics = comparison_report(group_runs(runs, by), out, title, experiment)
    written = _write(out, render("groups", content, out), sheets, statistics, comparison_rows(statistics))
    return Built(written, statistics, content["warnings"], content["verdict"])


def _write(
    folder: Path, page: str, sheets: Sequence[Sheet], statistics: dict[str, Any], table: pl.DataFrame
) -> Path:
    html, plots, csv, json = (folder / name for name in REPORT_FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_sheets(sheets, plots)
        write_json(json, statistics)
        write_atomic(csv, as_csv(table))
        write_atomic(html, page)
    except OSError as error:
        why = f"cannot be written ({error.strerror or error})"
        raise InputError.usage(folder, why, "Choose another folder with --out <folder>") from error
    return html
