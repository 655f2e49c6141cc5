"""The run folders as a table, `labrl-runs`, and the trials of an experiment from the best to the worst."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labrl.analysis.formats import score, short_number, shortened, widths_that_fit
from labrl.analysis.groups import agreeing, grouped, varied
from labrl.analysis.returns import group_return
from labrl.analysis.runs import Run, find_runs, load_experiment
from labrl.analysis.search import Confirmed, SearchResult, SearchTrial, read_search, runs_of
from labrl.analysis.statistics import Played, reasons_to_leave_out
from labrl.errors import InputError
from labrl.storage.experiment_folder import is_experiment

COLUMNS = ("status", "agent", "env", "frames", "final return", "seeds", "age", "folder")

_DISPENSABLE = ("seeds", "frames", "age", "agent", "env", "final return")
"""Columns that a narrow terminal goes without, the first of them first."""

_RIGHT = ("frames", "final return", "age")

_NOTHING = "-"

_log = logging.getLogger(__name__)

MOST_GROUPS = 8
"""Groups of an experiment that the table shows."""

MOST_TRIALS = 20
"""Trials that a message lists."""


@dataclass(frozen=True, kw_only=True)
class Returned:
    """A final return over seeds: their interquartile mean, of fewer than four their mean."""

    final_return: float | None = None
    """None where no seed has a return."""
    low: float | None = None
    """Lower end of its 95 % interval by the stratified bootstrap; None of a single seed."""
    high: float | None = None
    seeds: int = 0
    """Number of sessions of the return."""

    @staticmethod
    def of(returns: Sequence[float]) -> dict[str, Any]:
        """The fields, from the final returns of the sessions."""
        found = group_return(returns)
        if found is None:
            return {}
        return {"final_return": found.value, "low": found.low, "high": found.high, "seeds": found.count}


@dataclass(frozen=True, kw_only=True)
class Score(Returned):
    """The return of one group: of trials that differ at most in the seed."""

    name: str
    """Agent and what tells the group from the others of its experiment; `trial 7` of a search."""
    agent: str
    env: str
    overrides: dict[str, Any]
    """The keys in which the groups of the experiment differ, with the values of this one."""
    trials: int


@dataclass(frozen=True, kw_only=True)
class Entry(Returned):
    """A line of the table: one run, or one experiment with all its trials.

    Its return is that of its only group, for a search of its winner on fresh seeds.
    """

    folder: str
    """Relative to where one looked."""
    kind: str
    """`run`, or the experiment's own kind: `grid`, `search`."""
    status: str
    agent: str
    env: str
    frames: int
    """Played by the session that got furthest."""
    max_frame: int | None
    """The budget of a session; of trials that differ in it, the largest."""
    sessions: int
    """Number of finished sessions."""
    max_session: int
    """Number of planned sessions."""
    trials: int
    """1 of a run; of a search without the runs that confirm its best."""
    created: str
    """ISO 8601."""
    groups: list[Score]
    """The winner of a confirmed search and the default, both on fresh seeds."""
    best_in_the_search: dict[str, Any] | None = None
    """Best value of a search: `trial`, `objective`, `value`, and `of`, the number of trials."""


def entries(root: Path, filters: Sequence[str] = ()) -> list[Entry]:
    """The runs and experiments at or below `root` that agree with all `filters`, the newest first.

    filters: `<key>=<value>`, where the key is `status`, `agent`, `env`, `name` or one of the configuration
    and the value may have * and ? in it; or a part of the folder's name. An experiment is there with those
    of its trials that agree. Raises InputError where there is no run, or no run has a key.
    """
    runs = find_runs([root])
    wanted = agreeing(runs, filters, root)
    own = Path(os.path.abspath(root.expanduser()))
    single: list[Entry] = []
    by_experiment: dict[Path, list[Run]] = {}
    for run in wanted:
        home = _experiment_of(run.path, own)
        if home is None:
            single.append(_of_run(run, own))
        else:
            by_experiment.setdefault(home, []).append(run)
    together = [_of_experiment(home, trials, own) for home, trials in by_experiment.items()]
    return sorted(single + together, key=lambda entry: (entry.created, entry.folder), reverse=True)


def as_table(found: Iterable[Entry], width: int | None = None) -> str:
    """A line for each entry under a line of headings; within `width` characters if there is a limit.

    Below an experiment of several groups stands a line for each of them, up to MOST_GROUPS. What does not fit
    is left out by columns, and then in the middle of the folders' names.
    """
    cells = [dict(zip(COLUMNS, row, strict=True)) for entry in found for row in _rows(entry)]
    widths = widths_that_fit(cells, COLUMNS, _DISPENSABLE, width)
    total = sum(widths.values()) + 2 * (len(widths) - 1)
    if width is not None and total > width:
        widths["folder"] = max(12, width - (total - widths["folder"]))
    lines = []
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *cells]:
        parts = []
        for name in widths:
            text = shortened(row[name], widths[name])
            parts.append(text.rjust(widths[name]) if name in _RIGHT else text.ljust(widths[name]))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def as_plain(entry: Entry) -> dict[str, Any]:
    """Return the entry as plain data for JSON."""
    return asdict(entry)


def _experiment_of(path: Path, root: Path) -> Path | None:
    """The experiment's folder below `root` that a run lies in, if any."""
    for parent in path.parents:
        if parent == root or root not in parent.parents:
            return None
        if is_experiment(parent):
            return parent
    return None


def _of_run(run: Run, root: Path) -> Entry:
    return _entry(_relative(run.path, root), "run", run.status, run.created, [run], _scores([run]))


def _of_experiment(home: Path, runs: Sequence[Run], root: Path) -> Entry:
    """runs: those in the folder that are asked for."""
    experiment = load_experiment(home)
    if not experiment.info:
        for damage in experiment.warnings:
            _log.warning("%s", damage)
    created = str(experiment.info.get("created") or min(run.created for run in runs))
    head = (
        _relative(home, root),
        str(experiment.info.get("kind") or "experiment"),
        experiment.status,
        created,
    )
    search = read_search(experiment.info)
    if search is None:
        return _entry(*head, runs, _scores(runs))
    # the other runs confirm the best trials
    trials = {number: run for run in runs if (number := experiment.number_of(run)) is not None}
    winner, scores = search.winner, []
    if winner is not None and winner.trial in trials:
        chosen = [winner, *([search.default] if search.default else [])]
        scores = [_confirmed(one, search, home, runs[0]) for one in chosen]
    return _entry(*head, list(trials.values()) or runs, scores, _best_in(search, trials))


def _entry(
    folder: str,
    kind: str,
    status: str,
    created: str,
    trials: Sequence[Run],
    groups: list[Score],
    best: dict[str, Any] | None = None,
) -> Entry:
    outcomes = [outcome for run in trials for outcome in run.outcomes]
    expected = [run.config.get("meta", {}).get("max_session") or len(run.outcomes) for run in trials]
    # the winner of a search leads
    single = groups[0] if len(groups) == 1 or (groups and kind == "search") else Returned()
    return Entry(
        **{field.name: vars(single)[field.name] for field in fields(Returned)},
        folder=folder,
        kind=kind,
        status=status,
        agent=_common(run.agent for run in trials),
        env=_common(run.env for run in trials),
        frames=max((int(outcome.get("frame") or 0) for outcome in outcomes), default=0),
        max_frame=max((run.max_frame or 0 for run in trials), default=0) or None,
        sessions=sum(outcome.get("status") == "finished" for outcome in outcomes),
        max_session=sum(map(int, expected)),
        trials=len(trials),
        created=created,
        groups=groups,
        best_in_the_search=best,
    )


def _best_in(search: SearchResult, numbers: Collection[int]) -> dict[str, Any] | None:
    """The best value that one of these trials has in the search; None before one has ended."""
    ended = [trial for trial in search.ranked() if trial.number in numbers]
    if not ended or not ended[0].values or len(search.objective) > 1:
        return None
    of = sum(trial.number in numbers for trial in search.valued)
    return {
        "trial": ended[0].number,
        "objective": search.objective[0],
        "value": ended[0].values[0],
        "of": of,
    }


def _scores(runs: Sequence[Run]) -> list[Score]:
    """The return of each group of `runs`."""
    groups = grouped(runs)
    differing = varied([group.runs[0] for group in groups]) if len(groups) > 1 else {}
    return [
        Score(
            **Returned.of(final_returns(group.runs)),
            name=group.name,
            agent=group.runs[0].agent,
            env=group.env,
            overrides={key: values[place] for key, values in differing.items()},
            trials=len(group.runs),
        )
        for place, group in enumerate(groups)
    ]


def _confirmed(one: Confirmed, search: SearchResult, home: Path, like: Run) -> Score:
    """The return of a configuration on the fresh seeds of a search. like: any run of the search."""
    # of another objective the search's value is no return
    of_returns = search.objective == ["final_return"]
    returns = Returned.of(one.values if of_returns else final_returns(runs_of(one, home)))
    return Score(
        **returns,
        name=one.name,
        agent=like.agent,
        env=like.env,
        overrides=one.params,
        trials=len(one.folders),
    )


def final_returns(runs: Sequence[Run]) -> list[float]:
    """The final return of each session of a group that counts, by the rule of the statistics."""
    outcomes = [(run, outcome) for run in runs for outcome in run.outcomes]
    reasons = reasons_to_leave_out([_of_outcome(run, outcome) for run, outcome in outcomes])
    return [
        float(outcome["final_return"])
        for (_, outcome), reason in zip(outcomes, reasons, strict=True)
        if reason is None
    ]


def _of_outcome(run: Run, outcome: Mapping[str, Any]) -> Played:
    """Return what the outcome of a session tells of it, without its tables, which take long to read."""
    frame = float(outcome.get("frame") or 0)
    return Played(
        run,
        int(outcome.get("index") or 0),
        outcome.get("seed"),
        str(outcome.get("status")),
        stopped=bool(outcome.get("stop")),
        has_return=outcome.get("final_return") is not None,
        rows_to=frame,
        frame=frame,
    )


def _relative(path: Path, root: Path) -> str:
    """Return the path relative to `root`; the folder's own name for the root itself."""
    return path.name if path == root else os.path.relpath(path, root)


def _common(values: Iterable[str]) -> str:
    different = sorted(set(values))
    return different[0] if len(different) == 1 else f"{len(different)} kinds"


def _rows(entry: Entry) -> Iterator[tuple[str, ...]]:
    """The cells of an entry, then those of its groups where their returns stand one by one."""
    seeds = f"{entry.sessions}/{entry.max_session}"
    if entry.kind != "run":
        seeds += f" in {entry.trials} trial{'' if entry.trials == 1 else 's'}"
    several = entry.kind != "search" and len(entry.groups) > 1
    score = f"{len(entry.groups)} groups" if several else _score(entry.final_return)
    best = entry.best_in_the_search
    if entry.kind == "search" and entry.groups:
        seeds += f", {entry.seeds} fresh"
    elif best is not None and best["objective"] in ("final_return", "best_return"):
        score = f"best of {best['of']}: {_score(best['value'])}"
    yield (
        entry.status,
        entry.agent,
        entry.env,
        short_number(entry.frames if entry.max_frame is None else min(entry.frames, entry.max_frame), 3)
        + (f"/{short_number(entry.max_frame, 3)}" if entry.max_frame else ""),
        score,
        seeds,
        _age(entry.created),
        entry.folder,
    )
    if not several:
        return
    envs = {group.env for group in entry.groups}
    for group in entry.groups[:MOST_GROUPS]:
        name = f"  {group.name} on {group.env}" if len(envs) > 1 else f"  {group.name}"
        yield ("", group.agent, group.env, "", _score(group.final_return), str(group.seeds), "", name)
    if len(entry.groups) > MOST_GROUPS:
        yield ("", "", "", "", "", "", "", f"  and {len(entry.groups) - MOST_GROUPS} more, see --json")


def _score(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return score(value, thousands=0)


def _age(created: str) -> str:
    """Since then, in the largest unit of which there are two."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    except (ValueError, TypeError):
        return _NOTHING
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@dataclass(frozen=True)
class Standing:
    """A trial and what it came to."""

    path: Path
    env: str
    place: tuple[float, ...]
    """Rank among the trials of one environment: the better of two has the smaller one."""
    comparable: bool
    """Whether it is a candidate for the best: it has a result, and no search has stopped it early."""
    told: str
    """Its result, for messages."""


def standings(experiment: Path) -> list[Standing]:
    """The trials that have begun, by environment, the best first. Raises InputError for a damaged folder.

    Trials of a grid are ranked by the final return of their sessions. Of a search
    those that fresh seeds have confirmed come first, by their mean there, then the others by its objective.
    """
    found = load_experiment(experiment)
    search = read_search(found.info)
    of_search = {trial.number: trial for trial in search.trials} if search else {}
    standing = []
    for run in found.runs:
        number = found.number_of(run)
        trial = of_search.get(number) if number is not None else None
        standing.append(_searched(run, search, trial) if search and trial else _played(run))
    return sorted(standing, key=lambda one: (one.env, not one.comparable, one.place))


def best_trial(experiment: Path, agrees: Callable[[Path], bool]) -> Standing | None:
    """The best of the trials that agree; None where none of them has a result yet.

    Raises InputError where they learned in several environments, whose returns cannot be compared.
    """
    found = [one for one in standings(experiment) if agrees(one.path)]
    envs = dict.fromkeys(one.env for one in found)
    if len(envs) > 1:
        firsts = [next(one for one in found if one.env == env) for env in envs]
        listed = "\n".join(f"  {_line(one)}   {one.env}" for one in firsts)
        raise InputError(
            f"{os.path.relpath(experiment)} has trials in {len(envs)} environments, whose returns cannot be "
            f"compared. Name one trial; the best of each environment are:\n{listed}",
            code="contradiction",
            key=str(experiment),
        )
    return found[0] if found and found[0].comparable else None


def listed(experiment: Path, command: str) -> str:
    """A line for each trial with its result, the best first. command: what one types before a run folder."""
    found = standings(experiment)
    if not found:
        return "none of its trials has begun"
    lines = [f"  {_line(one)}" for one in found[:MOST_TRIALS]]
    if len(found) > MOST_TRIALS:
        lines.append(f"  and {len(found) - MOST_TRIALS} more")
    return "\n".join(["name one of its trials", *lines, f"as in: {command}{os.path.relpath(found[0].path)}"])


def _line(one: Standing) -> str:
    return f"{os.path.relpath(one.path)}   {one.told}"


def _played(run: Run) -> Standing:
    """Rank a trial by its sessions' own returns."""
    returns = final_returns([run])
    found = group_return(returns)
    if found is None or run.status == "failed":
        return Standing(run.path, run.env, (), False, run.status)
    status = "" if run.status == "finished" else f", {run.status}"
    return Standing(run.path, run.env, (-found.value,), True, f"final return {score(found.value)}{status}")


def _searched(run: Run, search: SearchResult, trial: SearchTrial) -> Standing:
    """Rank a trial by the objective of the search."""
    sign = -1.0 if search.maximize[0] else 1.0
    measure = search.objective[0]
    mean = next((one.mean for one in search.confirmed if one.trial == trial.number), None)
    if mean is not None:
        told = f"{measure} {score(mean)} on the fresh seeds of the confirmation"
        return Standing(run.path, run.env, (0, sign * mean, trial.number), True, told)
    if not trial.values:
        return Standing(run.path, run.env, (), False, run.status)
    value, complete = trial.values[0], trial.state == "complete"
    told = f"{measure} {score(value)}{'' if complete else f', {run.status}'}"
    return Standing(run.path, run.env, (1, sign * value, trial.number), complete, told)
