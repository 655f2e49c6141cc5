"""The table of run folders (`labrl-runs`), and the trials of an experiment from the best to the worst."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from labrl.analysis.formats import align_columns, score, short_number, shorten, time_unit, widths_that_fit
from labrl.analysis.groups import differing_keys, filter_runs, group_runs
from labrl.analysis.returns import collect_info, group_return
from labrl.analysis.search_result import Confirmed, SearchResult, read_search, runs_of
from labrl.analysis.statistics import reasons_to_leave_out
from labrl.errors import InputError, LabrlError
from labrl.run.experiment import Experiment
from labrl.run.find import find_runs
from labrl.run.run import Run

COLUMNS = ("status", "agent", "env", "frames", "final return", "seeds", "age", "folder")

_DISPENSABLE = ("seeds", "frames", "age", "agent", "env", "final return")
"""Columns that are omitted if the terminal is narrow, in this order."""

_RIGHT = ("frames", "final return", "age")

MOST_GROUPS = 8
"""Largest number of groups of an experiment that the table shows."""

MOST_TRIALS = 20
"""Largest number of trials that a message lists."""

_log = logging.getLogger(__name__)


def entries(root: Path, filters: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the runs and experiments at or below `root` that match all `filters`, newest first, as plain
    data.

    filters: see `filter_runs`; an experiment is included with its matching trials. Experiments that cannot be
    read are skipped with a warning. Raises InputError if there is no such folder, if it contains no run, or
    if no run has the key of a filter.

    Each entry has: `folder`, relative to `root`; `kind`: `run`, `grid` or `search`; `status`, `agent`, `env`,
    `created`; `frames`: the number of frames of the session that came furthest; `max_frame`: the frame budget
    of a session, or the largest budget of the trials; `sessions` and `max_session`: the numbers of finished
    and of planned sessions; `trials`: the number of trials, which for a search excludes the runs that confirm
    its best trials; `groups`: `name`, `agent`, `env`, `overrides` (the keys in which groups differ), `trials`
    and the return, for each group of trials that differ at most in the seed, or for the winner of a confirmed
    search and the default on fresh seeds; `final_return`, `low`, `high` and `seeds`: the return of a single
    group, or of the best configuration of a search, with its 95 % interval and its number of sessions, None
    if there is no such return; `info`: the numbers of `env.info_keys` of the same sessions, by column;
    `best_in_the_search`: `trial`, `objective`, `value` and `of`, the number of trials with a value.
    """
    if not root.expanduser().is_dir():
        raise InputError.not_found(root, "no such folder", "Set another one with labrl-runs --root <folder>")
    runs = find_runs([root])
    own = Path(os.path.abspath(root.expanduser()))
    found = []
    by_experiment: dict[Path, list[Run]] = {}
    for run in filter_runs(runs, filters, root):
        home = run.experiment
        if home is not None and own in home.parents:
            by_experiment.setdefault(home, []).append(run)
        else:
            about = {"folder": run.path, "kind": "run", "status": run.status, "created": run.created}
            found.append(_entry(about, [run], group_scores([run])))
    for home, trials in by_experiment.items():
        try:
            found.append(_of_experiment(Experiment.load(home), trials))
        except LabrlError as error:
            _log.warning("skipped: %s", error)
    for entry in found:
        path = entry["folder"]
        entry["folder"] = path.name if path == own else os.path.relpath(path, own)
    return sorted(found, key=lambda entry: (entry["created"], entry["folder"]), reverse=True)


def as_table(found: Iterable[Mapping[str, Any]], width: int | None = None) -> str:
    """Return a table with a line for each entry, at most `width` characters wide if `width` is given.

    An experiment with several groups has an additional line for each group, up to MOST_GROUPS groups. To fit
    the width, columns are omitted first, and then folder names are cut in the middle.
    """
    lines = [row for entry in found for row in _rows(entry)]
    infos = dict.fromkeys(name for row in lines for name in row if name not in COLUMNS)
    columns = [*COLUMNS[:5], *infos, *COLUMNS[5:]]  # after the return
    cells = [{name: row.get(name, "") for name in columns} for row in lines]
    widths = widths_that_fit(cells, columns, [*_DISPENSABLE[:-1], *infos, _DISPENSABLE[-1]], width)
    total = sum(widths.values()) + 2 * (len(widths) - 1)
    if width is not None and total > width:
        widths["folder"] = max(12, width - (total - widths["folder"]))
    rows = [dict(zip(columns, columns, strict=True)), *cells]
    shown = [[shorten(row[name], widths[name]) for name in widths] for row in rows]
    return "\n".join(
        align_columns(shown, [place for place, name in enumerate(widths) if name in (*_RIGHT, *infos)])
    )


def _of_experiment(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the entry of an experiment. runs: the matching runs in its folder."""
    about = {
        "folder": experiment.path,
        "kind": str(experiment.info.get("kind") or "experiment"),
        "status": experiment.status,
        "created": str(experiment.info.get("created") or min(run.created for run in runs)),
    }
    search = read_search(experiment.info)
    if search is None:
        return _entry(about, runs, group_scores(runs))
    # The other runs confirm the best trials.
    trials = {number: run for run in runs if (number := experiment.number_of(run)) is not None}
    scores = []
    if search.winner is not None and search.winner.trial in trials:
        for one in search.finalists:
            found = _returned(counted_outcomes(runs_of(one, experiment.path)))
            names = {"name": one.name, "agent": runs[0].agent, "env": runs[0].env, "overrides": one.params}
            scores.append({**found, **names, "trials": len(one.folders)})
    entry = _entry(about, list(trials.values()) or runs, scores)
    ended = [trial for trial in search.ranked() if trial.number in trials]
    if ended:
        entry["best_in_the_search"] = {
            "trial": ended[0].number,
            "objective": search.objective,
            "value": ended[0].value,
            "of": sum(trial.number in trials for trial in search.valued),
        }
    return entry


def _entry(
    about: Mapping[str, Any], trials: Sequence[Run], groups: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    outcomes = [session.outcome for run in trials for session in run.sessions]
    expected = (run.config.get("meta", {}).get("max_session") or len(run.sessions) for run in trials)
    # The best configuration of a search comes first.
    single = groups[0] if len(groups) == 1 or (groups and about["kind"] == "search") else _returned(())
    kinds = {"agent": {run.agent for run in trials}, "env": {run.env for run in trials}}
    return {
        **{name: single[name] for name in ("final_return", "low", "high", "seeds", "info")},
        **about,
        **{name: min(found) if len(found) == 1 else f"{len(found)} kinds" for name, found in kinds.items()},
        "frames": max((int(outcome.get("frame") or 0) for outcome in outcomes), default=0),
        "max_frame": max((run.max_frame or 0 for run in trials), default=0) or None,
        "sessions": sum(outcome["status"] == "finished" for outcome in outcomes),
        "max_session": sum(map(int, expected)),
        "trials": len(trials),
        "groups": groups,
        "best_in_the_search": None,
    }


def group_scores(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the final return of each group of `runs`."""
    groups = group_runs(runs)
    differing = differing_keys([group.runs[0] for group in groups]) if len(groups) > 1 else {}
    return [
        {
            **_returned(counted_outcomes(group.runs)),
            "name": group.name,
            "agent": group.runs[0].agent,
            "env": group.env,
            "overrides": {key: values[place] for key, values in differing.items()},
            "trials": len(group.runs),
        }
        for place, group in enumerate(groups)
    ]


def _returned(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    returns = [float(outcome["final_return"]) for outcome in outcomes]
    value, low, high, seeds = group_return(returns) or (None, None, None, 0)
    numbers = collect_info([outcome.get("info", {}) for outcome in outcomes])
    info = {name: found.value for name, values in numbers.items() if (found := group_return(values))}
    return {"final_return": value, "low": low, "high": high, "seeds": seeds, "info": info}


def counted_outcomes(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the outcomes of the sessions of a group that count in the statistics."""
    sessions = [(run, session) for run in runs for session in run.sessions]
    reasons = reasons_to_leave_out(sessions, of_tables=False)
    counted = [one for (_, one), reason in zip(sessions, reasons, strict=True) if reason is None]
    return [session.outcome for session in counted]


def _row(*cells: str, info: Mapping[str, float]) -> dict[str, str]:
    numbers = {name: short_number(value, 3) for name, value in info.items()}
    return {**dict(zip(COLUMNS, cells, strict=True)), **numbers}


def _rows(entry: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the cells of an entry's line, and of a line for each of its groups if the groups are listed
    separately."""
    kind, groups, trials, best = (entry[key] for key in ("kind", "groups", "trials", "best_in_the_search"))
    seeds = f"{entry['sessions']}/{entry['max_session']}"
    if kind != "run":
        seeds += f" in {trials} trial{'' if trials == 1 else 's'}"
    several = kind != "search" and len(groups) > 1
    reached = f"{len(groups)} groups" if several else score(entry["final_return"])
    if kind == "search" and groups:
        seeds += f", {entry['seeds']} fresh"
    elif best is not None and best["objective"] in ("final_return", "best_return"):
        reached = f"best of {best['of']}: {score(best['value'])}"
    frames, budget = entry["frames"], entry["max_frame"]
    played = short_number(min(frames, budget or frames), 3) + (
        f"/{short_number(budget, 3)}" if budget else ""
    )
    age = "-"
    with suppress(ValueError, TypeError):
        seconds = (datetime.now(UTC) - datetime.fromisoformat(entry["created"])).total_seconds()
        unit, size = time_unit(seconds)
        short = {"days": "d", "hours": "h", "minutes": "min", "seconds": "s"}[unit]
        age = f"{max(seconds, 0) / size:.0f} {short}"
    head = [entry[key] for key in ("status", "agent", "env")]
    yield _row(*head, played, reached, seeds, age, entry["folder"], info=entry["info"])
    if not several:
        return
    envs = {group["env"] for group in groups}
    for group in groups[:MOST_GROUPS]:
        name = f"  {group['name']}" + (f" on {group['env']}" if len(envs) > 1 else "")
        reached, seeds = score(group["final_return"]), str(group["seeds"])
        yield _row("", group["agent"], group["env"], "", reached, seeds, "", name, info=group["info"])
    if len(groups) > MOST_GROUPS:
        yield _row(*[""] * 7, f"  and {len(groups) - MOST_GROUPS} more, see --json", info={})


class RankedTrial(NamedTuple):
    """A trial and its result."""

    run: Run
    place: tuple[float, ...]
    """Sort key among the trials of one environment; a better trial has a smaller key."""
    comparable: bool
    """Whether the trial can be the best one: it has a result, and no search has stopped it early."""
    result: str
    """Text on the result of the trial, for messages."""

    @property
    def line(self) -> str:
        """Text with the folder and the result of the trial."""
        return f"{os.path.relpath(self.run)}   {self.result}"


def ranked_trials(experiment: Path) -> list[RankedTrial]:
    """Return the started trials of an experiment, by environment and then from the best to the worst. Raises
    InputError for a damaged folder.

    Trials of a grid are ranked by the final return of their sessions. In a search, trials that were confirmed
    on fresh seeds come first, ranked by their mean on these seeds, together with the runs of the default,
    which precede all trials if the fresh seeds recommend the default. The other trials follow, ranked by the
    search's objective.
    """
    found = Experiment.load(experiment)
    search = read_search(found.info)
    ranked = [_ranked(run, found.number_of(run), search) for run in found.runs]
    if search and search.default and search.default.mean is not None:
        ranked += _of_default(search, search.default, found.path)
    return sorted(ranked, key=lambda one: (one.run.env, not one.comparable, one.place))


def _ranked(run: Run, number: int | None, search: SearchResult | None) -> RankedTrial:
    status = "" if run.status == "finished" else f", {run.status}"
    trial = next((one for one in search.trials if one.number == number), None) if search else None
    if search is None or trial is None:
        returned = _returned(counted_outcomes([run]))["final_return"]
        if returned is not None and run.status != "failed":
            result = f"final return {score(returned, 1)}{status}"
            return RankedTrial(run, (-returned,), True, result)
    else:
        sign, measure = -1.0 if search.maximize else 1.0, search.objective
        mean = next((one.mean for one in search.confirmed if one.trial == trial.number), None)
        if mean is not None:
            result = f"{measure} {score(mean, 1)} on the fresh seeds of the confirmation"
            return RankedTrial(run, (0, sign * mean, trial.number), True, result)
        if not math.isnan(trial.value):
            value, complete = trial.value, trial.state == "complete"
            result = f"{measure} {score(value, 1)}{'' if complete else f', {run.status}'}"
            return RankedTrial(run, (1, sign * value, trial.number), complete, result)
    return RankedTrial(run, (), False, run.status)


def _of_default(search: SearchResult, default: Confirmed, path: Path) -> Iterator[RankedTrial]:
    """Yield the runs of the default configuration of the search in `path`."""
    sign, mean = -1.0 if search.maximize else 1.0, default.mean or 0.0
    kept = search.confirmed_best is default
    result = f"{search.objective} {score(mean, 1)} on the fresh seeds of the confirmation, the default"
    result += ", which the search recommends to keep" * kept
    values = dict(zip(default.folders, default.values, strict=True))  # there is a mean, so no run failed
    for run in runs_of(default, path):
        yield RankedTrial(run, (-1 if kept else 0, sign * mean, sign * values[run.name]), True, result)


def best_trial(experiment: Path, agrees: Callable[[Run], bool]) -> RankedTrial | None:
    """Return the best of the trials for which `agrees` is true; None if none of them has a result yet.

    Raises InputError if these trials trained in several environments, because their returns are not
    comparable.
    """
    found = [one for one in ranked_trials(experiment) if agrees(one.run)]
    firsts = list({one.run.env: one for one in reversed(found)}.values())[::-1]
    if len(firsts) > 1:
        listed = "\n".join(f"  {one.line}   {one.run.env}" for one in firsts)
        raise InputError.about(
            os.path.relpath(experiment),
            f"it has trials in {len(firsts)} environments, whose returns are not comparable",
            f"Choose one trial. The best trials of the environments are:\n{listed}",
            code="contradiction",
            key=str(experiment),
        )
    return found[0] if found and found[0].comparable else None


def list_trials(experiment: Path, command: str) -> str:
    """Return one line per trial with its result, best first. command: beginning of the example command; a run
    folder is appended to it."""
    found = ranked_trials(experiment)
    if not found:
        return "none of its trials has started"
    lines = [f"  {one.line}" for one in found[:MOST_TRIALS]]
    if len(found) > MOST_TRIALS:
        lines.append(f"  and {len(found) - MOST_TRIALS} more")
    example = f"for example: {command}{os.path.relpath(found[0].run)}"
    return "\n".join(["choose one of its trials", *lines, example])
