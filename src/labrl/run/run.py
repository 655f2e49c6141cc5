"""A run on disk: the folder with everything that one trial wrote, readable without labrl."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from labrl.config.keys import RECORDED, Change, changes, traits
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean
from labrl.processes.secrets import redact
from labrl.run.atomic import as_known_to_json, sync_file
from labrl.run.folder import (
    EXPERIMENT_MARKER,
    PROVENANCE,
    REPORT_FILES,
    RESUMES,
    Folder,
    is_experiment,
    newest_provenance,
    path_text,
    read_json,
)
from labrl.run.lock import LOCK, FolderLock
from labrl.run.session import RunSession, sessions_text
from labrl.run.signature import is_own, present_trust

if TYPE_CHECKING:  # It takes a while to import, and training does not need it.
    import polars as pl

MARKER = "run.json"
"""Name of the file that marks the folder of a run."""

PATIENCE = 60.0
"""Seconds that processes of a killed experiment have to save and end before their trial is resumed."""

RunStatus = Literal["waiting", "running", "finished", "pruned", "failed", "interrupted"]
"""Recorded status of a run. `waiting`: planned, and not started; `pruned`: stopped early by a search."""

_Loader = vars(yaml).get("CSafeLoader", yaml.SafeLoader)  # PyYAML may lack the fast one


class Run(Folder[RunStatus]):
    """A run on disk, as `labrl.runs` returns it. Use `create` or `open` to get one by its folder.

    Its marker `run.json` holds the recorded status (a killed run stays `running`), the sessions' results, and
    `resumes`, with one entry for each resume. Methods read the files each time. Other attributes are read
    when they are first needed, and then kept until this object changes the run.
    """

    MARKER = MARKER
    KIND = "run"
    RESUME = "labrl +resume="
    KEY = "hydra.run.dir"
    WRITTEN = ("config.yaml", "overrides.yaml", PROVENANCE, "changed.json", "session_*", *REPORT_FILES)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config_yaml = path / "config.yaml"
        self.overrides_yaml = path / "overrides.yaml"
        self.provenance_json = path / PROVENANCE
        self.changed_json = path / "changed.json"
        """The configuration keys that differ from the defaults of the agent and environment."""
        self.report = path / "report.html"
        self.resumes = path / RESUMES
        self.enjoy = path / "enjoy"
        """Folder of the episodes that the run's models played later."""
        self._sessions: dict[int, RunSession] = {}

    def format_version(self) -> int | None:
        """Return the version of the folder's format; 0 for the first one, which is also recorded as 1."""
        version = super().format_version()
        if version in (None, 1) and (facts := read_json(newest_provenance(self.path))):
            config = facts.get("config")
            return version if isinstance(config, dict) and "start_from" in config else 0
        return version

    def read_info(self) -> dict[str, Any]:
        """Return the content of `run.json`; if a power failure has left it empty beside checkpoints of a run
        that was never resumed, what it contained at the start of the run.

        Raises InputError if this is not the folder of a run, and DamagedFileError if the file is damaged or
        missing.
        """
        try:
            return super().read_info()
        except LabrlError as error:
            # It may never have reached the disk: it is missing, empty, or contains only zero bytes.
            try:
                emptied = not self.marker.read_bytes().strip(b"\0")
            except OSError as lost:
                emptied = isinstance(lost, FileNotFoundError)
            if (
                emptied
                and not self.resumes.exists()
                and any(one.checkpoint_frames() for one in self.sessions)
            ):
                with suppress(TypeError, ValueError):
                    started = datetime.fromisoformat(read_json(self.provenance_json).get("started", ""))
                    created = started.astimezone(UTC).isoformat(timespec="milliseconds")
                    head = {"format_version": self.FORMAT_VERSION, "status": "running", "created": created}
                    return {**head, **self._pending}
            if isinstance(error, DamagedFileError) or not self.provenance_json.exists():
                raise
            why = "it is missing: restore it from a copy"
            raise DamagedFileError.about(self.marker, why) from error.__cause__

    @cached_property
    def status(self) -> str:
        """`finished`, `pruned`, `failed`, `interrupted`, `running`, or `killed` if it is recorded as running
        but no process is."""
        said = str(self.info.get("status"))
        places = [self.path, *(session.path for session in self.sessions)]
        return "killed" if said == "running" and not any(FolderLock(one).holder() for one in places) else said

    @classmethod
    def status_at(cls, path: Path) -> RunStatus | None:
        """Return the recorded status of the run in folder `path`; None if there is none that can be read."""
        with suppress(LabrlError):
            return cls.open(path).recorded_status
        return None

    @property
    def experiment(self) -> Path | None:
        """Folder of the experiment that the run belongs to; None if it belongs to none."""
        return next((parent for parent in self.path.parents if is_experiment(parent)), None)

    @property
    def is_first_of_experiment(self) -> bool:
        """Whether this is the trial that prints messages for all trials of its experiment. True outside
        experiments."""
        home = self.experiment
        trials = read_json(home / EXPERIMENT_MARKER).get("trials") if home else None
        return not home or not trials or home / trials[0]["folder"] == self.path

    @property
    def unrecorded(self) -> bool:
        """Whether the run was killed before its description was complete, so that it cannot have trained yet.

        The sessions of a fork already contain their past at that point.
        """
        return not self.provenance_json.exists() and not any(session.has_begun for session in self.sessions)

    def read_provenance(self) -> dict[str, Any]:
        """Return the newest provenance of the run, from its last resume or its start.

        Raises DamagedFileError if the file is missing or damaged.
        """
        path = newest_provenance(self.path)
        try:
            text = path.read_text(encoding="utf-8")
            if not text.strip():
                raise ValueError("the file is empty, as after a power failure")
            facts = json.loads(text)
            if not isinstance(facts, dict):
                raise ValueError(f"it contains {str(facts)[:40] or 'nothing'} and was not written by labrl")
            lacking = [part for part in ("overrides", "config") if part not in facts]
            parts = ("seed", "agent", "env", "meta")
            lacking = lacking or [f"config.{part}" for part in parts if part not in facts["config"]]
            if lacking:
                raise ValueError(f"it has no {lacking[0]}")
        except FileNotFoundError as error:
            fix = "Restore it from a copy"
            if self.unrecorded:
                fix = "The run was killed before it was planned completely: start it again with its command"
            raise DamagedFileError.about(path, "it is missing", fix) from error
        except (OSError, ValueError, TypeError) as error:
            fix = "Restore it from a copy, or start a new run"
            raise DamagedFileError.about(path, f"it cannot be read: {error}", fix) from error
        return facts

    def read_config(self) -> dict[str, Any]:
        """Return the resolved configuration of the run as plain data. Raises DamagedFileError as
        `read_provenance` does."""
        config: dict[str, Any] = self.read_provenance()["config"]
        with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):  # an alias may contain itself
            exact = yaml.load(self.config_yaml.read_text(encoding="utf-8"), _Loader)
            # Unless it was edited, it also has infinity and keys that are numbers, which JSON has not.
            if json.loads(json.dumps(as_known_to_json(exact))) == config:
                config = exact
        return config

    def changes(self, plain: Mapping[str, Any]) -> list[Change]:
        """Return the differences of another resolved configuration from that of the run, compared in JSON and
        without secrets."""
        then, now = (json.loads(json.dumps(redact(config), default=str)) for config in (self.config, plain))
        return changes(then, now)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the start or the last resume; empty if the run was killed before that was written."""
        return {} if self.unrecorded else self.read_provenance()

    @cached_property
    def first_provenance(self) -> dict[str, Any]:
        """Provenance of the start, with `command` and `start_from`, the weights of another run that it
        started from."""
        return read_json(self.provenance_json)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run; empty if the run was killed before that was written."""
        config: dict[str, Any] = self.provenance.get("config", {})
        return config

    @property
    def overrides(self) -> list[str]:
        """What was typed to start the run, including its resumes, without folders."""
        return [str(override) for override in self.provenance.get("overrides", [])]

    @property
    def choices(self) -> dict[str, str]:
        """The option of each group, typed or by default."""
        recorded = self.provenance.get("choices", {})
        return {group: option.removeprefix(RECORDED) for group, option in recorded.items()}

    @property
    def config_dir(self) -> str | None:
        """The user's folder of groups; for a run of someone else, the one that is typed now, if any."""
        own = is_own(self.provenance)
        return self.provenance.get("config_dir") if own else present_trust().config_dir

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
        return group_key(self.config)

    @property
    def sessions(self) -> list[RunSession]:
        """The sessions that have started, ordered by number."""
        names: list[str] = []
        with suppress(OSError):  # no such folder
            names = os.listdir(self.path)
        found = (name.removeprefix("session_") for name in names if name.startswith("session_"))
        return [self._session(number) for number in sorted(int(text) for text in found if text.isdigit())]

    def session(self, index: int) -> RunSession:
        """Return session number `index`, whose folder is created if needed."""
        session = self._session(index)
        session.path.mkdir(exist_ok=True)
        return session

    def _session(self, index: int) -> RunSession:
        if index not in self._sessions:
            self._sessions[index] = RunSession(self.path / f"session_{index}", self)
        return self._sessions[index]

    def choose_session(self, wanted: int | None, key: str = "session") -> RunSession:
        """Return session number `wanted`, or with None the session with the highest evaluation score.

        key: the option that the number was given with. Raises InputError if the session has not started.
        """
        sessions = self.sessions
        if not sessions:
            raise InputError.not_found(self.path, "it has no sessions yet")
        if wanted is None:
            return max(sessions, key=lambda session: (session.best_score(), -session.index))
        for session in sessions:
            if session.index == wanted:
                return session
        numbers = ", ".join(str(session.index) for session in sessions)
        raise InputError.not_found(f"{key}={wanted}", f"the sessions of {self.path} are {numbers}")

    def cleaned_files(self) -> set[str]:
        """Return the files and folders that `labrl-clean` has removed, relative to the run folder."""
        return {file for entry in self.read_info().get("cleaned", []) for file in entry["files"]}

    def cleaned_buffers(self) -> set[int]:
        """Return the numbers of the sessions that lack their replay buffer, because `labrl-clean` has removed
        it."""
        files = self.cleaned_files()
        lacking = (one for one in self.sessions if not one.replay.is_dir())
        return {one.index for one in lacking if str(one.replay.relative_to(self.path)) in files}

    def check_buffers(self, sessions: Iterable[int], asked: str, repeat: Sequence[str] = ()) -> None:
        """Raise InputError if `labrl-clean` has removed the replay buffer of one of the sessions.

        sessions: their numbers; asked: the setting that names the run; repeat: overrides of a repetition that
        can be used instead.
        """
        if not self.cleaned_buffers().isdisjoint(sessions):
            why = "the run was cleaned: labrl-clean has removed its replay buffer"
            rerun = shlex.join(["labrl", f"+rerun={self.path}", *repeat])
            fix = f"To repeat the run: {rerun}\nTo train from its weights: start_from.run={self.path}"
            raise InputError.not_found(asked, why, fix)

    @cached_property
    def warnings(self) -> list[str]:
        """Messages about problems of the run and its sessions, each only once for all its sessions."""
        found = []
        if self.status == "running":
            found.append("the run is still running: its numbers are not final")
        elif self.status == "waiting":
            found.append("the run has not started, and can be resumed")
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

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of all sessions as a data frame, with the number of the session as the first
        column.

        name: `train`, `eval`, or the name of another `<name>.csv` in the sessions' folders, sorted by
        `frame`, each frame once, with null for empty cells; or `episodes` for the recorded episodes. Raises
        InputError if no session has such a table.
        """
        import polars as pl

        from labrl.run.tables import read_frame

        files = {path.stem for session in self.sessions for path in session.path.glob("*.csv")}
        names = sorted({"train", "eval", "episodes", *files})
        if name not in names:
            why = f"{self.path} has the tables {', '.join(names)}"
            raise InputError.about(name, why, did_you_mean(name, names), code="unknown-option")
        found = []
        for session in self.sessions:
            recorded = name == "episodes"
            rows = (
                pl.DataFrame(session.read_episodes())
                if recorded
                else read_frame(session.path / f"{name}.csv")
            )
            if rows.width > 1:
                found.append(rows.select(pl.lit(session.index, pl.Int64).alias("session"), pl.all()))
        return pl.concat(found, how="diagonal_relaxed") if found else pl.DataFrame()

    def forget(self) -> None:
        """Read everything again from now on, because the run has changed."""
        super().forget()
        self._sessions.clear()
        for name in ("status", "provenance", "group_key", "warnings"):
            self.__dict__.pop(name, None)

    def discard_unrecorded(self) -> None:
        """Delete the files of an `unrecorded` run."""
        for session in self.sessions:
            shutil.rmtree(session.path)
        for path in (self.config_yaml, self.overrides_yaml, self.changed_json, *self.path.glob("*.diff")):
            path.unlink(missing_ok=True)
        self.marker.unlink()

    def discard_unplayed(self) -> None:
        """Delete the files of a run that was refused before its first step.

        A folder that contains anything besides the run's description is left unchanged.
        """
        files = (self.marker, self.config_yaml, self.overrides_yaml, self.provenance_json)
        described = {*files, *self.path.glob("*.diff")}
        described |= {path for session in self.sessions for path in session.start.rglob("*")}
        found = sorted(self.path.rglob("*"), reverse=True)  # the content of a folder before the folder
        if any(path.name != LOCK and path not in described for path in found if not path.is_dir()):
            return
        with suppress(OSError):  # files that remain do no harm
            for path in found:
                path.rmdir() if path.is_dir() else path.unlink()
            if self.path != Path.cwd():
                self.path.rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes.

        Raises BusyFolderError if the run or one of its sessions is still alive, and InputError if the folder
        cannot be written.
        """
        with super().lock():
            for session in self.sessions:
                # A session's process outlives a killed trial until the end of its current step.
                with session.lock():
                    pass
            yield

    def wait_until_free(self) -> None:
        """Wait until the last process of an earlier attempt has saved the run and ended.

        Raises BusyFolderError if it has not after PATIENCE.
        """
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with self.lock():
                    return
            except LabrlError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)

    def sync(self) -> None:
        """Wait until the files that describe the run would survive a power failure. Raises OSError.

        Syncing them together costs less than syncing each one when it is written.
        """
        for path in self.path.iterdir():
            if path.is_file() and path.name != LOCK:
                sync_file(path)
        for folder in (*(one.path for one in self.sessions), self.path, *self.path.parents[:3]):
            with suppress(OSError):  # not every user and file system can sync a folder
                sync_file(folder)

    def __fspath__(self) -> str:
        """Return the path of the folder, so that a run can be passed wherever its folder can."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({self.name}: {self.status}, {self.agent} in {self.env})"


def group_key(config: Mapping[str, Any]) -> str:
    """Return text that is equal for configurations that differ only in the keys that `group_config` omits."""
    return json.dumps(group_config(config), sort_keys=True, default=str)


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
