"""A run on disk: the folder that contains everything that one trial wrote, readable without labrl."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from labrl.config.keys import Change, changes, traits
from labrl.errors import DamagedFileError, InputError, LabrlError, key_in
from labrl.mistakes.spelling import did_you_mean
from labrl.processes.secrets import redact
from labrl.run.atomic import as_json, sync_file
from labrl.run.folder import (
    EXPERIMENT_MARKER,
    PROVENANCE,
    REPORT_FILES,
    RESUMES,
    Folder,
    Status,
    is_experiment,
    newest_provenance,
    path_text,
    read_json,
)
from labrl.run.lock import LOCK, LOOK_SECONDS, FolderLock
from labrl.run.session import RunSession, sessions_text
from labrl.run.signature import is_own, present_trust

if TYPE_CHECKING:  # It takes a while to import, and training does not need it.
    import polars as pl

MARKER = "run.json"
"""Name of the file that marks the folder of a run."""

PATIENCE = 60.0
"""Maximum time in seconds to wait until the processes of a killed trial have ended, before it is resumed."""

_RESTORE = f"Restore it: the configuration that was run is in {PROVENANCE}, under `config`"

_Loader = vars(yaml).get("CSafeLoader", yaml.SafeLoader)  # PyYAML may lack the fast one


class Run(Folder):
    """A run on disk, as `labrl.runs` returns it. Use `create` or `open` to get an instance for a folder.

    Its marker `run.json` contains the recorded status (a killed run stays `running`), the sessions' results,
    and `resumes`, with one entry for each resume. Methods read files anew at each call. Attributes are read
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
        """File with the configuration values that differ from the defaults for the agent and the
        environment."""
        self.report = path / "report.html"
        self.resumes = path / RESUMES
        self.enjoy = path / "enjoy"
        """Folder of the results and videos of episodes that were played with `+enjoy`."""
        self._sessions: dict[int, RunSession] = {}

    @cached_property
    def status(self) -> str:
        """Recorded status of the run, but `killed` if it is recorded as running and no process runs it."""
        said = str(self.info.get("status"))
        places = [self.path, *(session.path for session in self.sessions)]
        return "killed" if said == "running" and not any(FolderLock(one).holder() for one in places) else said

    @classmethod
    def status_at(cls, path: Path) -> Status | None:
        """Return the recorded status of the run in the folder `path`; None if it cannot be read."""
        with suppress(LabrlError):
            return cls.open(path).recorded_status
        return None

    @property
    def experiment(self) -> Path | None:
        """Folder of the experiment to which the run belongs; None if it belongs to no experiment."""
        return next((parent for parent in self.path.parents if is_experiment(parent)), None)

    @property
    def is_first_of_experiment(self) -> bool:
        """Whether the run prints messages for all trials of its experiment; True if it belongs to none."""
        home = self.experiment
        trials = read_json(home / EXPERIMENT_MARKER).get("trials") if home else None
        return not home or not trials or home / trials[0]["folder"] == self.path

    @property
    def unrecorded(self) -> bool:
        """Whether the run was killed before its description was complete, and therefore before any training.

        If the run is a fork, its sessions already contain the copied past at that point.
        """
        return not self.config_yaml.exists() and not any(session.has_begun for session in self.sessions)

    def read_provenance(self) -> dict[str, Any]:
        """Return the newest provenance of the run: from its last resume, or else from its start.

        Raises DamagedFileError if the provenance file is missing or damaged.
        """
        path = newest_provenance(self.path)
        fix = "Restore it from a copy, or start a new run"
        try:
            facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if lacking := {"overrides", "config"} - facts.keys():
                raise ValueError(f"it has no {min(lacking)}")
        except FileNotFoundError as error:
            if self.unrecorded:
                fix = "The run was killed before it was planned completely: start it again with its command"
            raise DamagedFileError.about(path, "it is missing", fix) from error
        except (OSError, ValueError, AttributeError) as error:
            raise DamagedFileError.about(path, f"it cannot be read: {error}", fix) from error
        return facts

    def read_config(self) -> dict[str, Any]:
        """Return the resolved configuration of the run as plain data. Raises DamagedFileError if the
        provenance file or `config.yaml` is missing or damaged, or if `config.yaml` was edited."""
        config: dict[str, Any] = self.read_provenance()["config"]
        try:
            exact = yaml.load(self.config_yaml.read_text(encoding="utf-8"), _Loader)
            plain = as_json(exact)
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:  # an alias may contain itself
            why = f"it cannot be read: {' '.join(str(error).split())}"
            raise DamagedFileError.about(self.config_yaml, why, _RESTORE) from error
        if plain == config:
            return exact  # with infinity and keys that are numbers, which JSON lacks
        # A resume that is killed before it replaces the file leaves that of an earlier command.
        if not any(read_json(path).get("config") == plain for path in self.path.rglob(PROVENANCE)):
            why = "it was edited after it was written: edits are overrides, such as agent.lr=1e-3"
            raise DamagedFileError.about(self.config_yaml, why, _RESTORE)
        return config

    def changes(self, plain: Mapping[str, Any]) -> list[Change]:
        """Return the changes from the run's configuration to `plain`, compared as JSON without secrets."""
        then, now = (json.loads(json.dumps(redact(config), default=str)) for config in (self.config, plain))
        return changes(then, now)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Newest provenance, from the last resume or the start; an empty dict if none was written."""
        return {} if self.unrecorded else self.read_provenance()

    @cached_property
    def first_provenance(self) -> dict[str, Any]:
        """Provenance that was recorded at the start of the run. It contains `command` and, if the run started
        from the weights of another one, `start_from`."""
        return read_json(self.provenance_json)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run; an empty dict if none was written."""
        config: dict[str, Any] = self.provenance.get("config", {})
        return config

    @property
    def overrides(self) -> list[str]:
        """Overrides that compose the run, including those of its resumes, without those that set folders; of
        a run of someone else, whose configuration alone counts, none."""
        found = self.provenance.get("overrides", []) if is_own(self.provenance) else []
        return [str(override) for override in found]

    @property
    def choices(self) -> dict[str, str]:
        """The chosen option of each configuration group, set on the command line or by default."""
        return dict(self.provenance.get("choices", {}))

    @property
    def config_dir(self) -> str | None:
        """The folder with the user's own configuration groups; for a run of someone else, the --config-dir of
        the current command. None if there is none."""
        own = is_own(self.provenance)
        return self.provenance.get("config_dir") if own else present_trust().config_dir

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return path_text(self.path.name)

    @property
    def agent(self) -> str:
        """Name of the agent as chosen on the command line, otherwise the name of its class; `?` if
        unknown."""
        if chosen := self.provenance.get("choices", {}).get("agent"):
            return str(chosen)
        return str(self.config.get("agent", {}).get("_target_") or "?").split(".")[-1].lower()

    @property
    def env(self) -> str:
        """Name of the environment; `?` if unknown."""
        return str(self.config.get("env", {}).get("name") or "?")

    @property
    def seed(self) -> int | None:
        """Seed of the trial; None if unknown."""
        return self.config.get("seed")

    @property
    def created(self) -> str:
        """Time at which the run started, in ISO 8601."""
        return str(self.info.get("created", ""))

    @property
    def max_frame(self) -> int | None:
        """Budget of each session, in frames; None if unknown."""
        return self.config.get("env", {}).get("max_frame")

    @property
    def evaluates(self) -> bool:
        """Whether the scores in `eval.csv` come from separate evaluation environments, not from training
        episodes."""
        return bool(self.config.get("meta", {}).get("rigorous_eval"))

    @cached_property
    def group_key(self) -> str:
        """Text that is equal for all runs of a group, which differ only in the seed and in keys that affect
        no row, and have the same version of the user's own code.

        A run without a configuration forms a group of its own.
        """
        if not self.config:
            return str(self.path)
        own = self.own_code
        return group_key(self.config) + (json.dumps(own) if own else "")

    def explain(self, error: InputError) -> InputError:
        """Return the error of this run's configuration as it is told to the user."""
        return error

    @property
    def own_code(self) -> dict[str, str]:
        """A hash for each of the user's modules that affects rows; an empty dict if none was recorded."""
        return dict(self.provenance.get("own_code") or {})

    @property
    def sessions(self) -> list[RunSession]:
        """The sessions that have started, ordered by index."""
        names = (path.name.removeprefix("session_") for path in self.path.glob("session_*"))
        return [self._session(index) for index in sorted(int(name) for name in names if name.isdigit())]

    def session(self, index: int) -> RunSession:
        """Return the session with this index, and create its folder if it does not exist."""
        session = self._session(index)
        session.path.mkdir(exist_ok=True)
        return session

    def _session(self, index: int) -> RunSession:
        if index not in self._sessions:
            self._sessions[index] = RunSession(self.path / f"session_{index}", self)
        return self._sessions[index]

    def choose_session(self, wanted: int | None, option: str = "session={}") -> RunSession:
        """Return the session with the index `wanted`; None: the session with the highest evaluation score.

        option: text for messages on how to set `wanted`, with {} for its value. Raises InputError if the
        session has not started.
        """
        found = {session.index: session for session in self.sessions}
        if not found:
            raise InputError.not_found(self.path, "it has no sessions yet")
        if wanted is None:
            return max(found.values(), key=lambda session: (session.best_score(), -session.index))
        if wanted not in found:
            why = f"the sessions of {self.path} are {', '.join(map(str, found))}"
            raise InputError.about(option.format(wanted), why, code="not-found", key=key_in(option))
        return found[wanted]

    def check_buffers(self, sessions: Iterable[int], asked: str, repeat: Sequence[str] = ()) -> None:
        """Raise InputError if `labrl-clean` has removed the replay buffer of one of the sessions.

        sessions: indices of the sessions; asked: the setting that names the run; repeat: overrides for a
        repetition (`+rerun`) that the message suggests instead.
        """
        if not {*self.read_info().get("cleaned", [])}.isdisjoint(sessions):
            why = "the run was cleaned: labrl-clean has removed its replay buffer"
            rerun = shlex.join(["labrl", f"+rerun={self.path}", *repeat])
            fix = f"To repeat the run: {rerun}\nTo train from its weights: start_from.run={self.path}"
            raise InputError.not_found(asked, why, fix)

    @cached_property
    def warnings(self) -> list[str]:
        """Messages about problems of the run and its sessions; one for all sessions with the same problem."""
        told = {
            "running": "the run is still running: its results are not final",
            "waiting": "the run has not started, and can be resumed",
            "killed": "the run was killed and can be resumed",
        }
        found = [told[self.status]] if self.status in told else []
        expected = self.config.get("meta", {}).get("max_session", 0)
        missing = sorted(set(range(expected)) - {session.index for session in self.sessions})
        if missing:
            found.append(f"{sessions_text(missing)} {'has' if len(missing) == 1 else 'have'} not started")
        if self.info.get("fresh_env_per_episode"):
            found.append(
                "a new environment was made for each episode, because episodes depend on earlier ones, so a "
                "level or running statistics started anew each time (env.fresh_env_per_episode)"
            )
        if inexact := self.info.get("inexact"):
            found.append(f"the run is not reproducible ({', '.join(map(str, inexact))})")
        shared: dict[str, list[int]] = {}
        for session in self.sessions:
            for warning in session.warnings:
                shared.setdefault(warning, []).append(session.index)
        return found + [f"{sessions_text(numbers)}: {warning}" for warning, numbers in shared.items()]

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of all sessions as a data frame, whose first column is the index of the session.

        name: `train`, `eval`, or the name of another `<name>.csv` in the sessions' folders (sorted by
        `frame`, with one row for each frame and null for empty cells), or `episodes` for the recorded
        episodes. Raises InputError if no session has such a table.
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
            episodes = pl.DataFrame(session.read_episodes()) if name == "episodes" else None
            rows = read_frame(session.path / f"{name}.csv") if episodes is None else episodes
            if rows.width > 1:
                found.append(rows.select(pl.lit(session.index, pl.Int64).alias("session"), pl.all()))
        return pl.concat(found, how="diagonal_relaxed") if found else pl.DataFrame()

    def forget(self) -> None:
        """Discard everything that was read, because the run has changed."""
        super().forget()
        self._sessions.clear()
        for name in ("status", "provenance", "group_key", "warnings"):
            self.__dict__.pop(name, None)

    def discard(self) -> None:
        """Delete the files of a run that has not begun, and its folder if nothing else is in it. A run with
        results or, once it is recorded, with checkpoints is left unchanged."""
        played = (one.has_begun or one.train_csv.exists() or one.checkpoint_frames() for one in self.sessions)
        if any(played) and not self.unrecorded:
            return
        for session in self.sessions:
            shutil.rmtree(session.path, ignore_errors=True)
        own = [self.config_yaml, self.overrides_yaml, self.provenance_json, self.changed_json]
        for path in (*own, *self.path.glob("*.diff"), self.marker, self.path / LOCK):
            path.unlink(missing_ok=True)
        if self.path != Path.cwd():
            with suppress(OSError):  # it contains other files
                self.path.rmdir()

    @contextmanager
    def lock(self, patience: float = LOOK_SECONDS) -> Iterator[None]:
        """Context manager: lock the run folder, so that other processes cannot use it.

        patience: time in seconds to wait for each process of an earlier attempt to train the run. Raises
        BusyFolderError if a process is still running the run or one of its sessions, and InputError if the
        folder cannot be written.
        """
        with FolderLock(self.path, patience=patience):
            for session in self.sessions:
                # A session's process outlives a killed trial until the end of its current step.
                with session.lock(patience):
                    pass
            yield

    def wait_until_free(self) -> None:
        """Wait until all processes of an earlier attempt to train the run have saved and ended. Raises
        BusyFolderError if one has not ended after PATIENCE seconds."""
        with self.lock(PATIENCE):
            pass

    def sync(self) -> None:
        """Wait until the files that describe the run would survive a power failure. Raises OSError.

        Syncing the files together takes less time than syncing each file when it is written.
        """
        for path in self.path.iterdir():
            if path.is_file() and path.name != LOCK:
                sync_file(path)
        for folder in (*(one.path for one in self.sessions), self.path, *self.path.parents[:3]):
            with suppress(OSError):  # some users and file systems cannot sync a folder
                sync_file(folder)

    def __fspath__(self) -> str:
        """Return the path of the run folder, so that a run can be passed in place of its path."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({self.name}: {self.status}, {self.agent} in {self.env})"


def group_key(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for all configurations that differ only in keys that `group_config`
    omits."""
    return json.dumps(group_config(config), sort_keys=True, default=str)


def group_config(config: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Return a copy of a configuration without the keys in which runs of one group may differ.

    parent: key of `config` in the complete configuration, followed by a dot, or ''.
    """
    kept = {}
    for name, value in config.items():
        key = f"{parent}{name}"
        if not traits(key).same_group:
            kept[name] = group_config(value, f"{key}.") if isinstance(value, Mapping) else value
    return kept
