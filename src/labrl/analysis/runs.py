"""Run folders as they are on disk: finished, killed, incomplete, or still growing."""

from __future__ import annotations

import glob
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labrl.analysis.formats import path_text, sessions_text
from labrl.analysis.returns import recorded_return
from labrl.config.keys import traits
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean
from labrl.run.episodes import read_episode, recorded_names
from labrl.run.experiment_folder import EXPERIMENT_MARKER, ExperimentFolder, check_objective
from labrl.run.folder import PROVENANCE, check_format, read_json
from labrl.run.lock import FolderLock
from labrl.run.provenance import read_provenance
from labrl.run.run_folder import MARKER, RunFolder, SessionFolder
from labrl.run.tables import Column, Table, known, read_frame, read_table

EPISODE = ("frame", "return", "length", "truncated", "source", "environment", "number", "seed")
"""Columns of the table of recorded episodes, after the name of each episode."""

DEEPEST = 4
"""Number of levels below a folder down to which runs are searched."""

_log = logging.getLogger(__name__)


class SessionRun:
    """One session's folder. Its tables are read when they are first needed, and then kept."""

    def __init__(self, folder: SessionFolder, result: dict[str, Any], run_is_alive: bool) -> None:
        self.path = folder.path
        self.index = folder.index
        """Number of the session in its trial."""
        self.result = result
        """Content of `result.json`; empty until the session has ended."""
        self.reached = result or read_json(folder.progress)
        """Progress of the session, which may be beyond the last row: its result, or until it has ended
        `progress.json`."""
        self.status = str(result.get("status") or ("running" if run_is_alive else "killed"))
        """`finished`, `failed`, `interrupted`, `running`, or `killed` if its process ended without a
        result."""
        self._folder, self._run_is_alive = folder, run_is_alive

    @property
    def seed(self) -> int | None:
        """Seed of the session's random streams; None until the session has ended."""
        return self.result.get("seed")

    @cached_property
    def outcome(self) -> dict[str, Any]:
        """Result of the session, or its progress if it has not ended: `frame`, `final_return`, `status`, ...

        The session's tables are read only if these lack a final return.
        """
        found = {**self.reached, "status": self.status}
        if found.get("final_return") is None:
            found["final_return"] = recorded_return(self._folder.eval_csv, self._folder.train_csv)
        return found

    @property
    def train(self) -> dict[str, Column]:
        """Training rows: column by name, sorted by `frame`, each frame once, nan for empty cells."""
        return self._tables[0].columns

    @property
    def eval(self) -> dict[str, Column]:
        """Evaluation rows, in the same form."""
        return self._tables[1].columns

    @cached_property
    def _tables(self) -> tuple[Table, Table]:
        return read_table(self._folder.train_csv), read_table(self._folder.eval_csv)

    @cached_property
    def scores(self) -> dict[str, Column]:
        """The evaluation rows with a return, or the training rows of a session that was never evaluated.

        Columns `frame`, `return_mean`, `wall` and `opt_step`, [rows] each, in order of the frames.
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
        """Return the last value of a column that only grows, or None if none is known."""
        tables = (known(table, column) for table in (self.train, self.eval))
        return max((float(values[-1]) for values in tables if len(values)), default=None)

    def furthest(self, column: str) -> float:
        """Return the last value of `frame` or `wall`, which after an interruption may be beyond the last
        row."""
        said = self.reached.get(column)
        beyond = float(said) if isinstance(said, int | float) and np.isfinite(said) else 0.0
        return max(self.last(column) or 0.0, beyond)

    @cached_property
    def warnings(self) -> list[str]:
        """Messages about problems: why the session failed, and what its files lack."""
        found = [f"failed: {self.result['error']}"] if self.result.get("error") else []
        found += [warning for table in self._tables for warning in table.warnings]
        if not self._run_is_alive and any(table.cut for table in self._tables):
            found.append("an incomplete last line is left out")  # normal while the file is being written
        if self.status != "finished" or self.result.get("stop"):  # then no training row marks the end
            return found
        end = self.result.get("frame")
        for path, table in zip((self._folder.train_csv, self._folder.eval_csv), self._tables, strict=True):
            reached = int(max(table.columns["frame"], default=0))
            if not path.exists():
                found.append(f"{path.name} is missing")
            elif end is not None and reached < end:  # for example in an incomplete copy
                found.append(f"{path.name} ends at frame {reached:,} of {end:,}: later rows are missing")
        if not read_json(self._folder.result):
            found.append(f"{self._folder.result.name} is missing or damaged")
        return found


class Run:
    """One trial's folder. Its files are read when they are first needed, and then kept; nothing is
    written."""

    def __init__(self, folder: RunFolder) -> None:
        """Raise DamagedFileError if a file that describes the run is missing or damaged."""
        self.path = folder.path
        self.info = folder.info()
        """Content of `run.json`."""
        self.provenance = {} if folder.unrecorded else read_provenance(folder)
        """Provenance of the start or the last resume; empty if the run was killed before that was written."""
        self._folder = folder

    @cached_property
    def status(self) -> str:
        """`finished`, `failed`, `interrupted`, `running`, or `killed` if it is recorded as running but no
        process is."""
        said = str(self.info.get("status"))
        places = [self.path, *(session.path for session in self._folder.sessions())]
        return "killed" if said == "running" and not any(FolderLock(one).holder() for one in places) else said

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run; empty if the run was killed before that was written."""
        config: dict[str, Any] = self.provenance.get("config", {})
        return config

    @cached_property
    def first_provenance(self) -> dict[str, Any]:
        """Provenance of the start, with `command` and `start_from`, the weights of another run that it
        started from."""
        return read_json(self._folder.provenance)

    @cached_property
    def sessions(self) -> list[SessionRun]:
        """The sessions that have started, ordered by number."""
        # For a process that died without a result, its trial wrote one, unless a resume made it obsolete.
        said = [] if self.info.get("status") == "running" else self.info.get("sessions") or []
        noted = {entry.get("index"): entry for entry in said}
        return [
            SessionRun(one, read_json(one.result) or noted.get(one.index, {}), self.status == "running")
            for one in self._folder.sessions()
        ]

    @cached_property
    def warnings(self) -> list[str]:
        """Messages about problems of the run and its sessions, each only once for all its sessions."""
        found = []
        if self.status == "running":
            found.append("the run is still running: its numbers are not final")
        elif self.status == "killed":
            found.append("the run was killed and can be resumed")
        expected = self.config.get("meta", {}).get("max_session", 0)
        missing = sorted(set(range(expected)) - {session.index for session in self.sessions})
        if missing:
            found.append(f"{sessions_text(missing)} {'has' if len(missing) == 1 else 'have'} not started")
        if self.info.get("fresh_env_per_episode"):
            found.append(
                "a new environment was made for each episode, because episodes depend on earlier ones, so a "
                "level or running statistics started again each time (env.fresh_env_per_episode)"
            )
        if inexact := self.info.get("inexact"):
            found.append(f"the run is not reproducible ({', '.join(map(str, inexact))})")
        shared: dict[str, list[int]] = {}
        for session in self.sessions:
            for warning in session.warnings:
                shared.setdefault(warning, []).append(session.index)
        return found + [f"{sessions_text(numbers)}: {warning}" for warning, numbers in shared.items()]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return path_text(self.path.name)

    @property
    def agent(self) -> str:
        """Name of the agent as chosen on the command line, or that of its class; `?` if unknown."""
        if chosen := self.provenance.get("choices", {}).get("agent"):
            return str(chosen)
        return str(self.config.get("agent", {}).get("_target_") or "?").split(".")[-1].lower()

    @property
    def env(self) -> str:
        """Name of the environment; `?` if unknown."""
        return str(self.config.get("env", {}).get("name") or "?")

    @property
    def seed(self) -> int | None:
        """Seed of the trial."""
        return self.config.get("seed")

    @property
    def created(self) -> str:
        """Time at which the run started, in ISO 8601."""
        return str(self.info.get("created", ""))

    @property
    def max_frame(self) -> int | None:
        """Budget of each session in frames."""
        return self.config.get("env", {}).get("max_frame")

    @property
    def evaluates(self) -> bool:
        """Whether the scores in `eval.csv` are of separate environments, not of training episodes."""
        return bool(self.config.get("meta", {}).get("rigorous_eval"))

    @cached_property
    def group_key(self) -> str:
        """Text that is equal for runs that differ at most in the seed and in keys that do not affect any row.

        A run without a configuration is a group of its own.
        """
        if not self.config:
            return str(self.path)
        return json.dumps(group_config(self.config), sort_keys=True, default=str)

    def __fspath__(self) -> str:
        """Return the path of the folder, so that a run can be passed wherever its folder can."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({self.name}: {self.status}, {self.agent} in {self.env})"

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of all sessions as a data frame, with the number of the session as the first
        column.

        name: `train`, `eval`, or the name of another `<name>.csv` in the sessions' folders, sorted by
        `frame`, each frame once, with null for empty cells; or `episodes` for the recorded episodes. Raises
        InputError if no session has such a table.
        """
        folders = self._folder.sessions()
        files = {path.stem for folder in folders for path in folder.path.glob("*.csv")}
        names = sorted({"train", "eval", "episodes", *files})
        if name not in names:
            raise InputError(
                f"{self.path} has no table {name!r}. Choose one of {', '.join(names)}."
                f"{did_you_mean(name, names)}",
                code="unknown-option",
                key=name,
            )
        found = [
            table.select(pl.lit(folder.index, pl.Int64).alias("session"), pl.all())
            for folder in folders
            for table in [
                _recorded(folder) if name == "episodes" else read_frame(folder.path / f"{name}.csv")
            ]
            if table.width > 1
        ]
        return pl.concat(found, how="diagonal_relaxed") if found else pl.DataFrame()


def _recorded(folder: SessionFolder) -> pl.DataFrame:
    """Return the facts of a session's recorded episodes, without damaged ones."""
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


@dataclass(frozen=True)
class Experiment:
    """The folder of several trials that were started together."""

    path: Path
    info: dict[str, Any]
    """Content of `experiment.json`; empty if there is none."""
    runs: list[Run]
    """Its trials that have started, ordered by their number, or by their start if they have none."""
    warnings: list[str]
    """Messages about problems of the experiment."""

    def number_of(self, run: Run) -> int | None:
        """Return the number of the trial in `run`; None for other runs, such as those that confirm a
        search."""
        return self._numbers.get(run.path.resolve())

    @cached_property
    def _numbers(self) -> dict[Path, int]:
        trials = self.info.get("trials", [])
        return {(self.path / str(trial.get("folder"))).resolve(): trial.get("number") for trial in trials}

    @property
    def status(self) -> str:
        """Status, as in `Run.status`; if none is recorded, the worst status of its runs."""
        statuses = [run.status for run in self.runs]
        said = self.info.get("status")
        if said in (None, "running"):
            alive = "running" in statuses or FolderLock(self.path).holder() is not None
            order = ("failed", "killed", "interrupted", "finished")
            worst = next((status for status in order if status in statuses), "killed")
            return "running" if alive else "killed" if said else worst
        return str(said)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Return the run in `folder`. Raises InputError, which suggests a better folder if there is one."""
    path = Path(folder).expanduser()
    first = next(_markers(path), None)
    if first == path:
        return Run(RunFolder.open(path))
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}. Give a run folder", code="not-found", key=str(path))
    if (path.parent / MARKER).exists():
        why = f"is part of a run. Give the run folder, {path.parent}"
    elif first is not None:
        why = f"contains several runs. Give one of them, such as {first}"
    else:
        raise _no_run(path)
    raise InputError(f"{path} {why}", code="usage", key=str(path))


def load_experiment(folder: str | os.PathLike[str]) -> Experiment:
    """Return the experiment in `folder`, or all runs below it as if they were one.

    Raises InputError if there is no run, and DamagedFileError if `experiment.json` is damaged.
    """
    path = Path(os.path.abspath(Path(folder).expanduser()))
    marker = path / EXPERIMENT_MARKER
    if not marker.exists():
        return Experiment(path, {}, _runs_below(path), [])
    try:
        info = json.loads(marker.read_text(encoding="utf-8"))
        keys = ("number", "folder", "status", "error")
        trials = [[trial.get(key) for key in keys] for trial in info.get("trials", [])]
    except (OSError, ValueError, AttributeError) as error:
        raise DamagedFileError(f"{marker} cannot be read: {error}", key=str(marker)) from error
    if isinstance(version := info.get("format_version"), int):
        check_format(path, version, ExperimentFolder.READS)
    check_objective(path, info)
    runs, warnings, refusal = [], [], None
    for number, name, status, reason in trials:
        if name is not None and next(_markers(path / name), None) == path / name:
            try:
                runs.append(load_run(path / name))
            except LabrlError as error:
                warnings.append(f"trial {number}: {error}")
                refusal = error if isinstance(error, InputError) else refusal
        elif status != "waiting":
            warnings.append(f"trial {number} has no run folder" + (f": {reason}" if reason else ""))
    if refusal is not None and not runs:
        raise refusal
    return Experiment(path, info, runs, warnings)


def find_runs(places: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs in `places`: run folders, folders that contain runs, or globs. Each run is returned
    once.

    Runs are in the order of the places, and below one place from the oldest to the newest. With several
    places, as the shell passes for a glob, those without a run are skipped with a warning; so are damaged
    runs below a folder. Raises InputError if no run is found, and for a place that does not exist or is part
    of a run.
    """
    found: dict[Path, Run] = {}
    without: list[str] = []
    texts = [os.path.expanduser(os.fspath(place)) for place in places]
    for text in texts:
        literal = os.path.exists(text) or not glob.has_magic(text)
        paths = [Path(one) for one in ([text] if literal else sorted(glob.glob(text)))]
        if not paths:
            raise InputError(f"{text} matches no file or folder", code="not-found", key=text)
        runs: list[Run] = []
        for path in paths:
            first, part = next(_markers(path), None), literal and (path.parent / MARKER).exists()
            if first == path or part or not path.exists():
                runs.append(load_run(path))
            elif first is not None or (literal and len(texts) == 1):
                runs += _runs_below(path) if path.is_dir() else [load_run(path)]
            elif literal:
                without.append(text)
        if not literal and not runs:
            raise InputError(f"{text} matches no labrl run", code="not-found", key=text)
        for run in runs:
            found.setdefault(run.path.resolve(), run)
    if without and not found:
        raise InputError(
            f"no labrl run in {', '.join(without)}. Give folders that contain a {MARKER}, directly or deeper",
            code="not-found",
            key=without[0],
        )
    if without:
        _log.warning("skipped, because it contains no run: %s", ", ".join(without))
    return list(found.values())


def group_config(config: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Return a configuration without the keys in which runs of one group may differ.

    parent: the key of `config`.
    """
    kept = {}
    for name, value in config.items():
        key = f"{parent}{name}"
        if not traits(key).same_group:
            kept[name] = group_config(value, f"{key}.") if isinstance(value, Mapping) else value
    return kept


def _runs_below(path: Path) -> list[Run]:
    runs, refusals = [], []
    for folder in _markers(path):
        try:
            runs.append(Run(RunFolder.open(folder)))
        except LabrlError as error:
            refusals.append(error)
    if not runs:
        raise next((one for one in refusals if isinstance(one, InputError)), None) or _no_run(path)
    for refusal in refusals:
        _log.warning("skipped: %s", refusal)
    return sorted(runs, key=lambda run: (run.created, run.path))


def _markers(path: Path) -> Iterator[Path]:
    """Yield every run folder below `path`, at most DEEPEST levels down. None of them is inside another."""
    root = len(path.parts)
    for folder, below, files in os.walk(path):
        if MARKER in files or PROVENANCE in files:
            below.clear()
            yield Path(folder)
        elif len(Path(folder).parts) - root >= DEEPEST:
            below.clear()
        below.sort()


def _no_run(path: Path) -> InputError:
    what = "does not exist"
    if path.is_dir():
        what = "is empty" if not any(path.iterdir()) else "contains no labrl run"
        what += f" (no {MARKER} in it or in its subfolders)"
    return InputError(
        f"{path} {what}. Give a run folder, or a folder that contains runs", code="not-found", key=str(path)
    )
