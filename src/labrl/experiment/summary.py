"""The final summary of a grid on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.table import Table

from labrl.analysis.formats import brackets, number
from labrl.analysis.returns import INTERVALS, MEANING, group_return, statistic_name
from labrl.config.keys import shortened
from labrl.errors import first_line
from labrl.experiment.scheduler import returns_of
from labrl.run.experiment import TRIAL_LOG, Experiment, TrialRecord
from labrl.run.folder import Status
from labrl.run.run import Run
from labrl.session.callbacks.display import Display
from labrl.trial.summary import say

MOST_ROWS = 40
"""Maximum number of trials in the table; `experiment.json` contains all trials."""


def varying(records: Collection[TrialRecord]) -> dict[int, list[str]]:
    """Return, by trial number, the overrides of each trial that are not common to all trials."""
    overrides = [set(record.overrides) for record in records]
    shared = set.intersection(*overrides) if overrides else set()
    if len(overrides) == 1:
        return {record.number: list(record.overrides) for record in records}
    return {
        record.number: [override for override in record.overrides if override not in shared]
        for record in records
    }


def own_texts(records: Collection[TrialRecord]) -> dict[int, str]:
    """Return, by trial number, the overrides of each trial that are not common to all trials, as text."""
    return {number: " ".join(map(shortened, own)) for number, own in varying(records).items()}


def said_of(trial: TrialRecord, trials: Collection[TrialRecord], run: Path) -> str:
    """Return a line about a trial that has ended. run: its run folder."""
    told = f"trial {trial.number} {trial.status}: {own_texts(trials)[trial.number]}".rstrip(": ")
    if returns := returns_of(run):
        told += f", final return {_return(returns)}"
    return f"{told}: {first_line(trial.error)}" if trial.error else told


def print_experiment(path: Path, records: Sequence[TrialRecord], status: Status) -> None:
    """Print a table of the trials, a table of the groups, the failures, and the path of the folder."""
    overrides = own_texts(records)
    table = Table(box=None, pad_edge=False)
    for name in ("#", "status", "final return", "overrides"):
        whole = name != "overrides"
        table.add_column(
            name, justify="right" if name == "final return" else "left", overflow="fold", no_wrap=whole
        )
    shown = (
        [record for record in records if record.status != "finished"] if len(records) > MOST_ROWS else records
    )
    for record in shown[:MOST_ROWS]:
        ended = record.status not in ("waiting", "running")
        reached = _return(returns_of(path / record.folder) if ended else ())
        table.add_row(str(record.number), record.status, reached, overrides[record.number])
    if table.row_count:
        say("trials")
        Display.console().print(table)
        say(MEANING, words=True)
    if len(records) > table.row_count:
        say(f"and {len(records) - table.row_count} more trials in experiment.json")
    _print_groups(Experiment.load(path).runs)
    for record in records:
        if record.error:
            told = f"trial {record.number} failed: {first_line(record.error)}"
            Display.console().print(told, style="red", markup=False, highlight=False, soft_wrap=True)
            if (path / record.folder).exists():
                say(f"  run folder: {path / record.folder}")
            own = path / record.folder
            failed = [one.log for one in Run(own).sessions if one.status == "failed"]
            for log in [own / TRIAL_LOG, *failed]:
                if log.exists() and log.stat().st_size:
                    say(f"  log: {log}")
    if status != "finished":
        how = "interrupted; to resume" if status == "interrupted" else "to run unfinished trials again"
        say(f"{how}: {how_to_resume_experiment(path)}")
    say(f"experiment folder: {path}")


def how_to_resume_experiment(path: Path) -> str:
    """Return the shell command that resumes an experiment."""
    return f"labrl -m {shlex.quote(f'+resume={path}')}"


def _print_groups(runs: Sequence[Run]) -> None:
    """Print the final return, with its interval, and the numbers of `env.info_keys` of each group of trials
    that differ only in the seed."""
    # Imported late: training needs no statistics.
    from labrl.analysis.listing import group_scores

    groups = group_scores(runs)
    if all(group["seeds"] < 2 for group in groups):
        return
    what = "the trials differ only in the seed;" if len(groups) == 1 else "groups:"
    statistic = statistic_name(max(group["seeds"] for group in groups))
    say(f"{what} {statistic} of the seeds {INTERVALS}", words=True)
    table = Table(box=None, pad_edge=False)
    infos = list(dict.fromkeys(name for group in groups for name in group["info"]))
    columns = ("final return", *infos, "seeds", *(["group"] if len(groups) > 1 else []))
    for name in columns:
        whole = name != "group"
        table.add_column(name, justify="right" if whole else "left", overflow="fold", no_wrap=whole)
    several = len({group["env"] for group in groups}) > 1
    for group in sorted(
        groups, key=lambda one: (one["env"], one["seeds"] == 0, -(one["final_return"] or 0.0))
    ):
        reached = brackets(group["final_return"], group["low"], group["high"])
        numbers = [number(group["info"].get(name), 3) for name in infos]
        row = [reached, *numbers, str(group["seeds"]), group["name"] + f" on {group['env']}" * several]
        table.add_row(*row[: len(columns)])
    Display.console().print(table)


def _return(returns: Sequence[float]) -> str:
    found = group_return(returns)
    return "-" if found is None else number(found.value)
