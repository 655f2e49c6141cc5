"""The run folders as a table: `labrl-runs`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from labrl.analysis.columns import widths_that_fit
from labrl.analysis.groups import told, value_at
from labrl.analysis.runs import Run, find_runs, load_experiment
from labrl.config.errors import ConfigError, did_you_mean
from labrl.storage.experiment_folder import is_experiment

KEYS = ("status", "agent", "env", "name")
"""What a filter may name besides the keys of the configuration."""

COLUMNS = ("status", "agent", "env", "frames", "return", "seeds", "age", "folder")

_DISPENSABLE = ("seeds", "frames", "age", "agent", "env", "return")
"""Columns that a narrow terminal goes without, the first of them first."""

_RIGHT = ("frames", "return", "age")

_NOTHING = "-"


@dataclass(frozen=True)
class Entry:
    """A line of the table: one run, or one experiment with all its trials."""

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
    return_mean: float | None
    """Mean over sessions of the final return; of an experiment that of its best trial."""
    sessions: int
    """That have finished."""
    max_session: int
    """That there are to be."""
    trials: int
    """1 of a run."""
    created: str
    """ISO 8601."""


def entries(root: Path, filters: Sequence[str] = ()) -> list[Entry]:
    """The runs and experiments at or below `root` that agree with all `filters`, the newest first.

    filters: `<key>=<value>`, where the key is `status`, `agent`, `env`, `name` or one of the configuration
    and the value may have * and ? in it; or a part of the folder's name. An experiment is there with those
    of its trials that agree. Raises ConfigError where there is no run, or no run has a key.
    """
    runs = find_runs([root])
    wanted = [run for run in runs if _agrees(run, runs, filters, root)]
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

    What does not fit is left out by columns, and then in the middle of the folders' names.
    """
    cells = [dict(zip(COLUMNS, _cells(entry), strict=True)) for entry in found]
    widths = widths_that_fit(cells, COLUMNS, _DISPENSABLE, width)
    total = sum(widths.values()) + 2 * (len(widths) - 1)
    if width is not None and total > width:
        widths["folder"] = max(12, width - (total - widths["folder"]))
    lines = []
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *cells]:
        parts = []
        for name in widths:
            text = _shortened(row[name], widths[name])
            parts.append(text.rjust(widths[name]) if name in _RIGHT else text.ljust(widths[name]))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def as_plain(entry: Entry) -> dict[str, Any]:
    """For JSON."""
    return dict(vars(entry))


def _agrees(run: Run, all_runs: Sequence[Run], filters: Sequence[str], root: Path) -> bool:
    return all(_agrees_with(run, all_runs, word, root) for word in filters)


def _agrees_with(run: Run, all_runs: Sequence[Run], word: str, root: Path) -> bool:
    key, equals, value = word.partition("=")
    if not equals:
        folders = {other: os.path.relpath(other.path, root.expanduser()) for other in all_runs}
        if not any(word in folder for folder in folders.values()):
            values = (f"{key}={getattr(other, key)}" for other in all_runs for key in KEYS)
            meant = next((value for value in values if value.endswith(f"={word}")), None)
            hint = f" Did you mean {meant}?" if meant else did_you_mean(word, folders.values())
            raise ConfigError(
                f"{word}: no run in {root} has this in the name of its folder. Filters are parts of that, or "
                f"pairs such as status=finished.{hint}"
            )
        return word in folders[run]
    if key in KEYS:
        return fnmatch(str(getattr(run, key)), value)
    if all(value_at(other, key) is None for other in all_runs):
        hint = did_you_mean(key, [*KEYS, "seed", *_top_keys(all_runs)])
        raise ConfigError(
            f"{word}: no run has the key {key}. A filter names status, agent, env, name or a key of the "
            f"configuration, such as agent.lr.{hint}"
        )
    own = value_at(run, key)
    if isinstance(own, int | float) and not isinstance(own, bool):
        return own == _number(value)  # 1e-4 is 0.0001
    return fnmatch(told(own), value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _top_keys(runs: Sequence[Run]) -> set[str]:
    """Keys one level deep, `agent.lr`, to guess what was meant."""
    return {
        f"{group}.{name}"
        for run in runs
        for group, node in run.config.items()
        if isinstance(node, Mapping)
        for name in node
    }


def _experiment_of(path: Path, root: Path) -> Path | None:
    """The experiment's folder below `root` that a run lies in, if any."""
    for parent in path.parents:
        if parent == root or root not in parent.parents:
            return None
        if is_experiment(parent):
            return parent
    return None


def _of_run(run: Run, root: Path) -> Entry:
    scores = [told for outcome in run.outcomes if (told := outcome.get("return_mean")) is not None]
    expected = run.config.get("meta", {}).get("max_session")
    return Entry(
        folder=_relative(run.path, root),
        kind="run",
        status=run.status,
        agent=run.agent,
        env=run.env,
        frames=max((int(outcome.get("frame") or 0) for outcome in run.outcomes), default=0),
        max_frame=run.max_frame,
        return_mean=sum(scores) / len(scores) if scores else None,
        sessions=sum(outcome.get("status") == "finished" for outcome in run.outcomes),
        max_session=int(expected or len(run.outcomes)),
        trials=1,
        created=run.created,
    )


def _of_experiment(home: Path, trials: Sequence[Run], root: Path) -> Entry:
    experiment = load_experiment(home)
    inside = [_of_run(run, root) for run in trials]
    return Entry(
        folder=_relative(home, root),
        kind=str(experiment.info.get("kind") or "experiment"),
        status=experiment.status,
        agent=_common(entry.agent for entry in inside),
        env=_common(entry.env for entry in inside),
        frames=max(entry.frames for entry in inside),
        max_frame=max((entry.max_frame or 0 for entry in inside), default=0) or None,
        return_mean=max(
            (entry.return_mean for entry in inside if entry.return_mean is not None), default=None
        ),
        sessions=sum(entry.sessions for entry in inside),
        max_session=sum(entry.max_session for entry in inside),
        trials=len(inside),
        created=str(experiment.info.get("created") or min(entry.created for entry in inside)),
    )


def _relative(path: Path, root: Path) -> str:
    """As one would type it below `root`; the folder's own name where it is the root itself."""
    return path.name if path == root else os.path.relpath(path, root)


def _common(values: Iterable[str]) -> str:
    different = sorted(set(values))
    return different[0] if len(different) == 1 else f"{len(different)} kinds"


def _cells(entry: Entry) -> tuple[str, ...]:
    seeds = f"{entry.sessions}/{entry.max_session}"
    return (
        entry.status,
        entry.agent,
        entry.env,
        _short(entry.frames) + (f"/{_short(entry.max_frame)}" if entry.max_frame else ""),
        _NOTHING if entry.return_mean is None else _score(entry.return_mean),
        seeds if entry.kind == "run" else f"{seeds} in {entry.trials} trials",
        _age(entry.created),
        entry.folder,
    )


def _score(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _short(number: int) -> str:
    """1500 as 1.5k."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


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


def _shortened(text: str, width: int) -> str:
    """Cut in the middle: a run folder's name has the date in front and what tells it apart at the end."""
    if len(text) <= width:
        return text
    front = (width - 1) // 2
    return f"{text[:front]}…{text[len(text) - (width - 1 - front) :]}"
