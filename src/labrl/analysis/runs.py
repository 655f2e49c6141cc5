"""Run folders as they lie there: finished, killed, half written or still growing."""

from __future__ import annotations

import glob
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labrl.analysis.returns import recorded_return
from labrl.analysis.rows import Column, Rows, known, of_one_source, read_rows, read_table
from labrl.config.keys import traits
from labrl.errors import InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean
from labrl.storage.episodes import read_episode, recorded_names
from labrl.storage.experiment_folder import EXPERIMENT_MARKER
from labrl.storage.folder import read_json
from labrl.storage.lock import FolderLock
from labrl.storage.provenance import damages, known_provenance, read_command, recorded_config
from labrl.storage.run_folder import MARKER, PROVENANCE, RunFolder, SessionFolder

EPISODE = ("frame", "return", "length", "truncated", "source", "environment", "number", "seed")
"""Columns of the table of recorded episodes, after the name of each."""

DEEPEST = 4
"""Levels below a folder at which runs are searched."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionRun:
    """The files of one session."""

    path: Path
    index: int
    """Number of the session in its trial."""
    seed: int | None
    """Seed of its streams; None until the session has ended."""
    status: str
    """`finished`, `failed`, `interrupted`, `running`, or `killed`: its process is gone without a result."""
    train: dict[str, Column]
    """Training rows, column by name, sorted by `frame`, each frame once, nan where a cell is empty."""
    eval: dict[str, Column]
    """Evaluation rows, likewise."""
    result: dict[str, Any]
    """Content of `result.json`; empty until the session has ended."""
    reached: dict[str, Any] = field(default_factory=dict)
    """Progress, which may be beyond the last row: from its result, or before that from `progress.json`."""
    warnings: list[str] = field(default_factory=list)
    """Messages on what is wrong: why it failed, what is missing from its files."""

    @cached_property
    def scores(self) -> dict[str, Column]:
        """The evaluation rows that have a return; of a session that was never evaluated its training rows.

        Columns `frame`, `return_mean`, `wall` and `opt_step`, [rows] each, in the order of the frames.
        """
        names = ("frame", "return_mean", "wall", "opt_step")
        for table in (self.eval, self.train):
            nothing = np.full(len(table["frame"]), np.nan)
            there = np.isfinite(table.get("return_mean", nothing))
            found = {name: table.get(name, nothing)[there] for name in names}
            if there.any():
                break
        return found

    def last(self, column: str) -> float | None:
        """Return the last value of a column that only grows, None where none is known."""
        values = [
            float(values[-1]) for table in (self.train, self.eval) if len(values := known(table, column))
        ]
        return max(values, default=None)

    def furthest(self, column: str) -> float:
        """Return the last value of `frame` or `wall`, which after an interruption is beyond the last row."""
        said = self.reached.get(column)
        beyond = float(said) if isinstance(said, int | float) and np.isfinite(said) else 0.0
        return max(self.last(column) or 0.0, beyond)


class Run:
    """One trial's folder. What lies in it is read when it is asked for, and then kept; nothing is written."""

    def __init__(self, folder: RunFolder) -> None:
        """Raise InputError where neither the folder's marker nor a session's result can be read."""
        self.path = folder.path
        self.info = folder.rebuilt_info()
        """Content of `run.json`; rebuilt from the sessions' results where it is missing or damaged."""
        if (damage := folder.marker_damage) is not None:
            _log.warning("%s", damage)
        self._folder = folder

    @cached_property
    def status(self) -> str:
        """`finished`, `failed`, `interrupted`, `running`, or `killed`: called running, but no process is."""
        said = str(self.info.get("status"))
        return "killed" if said == "running" and self._holder() is None else said

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration that was run, empty where nobody knows it any more."""
        try:
            return recorded_config(self._folder)
        except LabrlError as error:
            if not self._folder.unrecorded:
                _log.warning("%s", error)
            return {}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Provenance of its start or last resume; empty where missing or damaged."""
        return known_provenance(self._folder)

    @cached_property
    def command(self) -> Any:
        """Command that started it, not those of resumes; None where unknown."""
        return read_json(self._folder.provenance).get("command")

    @cached_property
    def start_from(self) -> dict[str, Any]:
        """Record of the weights of another run that this one began with; empty without any."""
        found = read_json(self._folder.provenance).get("start_from")
        return found if isinstance(found, dict) else {}

    @cached_property
    def sessions(self) -> list[SessionRun]:
        """The sessions that have started, by number."""
        return [self._session(folder) for folder in self._folder.sessions()]

    @cached_property
    def outcomes(self) -> list[dict[str, Any]]:
        """Outcome of each session that has started: `frame`, `final_return`, `status`, ...

        For a session that has not ended, its progress.
        """
        found = []
        for folder in self._folder.sessions():
            outcome = self._result(folder) or {**read_json(folder.progress), "status": self._unfinished()}
            if outcome.get("final_return") is None:
                outcome["final_return"] = recorded_return(folder.eval_csv, folder.train_csv)
            found.append(outcome)
        return found

    @cached_property
    def warnings(self) -> list[str]:
        """Messages on what is wrong with the run and its sessions."""
        found = damages(self._folder)
        if self.status == "running":
            found.append("the run is still going on: its numbers are not final")
        elif self.status == "killed":
            found.append("the run was killed: it ended without a word, and can be resumed")
        expected = self.config.get("meta", {}).get("max_session", 0)
        missing = set(range(expected)) - {session.index for session in self.sessions}
        found += [f"session {index} has not started" for index in sorted(missing)]
        for session in self.sessions:
            found += [f"session {session.index}: {warning}" for warning in session.warnings]
        return found

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def agent(self) -> str:
        """Name as chosen on the command line, else that of its class; `?` where unknown."""
        chosen = self.provenance.get("choices", {}).get("agent") or self._typed("agent")
        target = str(self.config.get("agent", {}).get("_target_") or "?")
        return str(chosen or target.split(".")[-1].lower())

    def _typed(self, group: str) -> str | None:
        """Return the option of `group` on the command line, for runs whose provenance is lost."""
        try:
            overrides = read_command(self._folder).overrides
        except LabrlError:
            return None
        return next(
            (override.partition("=")[2] for override in overrides if override.startswith(f"{group}=")), None
        )

    @property
    def env(self) -> str:
        """Name of the environment; `?` where nobody knows."""
        return str(self.config.get("env", {}).get("name") or "?")

    @property
    def seed(self) -> int | None:
        """Seed of the trial."""
        return self.config.get("seed")

    @property
    def created(self) -> str:
        """Start time of the run, ISO 8601."""
        return str(self.info.get("created", ""))

    @property
    def max_frame(self) -> int | None:
        """Budget of each session, frames."""
        return self.config.get("env", {}).get("max_frame")

    @cached_property
    def group_key(self) -> str:
        """Equal for runs that differ at most in the seed and in keys that change no row.

        A run whose configuration is lost is a group of its own.
        """
        if not self.config:
            return str(self.path)
        return json.dumps(group_config(self.config), sort_keys=True, default=str)

    def __fspath__(self) -> str:
        """Return the path of the folder, so that a run stands wherever its folder can."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({self.name}: {self.status}, {self.agent} in {self.env})"

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of all sessions as a data frame, with the number of the session in front.

        name: `train`, `eval`, or that of another `<name>.csv` in the sessions' folders: sorted by `frame`,
        each frame once, null where a cell is empty. `episodes`: those that were recorded. Raises InputError
        where no session has such a table.
        """
        folders = self._folder.sessions()
        if name == "episodes":
            found = [(folder.index, _recorded(folder)) for folder in folders]
        else:
            paths = [(folder.index, folder.path / f"{name}.csv") for folder in folders]
            if not any(path.exists() for _, path in paths) and name not in ("train", "eval"):
                raise self._no_table(name)
            found = [(index, read_table(path)) for index, path in paths]
        numbered = [
            table.select(pl.lit(index, pl.Int64).alias("session"), pl.all())
            for index, table in found
            if table.width
        ]
        return pl.concat(numbered, how="diagonal_relaxed") if numbered else pl.DataFrame()

    def _no_table(self, name: str) -> InputError:
        files = {path.stem for folder in self._folder.sessions() for path in folder.path.glob("*.csv")}
        known = sorted({"train", "eval", "episodes", *files})
        return InputError(
            f"{self.path} has no table {name!r}: name one of {', '.join(known)}.{did_you_mean(name, known)}",
            code="unknown-option",
            key=name,
        )

    def _holder(self) -> str | None:
        """The process that works in the folder or in one of its sessions, if any lives."""
        places = [self.path, *(session.path for session in self._folder.sessions())]
        return next((holder for place in places if (holder := FolderLock(place).holder())), None)

    def _session(self, folder: SessionFolder) -> SessionRun:
        result = self._result(folder)
        alive = self.status == "running"
        status = str(result.get("status") or self._unfinished())
        train = read_rows(folder.train_csv)
        evaluation = of_one_source(read_rows(folder.eval_csv), folder.eval_csv.name)
        warnings = train.warnings + evaluation.warnings
        if not alive and (train.cut or evaluation.cut):  # of a file that is being written it is no fault
            warnings.append("half a last line is left out")
        if status == "finished" and not result.get("stop"):  # which leaves no training row at the end
            warnings += _cut_short(
                {folder.train_csv: train, folder.eval_csv: evaluation}, result.get("frame")
            )
            if not read_json(folder.result):
                warnings.append(f"{folder.result.name} is missing or damaged")
        if result.get("error"):
            warnings.insert(0, f"failed: {result['error']}")
        elif status == "killed":
            warnings.insert(0, "killed before its end")
        elif status == "interrupted":
            warnings.insert(0, "interrupted before its end")
        return SessionRun(
            path=folder.path,
            index=folder.index,
            seed=result.get("seed"),
            status=status,
            train=train.columns,
            eval=evaluation.columns,
            result=result,
            reached=result or read_json(folder.progress),
            warnings=warnings,
        )

    def _unfinished(self) -> str:
        """Return the status of a session without a result."""
        return "running" if self.status == "running" else "killed"

    def _result(self, folder: SessionFolder) -> dict[str, Any]:
        content = read_json(folder.result)
        if content:
            return content
        if self.info.get("status") == "running":
            return {}  # what the marker says of sessions is from before the resume
        # of a process that died without a result its trial wrote one
        said = self.info.get("sessions") or []
        return next((entry for entry in said if entry.get("index") == folder.index), {})


def _recorded(folder: SessionFolder) -> pl.DataFrame:
    """Return what is known of a session's recorded episodes; damaged ones are left out."""
    rows = []
    for name in recorded_names(folder.episodes):
        try:
            facts = read_episode(folder.episodes / f"{name}.npz").plain()
        except LabrlError as error:
            _log.warning("%s", error)
            continue
        facts["return"] = facts["episode_return"]
        rows.append({"episode": name, **{column: facts[column] for column in EPISODE}})
    return pl.DataFrame(rows)


def _cut_short(tables: Mapping[Path, Rows], end: int | None) -> Iterator[str]:
    """Return a message on the tables of a finished session that lack the row of its end, for instance in an
    incomplete copy. end: frame of the session's end."""
    for path, rows in tables.items():
        frames = rows.columns["frame"]
        reached = int(frames[-1]) if len(frames) else 0
        if not path.exists():
            yield f"{path.name} is missing"
        elif end is not None and reached < end:
            yield f"{path.name} ends at frame {reached:,} of {end:,}: later rows are missing"


@dataclass(frozen=True)
class Experiment:
    """The folder of several trials that were started together."""

    path: Path
    info: dict[str, Any]
    """Content of `experiment.json`; empty where there is none."""
    runs: list[Run]
    """Its trials that have begun, in order of their number or, without one, of their start."""
    warnings: list[str]
    """Messages on what is wrong with it."""

    def number_of(self, run: Run) -> int | None:
        """Return the number of the trial that a run is; None where it is none, as of confirming runs."""
        return self._numbers.get(run.path.resolve())

    @cached_property
    def _numbers(self) -> dict[Path, int]:
        trials = self.info.get("trials", [])
        return {(self.path / str(trial.get("folder"))).resolve(): trial.get("number") for trial in trials}

    @property
    def status(self) -> str:
        """Status as in `Run.status`; for an experiment without one, the worst of its runs."""
        statuses = [run.status for run in self.runs]
        said = self.info.get("status")
        if said in (None, "running"):
            alive = "running" in statuses or FolderLock(self.path).holder() is not None
            order = ("failed", "killed", "interrupted", "finished")
            worst = next((status for status in order if status in statuses), "killed")
            return "running" if alive else "killed" if said else worst
        return str(said)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """The run that lies at `folder`. Raises InputError, which names a better folder if there is one."""
    path = Path(folder).expanduser()
    first = next(_markers(path), None)
    if first == path:
        return Run(RunFolder.open(path, rebuilt=True))
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}. Name a run folder", code="not-found", key=str(path))
    if (path.parent / MARKER).exists():
        why = f"is part of a run. Name the run folder, {path.parent}"
    elif first is not None:
        why = f"holds several runs. Name one of them, such as {first}"
    else:
        raise _no_run(path)
    raise InputError(f"{path} {why}", code="usage", key=str(path))


def load_experiment(folder: str | os.PathLike[str]) -> Experiment:
    """The experiment that lies at `folder`, or all runs below it as if they were one.

    Where `experiment.json` is damaged, these are its runs, with a warning. Raises InputError where there is
    no run.
    """
    path = Path(os.path.abspath(Path(folder).expanduser()))
    marker = path / EXPERIMENT_MARKER
    if not marker.exists():
        return Experiment(path, {}, _runs_below(path), [])
    try:
        info = json.loads(marker.read_text(encoding="utf-8"))
        trials = [
            (trial.get("number"), trial.get("folder"), trial.get("status"), trial.get("error"))
            for trial in info.get("trials", [])
        ]
    except (OSError, ValueError, AttributeError) as error:
        damage = f"{marker} cannot be read ({error}): what it says of the experiment is left out"
        return Experiment(path, {}, _runs_below(path), [damage])
    runs, warnings = [], []
    for number, name, status, reason in trials:
        if name is not None and (path / name / MARKER).exists():
            try:
                runs.append(load_run(path / name))
            except LabrlError as damaged:
                warnings.append(f"trial {number}: {damaged}")
        elif status != "waiting":
            warnings.append(f"trial {number} has no run folder" + (f": {reason}" if reason else ""))
    return Experiment(path, info, runs, warnings)


def find_runs(places: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """The runs in `places`: run folders, folders with runs below them, or globs; each run once.

    In the order of the places, below one of them the oldest first. Of several places those without a run
    are passed over with a warning, as the shell names them where it has a glob; so is a damaged run below a
    folder. Raises InputError where no run is left, and for a place that is not there or part of a run.
    """
    found: dict[Path, Run] = {}
    without: list[str] = []
    places = list(places)
    for place in places:
        text = os.path.expanduser(os.fspath(place))
        literal = os.path.exists(text) or not glob.has_magic(text)
        paths = [text] if literal else sorted(glob.glob(text))
        if not paths:
            raise InputError(f"{text} matches no file or folder", code="not-found", key=text)
        if literal and len(places) > 1 and _without_run(Path(text)):
            without.append(text)
            continue
        runs = [run for path in paths for run in _runs_in(Path(path), alone=literal)]
        if not runs:
            raise InputError(f"{text} matches no run of labrl", code="not-found", key=text)
        for run in runs:
            found.setdefault(run.path.resolve(), run)
    if without and not found:
        raise InputError(
            f"no run of labrl in {', '.join(without)}. Name folders with a {MARKER} in them or below",
            code="not-found",
            key=without[0],
        )
    if without:
        _log.warning("passed over, because there is no run in it: %s", ", ".join(without))
    return list(found.values())


def group_config(config: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """A configuration without the keys in which runs of one group may differ; parent: the key of `config`."""
    kept = {}
    for name, value in config.items():
        key = f"{parent}{name}"
        if not traits(key).same_group:
            kept[name] = group_config(value, f"{key}.") if isinstance(value, Mapping) else value
    return kept


def _runs_in(path: Path, alone: bool) -> list[Run]:
    """The run at `path` or the runs below; `alone`: named by itself, so that it has to be one."""
    first = next(_markers(path), None)
    if first == path or (alone and (not path.is_dir() or (path.parent / MARKER).exists())):
        return [load_run(path)]  # raises where it is none, and says what to name
    return _runs_below(path) if alone or first else []


def _runs_below(path: Path) -> list[Run]:
    runs = []
    for folder in _markers(path):
        try:
            runs.append(Run(RunFolder.open(folder, rebuilt=True)))
        except LabrlError as error:
            _log.warning("passed over: %s", error)
    if not runs:
        raise _no_run(path)
    return sorted(runs, key=lambda run: (run.created, run.path))


def _markers(path: Path) -> Iterator[Path]:
    """Every run folder below `path`, at most DEEPEST levels down; none lies inside another."""
    root = len(path.parts)
    for folder, below, files in os.walk(path):
        if MARKER in files or PROVENANCE in files:
            below.clear()
            yield Path(folder)
        elif len(Path(folder).parts) - root >= DEEPEST:
            below.clear()
        below.sort()


def _without_run(path: Path) -> bool:
    """Return whether `path` is there and no run, nor part of one, nor has one below."""
    return path.exists() and not (path.parent / MARKER).exists() and next(_markers(path), None) is None


def _no_run(path: Path) -> InputError:
    what = "does not exist"
    if path.is_dir():
        what = "is empty" if not any(path.iterdir()) else "holds no run of labrl"
        what += f" (there is no {MARKER} in it or below)"
    return InputError(
        f"{path} {what}. Name a run folder, or a folder with runs below it", code="not-found", key=str(path)
    )
