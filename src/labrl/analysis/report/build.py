"""From a folder to its statistics, plots and `report.html`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labrl.analysis.comparison import compare
from labrl.analysis.files import compare_experiment, save_statistics
from labrl.analysis.groups import by_env, grouped
from labrl.analysis.plots.colours import group_styles
from labrl.analysis.plots.comparison import plot_comparison, plot_setting
from labrl.analysis.plots.figures import styled
from labrl.analysis.plots.trial import plot_trial
from labrl.analysis.report.comparison import Comparison, comparison_report
from labrl.analysis.report.formats import moment, typed
from labrl.analysis.report.render import render
from labrl.analysis.report.search import search_sections
from labrl.analysis.report.sections import Report
from labrl.analysis.report.trial import trial_report
from labrl.analysis.runs import Experiment, Run, find_runs, load_experiment, load_run
from labrl.analysis.search import read_search
from labrl.analysis.settings import settings
from labrl.analysis.statistics import trial_statistics
from labrl.analysis.tables import comparison_rows
from labrl.errors import InputError
from labrl.storage.atomic import write_atomic
from labrl.storage.experiment_folder import is_experiment
from labrl.storage.run_folder import MARKER

REPORT = "report.html"
PLOTS = "plots"


@dataclass(frozen=True)
class Built:
    """What was made."""

    path: Path
    """Of `report.html`."""
    statistics: Mapping[str, Any]
    """Of `compare`: of a single run, of its one group."""
    warnings: Sequence[str]
    """What the report asks to keep in mind: runs that still go on or failed, too few seeds, missing rows."""
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
    """The report of one run."""
    target = _target(out or run.path)
    statistics = trial_statistics(run)
    with _writing(target):
        plot_trial(run, target / PLOTS)
        save_statistics(target, statistics, statistics["sessions"])
        report = trial_report(run, statistics)
        return Built(_write(report, target), compare(grouped([run])), report.warnings, report.verdict)


def build_experiment(experiment: Experiment, out: Path | None = None) -> Built:
    """The report of an experiment: its trials beside each other."""
    info = experiment.info
    return build_comparison(
        experiment.runs,
        out or experiment.path,
        experiment=experiment,
        title=f"{'Search' if info.get('kind') == 'search' else 'Experiment'} {experiment.path.name}",
        subtitle=moment(info["created"]) if info.get("created") else "",
        status=experiment.status,
        command=typed(info.get("command")),
        resumes=info.get("resumes") or (),
        warnings=experiment.warnings,
        trials=[_found(trial, experiment.path) for trial in info.get("trials", [])],
        search=read_search(info),
        extra=search_sections(experiment),
    )


def _found(trial: Mapping[str, Any], experiment: Path) -> dict[str, Any]:
    """A trial of `experiment.json` whose folder is known wherever the report lies."""
    folder = trial.get("folder")
    return {**trial, "folder": None if folder is None else str(experiment.resolve() / str(folder))}


def build_comparison(
    runs: Sequence[Run],
    out: Path,
    by: str | None = None,
    title: str = "Comparison",
    experiment: Experiment | None = None,
    **facts: Any,
) -> Built:
    """The report of any runs beside each other.

    by: as `grouped`; experiment: whose runs they are, if all are of one; facts: further ones of Comparison.
    """
    if not runs:
        place = experiment.path if experiment else out
        raise InputError(
            f"{place}: no trial has begun, so there is nothing to report yet",
            code="not-found",
            key=str(place),
        )
    groups = grouped(runs, by)
    target = _target(out)
    statistics = compare(groups) if experiment is None else compare_experiment(experiment, groups)
    status = facts.pop("status", "running" if any(run.status == "running" for run in runs) else "finished")
    comparison = Comparison(title, groups, statistics, target, status=status, **facts)
    with _writing(target):
        _plot(comparison, target / PLOTS)
        save_statistics(target, statistics, comparison_rows(statistics))
        report = comparison_report(comparison)
        return Built(_write(report, target), statistics, report.warnings, report.verdict)


def _plot(comparison: Comparison, folder: Path) -> None:
    envs = comparison.statistics["envs"]
    groups = by_env(comparison.groups)
    with styled():
        for entry in envs:
            suffix = f"_{_slug(entry['env'])}" if len(envs) > 1 else ""
            compared = comparison.compared(entry["env"])
            plot_comparison(compared, folder, suffix)
            agents = [one.group.agent for one in compared]
            different = list(dict.fromkeys(agents))
            styles = dict(zip(different, group_styles(different), strict=True))
            for setting in settings(groups[entry["env"]], entry["groups"]):
                plot_setting(setting, styles, agents, folder, suffix)


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)


def _target(folder: Path) -> Path:
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{folder} cannot be written ({reason}). Name another folder with --out <folder>",
            code="usage",
            key=str(folder),
        ) from error


def _write(report: Report, folder: Path) -> Path:
    write_atomic(folder / REPORT, render(report, folder))
    return folder / REPORT
