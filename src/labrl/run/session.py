"""The files of one session of a run: folder, tables, checkpoints, episodes and result."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labrl.errors import DamagedFileError, InputError, LabrlError, first_line, key_in
from labrl.run.atomic import write_json
from labrl.run.checkpoint import REPLAY, Checkpoint, CheckpointStore
from labrl.run.folder import Status, read_json
from labrl.run.lock import LOOK_SECONDS, FolderLock
from labrl.run.write_errors import WriteErrors

if TYPE_CHECKING:
    from labrl.run.episodes import Source
    from labrl.run.run import Run
    from labrl.run.tables import Column, Table

# Methods import labrl.run.tables and labrl.run.episodes late: a wrong override must not wait for NumPy.

EPISODE = ("frame", "return", "length", "truncated", "source", "environment", "number", "seed")
"""Columns of the table of recorded episodes that follow the name of the episode."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SessionResult:
    """The result of one session, as `result.json` in the session's folder contains it."""

    index: int
    """Index of the session in its trial."""
    seed: int
    """Seed of the session's random streams, derived from the trial's seed and the session's index."""
    status: Status
    """How the session ended: `finished`, `pruned` (by a search), `failed` or `interrupted`."""
    frame: int = 0
    """Number of frames that were played."""
    opt_step: int = 0
    """Number of optimizer updates that were made."""
    wall: float = 0.0
    """Duration of the training in seconds."""
    episodes: int = 0
    """Number of complete episodes."""
    final_return: float | None = None
    """Mean return of the evaluation checkpoints in the last tenth of the frames; None if there are none."""
    info: dict[str, float] = field(default_factory=dict)
    """Mean of each number of `env.info_keys` over the same checkpoints, by name. Numbers that no checkpoint
    has are left out."""
    return_mean: float | None = None
    """Mean raw return of the last `return_episodes` training episodes; None if there are none."""
    return_std: float | None = None
    """Population standard deviation of the raw returns that `return_mean` averages; None for fewer than
    two."""
    return_episodes: int = 0
    """Number of training episodes over which `return_mean` averages, at most `meta.episode_window`."""
    best_return: float | None = None
    """Highest score of an evaluation checkpoint; None if there is none."""
    best_source: Source | None = None
    """Kind of the episodes behind `best_return`: `evaluation` with `meta.rigorous_eval`, otherwise `training`
    (the last training episodes). None if there is no score."""
    networks: dict[str, int] = field(default_factory=dict)
    """Number of learned parameters of each network of the agent, by name."""
    phases: dict[str, float] = field(default_factory=dict)
    """Duration of each phase of the training in seconds: act, env, learn, callbacks, check (of
    whether episodes repeat)."""
    stop: dict[str, Any] | None = None
    """Limit that ended a finished session before its budget, as a dict: `key`, `limit`, `value` (which
    reached the limit) and the sentence `why`; None if the session used up its budget."""
    error: str | None = None
    """Error message of a failed session, in one line; None if it did not fail."""

    @property
    def failure(self) -> str | None:
        """Error of a failed session in one line, with the index of the session; None if the session did not
        fail."""
        return f"session {self.index} failed: {self.error}" if self.status == "failed" else None

    @property
    def fps(self) -> float:
        """Frames per second of training; nan if there was no training."""
        return self.frame / self.wall if self.wall > 0 else math.nan


class RunSession:
    """One session of a run on disk. Use `Run.session` or `Run.sessions` to get an instance.

    Methods read files anew at each call. Attributes are read when they are first needed, and then kept.
    """

    def __init__(self, path: Path, run: Run | None = None) -> None:
        """path: folder of the session; run: the run to which the session belongs. None is allowed if
        attributes that depend on the run's status or metadata are not needed."""
        self.path = path
        self._run = run
        self.errors = WriteErrors() if run is None else run.errors
        """Record of the session's files that cannot be written at present."""
        self.train_csv = path / "train.csv"
        self.eval_csv = path / "eval.csv"
        self.checkpoints = path / "checkpoints"
        """Folder of the checkpoints: resumable states and the best model."""
        self.start = path / "start"
        """Folder of the initial weights, if the session starts from weights of another run."""
        self.networks = path / "networks.txt"
        """File that lists the networks' layers and parameters as text."""
        self.crash = path / "crash"
        """Folder of the state at a crash, if `meta.on_crash` requests that it is saved."""
        self.profile = path / "profile"
        """Folder of the trace and the table of a profiled part of the training."""
        self.tensorboard = path / "tensorboard"
        self.replay = path / REPLAY
        """Folder of the replay buffer, if it is stored in files."""
        self.episodes = path / "episodes"
        self.videos = path / "videos"
        self.best_video = self.videos / "best.mp4"
        """Video of the best episode, if it was made."""
        self.log = path / "session.log"
        """File with the session's warnings, and the traceback if the session crashed."""
        self.result_json = path / "result.json"
        self.progress_json = path / "progress.json"
        """File with the progress of the session, at most a second old while the session runs."""

    @property
    def index(self) -> int:
        """Index of the session in its trial."""
        return int(self.path.name.removeprefix("session_"))

    @property
    def inexact(self) -> list[str]:
        """Configuration keys that make the run irreproducible, as its `run.json` contains them."""
        return [] if self._run is None else list(self._run.read_info().get("inexact", []))

    def add_inexact(self, key: str) -> None:
        """Record in `run.json` that a configuration key makes the run irreproducible."""
        if self._run is not None:
            self._run.update(inexact=list(dict.fromkeys([*self.inexact, key])))

    def lock(self, patience: float = LOOK_SECONDS) -> FolderLock:
        """Return the lock that the session's own process holds, because this process may outlive the process
        that started it. patience: time in seconds to wait for the lock."""
        return FolderLock(self.path, self.path.parent, patience)

    def read_result(self) -> dict[str, Any]:
        """Return the content of `result.json`; an empty dict until the session has ended, or if the file is
        damaged."""
        return read_json(self.result_json)

    def write_result(self, result: SessionResult) -> None:
        """Write `result.json`. If writing fails, `errors` records the file."""
        with self.errors.tolerated(self.result_json):
            write_json(self.result_json, asdict(result))

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of the table `train` or `eval` in the order of the file; see
        `labrl.run.tables.read_rows`."""
        from labrl.run.tables import read_rows

        return read_rows(self.path / f"{table}.csv")

    def read_episodes(self) -> list[dict[str, Any]]:
        """Return the metadata of the recorded episodes. Damaged episodes are skipped with a warning."""
        from labrl.run.episodes import read_episode, recorded_names

        rows = []
        for name in recorded_names(self.episodes):
            try:
                facts = read_episode(self.episodes / f"{name}.npz").plain()
            except LabrlError as error:
                _log.warning("%s", error)
            else:
                facts["return"] = facts["episode_return"]
                rows.append({"episode": name, **{column: facts[column] for column in EPISODE}})
        return rows

    @property
    def has_begun(self) -> bool:
        """Whether the session has ever been started, even if it has played no frames."""
        return any(path.exists() for path in (self.result_json, self.progress_json, self.networks, self.log))

    @property
    def ended_well(self) -> bool:
        """Whether the session has recorded that it finished or was pruned."""
        return self.read_result().get("status") in ("finished", "pruned")

    def store(self, keep_last: int = 1) -> CheckpointStore:
        """Return the store of the session's checkpoints. keep_last: number of checkpoints that are kept when
        further ones are written."""
        return CheckpointStore(self.checkpoints, keep_last)

    def checkpoint_frames(self) -> list[int]:
        """Return the frames at which there is a checkpoint, complete or not, newest first. No files are
        read."""
        return self.store().frames()

    def choose_checkpoint(self, wanted: str, option: str = "checkpoint={}") -> tuple[Checkpoint, str]:
        """Load a checkpoint, and return it with its kind: `best`, `latest` or `chosen`.

        wanted: `best`, `latest`, a frame, or `default`, which is the best checkpoint, or the latest if there
        is no best one. If the session was evaluated only at its end, or if its best checkpoint is missing or
        damaged, `best` is the latest checkpoint. option: text for messages on how to set `wanted`, with {}
        for its value. Raises InputError, which lists the existing checkpoints, if there is no such
        checkpoint, and DamagedFileError if no checkpoint is complete.
        """
        # If the only evaluation of a run was at its end, its best model is its latest checkpoint.
        evaluated = wanted == "best" and self.best_score() > -math.inf
        kinds = ("best", "latest") if wanted == "default" or evaluated else (wanted,)
        for _ in range(3):  # a running session may replace checkpoints while they are read
            store = self.store()
            load = {"best": store.best, "latest": store.latest}
            for kind in kinds:
                found = load[kind]() if kind in load else store.at(int(kind))
                if found is not None:
                    return found, kind if kind in load else "chosen"
        if store.broken:
            raise DamagedFileError.about(store.folder, f"no checkpoint is complete: {store.broken_message}")
        if not store.frames():
            why = "there is no checkpoint yet: the first is written after meta.log_frequency frames"
            raise InputError.not_found(self.checkpoints, why)
        best = store.best_frame()
        raise InputError.about(
            option.format(int(wanted) if wanted.isdecimal() else wanted),
            f"session {self.index} of {self.path.parent} has checkpoints at frames "
            f"{', '.join(map(str, store.frames()))}, {'and no best one' if best is None else f'best {best}'}",
            f"Write {option.format('latest')}, or set meta.keep_last to keep more",
            code="not-found",
            key=key_in(option),
        )

    def best_score(self) -> float:
        """Return the highest score of an evaluation checkpoint; minus infinity if there is none."""
        scores = (row.get("return_mean") for row in self.read_rows("eval"))
        return max((one for one in scores if isinstance(one, int | float)), default=-math.inf)

    def final_values(self) -> dict[str, Any]:
        """Compute `final_return` (None if the tables have no return) and `info` from the session's tables."""
        from labrl.run.tables import final_values, scores_in

        return final_values(scores_in(*self._read_tables()))

    @cached_property
    def result(self) -> dict[str, Any]:
        """Content of `result.json`; an empty dict until the session has ended."""
        found = self.read_result()
        if found or self._run is None or self._run.info.get("status") == "running":
            return found
        # For a process that died without a result, its trial wrote one, unless a resume made it obsolete.
        noted = self._run.info.get("sessions") or []
        return next((entry for entry in noted if entry.get("index") == self.index), {})

    @cached_property
    def reached(self) -> dict[str, Any]:
        """Result of the session or, until it has ended, the content of `progress.json`. The session may have
        progressed beyond the last row of its tables."""
        return self.result or read_json(self.progress_json)

    @property
    def _run_is_alive(self) -> bool:
        return self._run is not None and self._run.status == "running"

    @cached_property
    def status(self) -> str:
        """Status of the session: `finished`, `pruned`, `failed`, `interrupted`, `running`, or `killed` if its
        process ended without a result."""
        return str(self.result.get("status") or ("running" if self._run_is_alive else "killed"))

    @property
    def seed(self) -> int | None:
        """Seed of the session's random streams; None until the session has ended."""
        return self.result.get("seed")

    @cached_property
    def outcome(self) -> dict[str, Any]:
        """Result of the session, or its progress if it has not ended: `frame`, `final_return`, `info`,
        `status`, ...

        The session's tables are read only if the result and the progress lack a final return.
        """
        found = {**self.reached, "status": self.status}
        if found.get("final_return") is None:
            found |= self.final_values()
        return found

    @property
    def train(self) -> dict[str, Column]:
        """Columns of the training rows by name, sorted by `frame`, with one row for each frame and nan for
        empty cells."""
        return self._tables[0].columns

    @property
    def eval(self) -> dict[str, Column]:
        """Columns of the evaluation rows by name, sorted by `frame`, with one row for each frame and nan for
        empty cells."""
        return self._tables[1].columns

    @cached_property
    def _tables(self) -> tuple[Table, Table]:
        return self._read_tables()

    def _read_tables(self) -> tuple[Table, Table]:
        from labrl.run.tables import read_table

        return read_table(self.train_csv), read_table(self.eval_csv)

    @cached_property
    def scores(self) -> dict[str, Column]:
        """Columns of the evaluation rows that have a return or, if there are none, of the training rows that
        have a return.

        The columns are `frame`, `return_mean`, `wall`, `opt_step` and those of `env.info_keys`, [rows] each,
        in the order of the frames.
        """
        from labrl.run.tables import scores_in

        return scores_in(*self._tables)

    def last(self, column: str) -> float | None:
        """Return the last value of a column that never decreases; None if no value is known."""
        from labrl.run.tables import known

        tables = (known(table, column) for table in (self.train, self.eval))
        return max((float(values[-1]) for values in tables if len(values)), default=None)

    def furthest(self, column: str) -> float:
        """Return the furthest known value of `frame` or `wall`, which may be beyond the last row after an
        interruption."""
        said = self.reached.get(column)
        beyond = float(said) if isinstance(said, int | float) and math.isfinite(said) else 0.0
        return max(self.last(column) or 0.0, beyond)

    @cached_property
    def warnings(self) -> list[str]:
        """Messages about problems of the session: why it failed, and what its files lack."""
        found = [f"failed: {first_line(self.result['error'])}"] if self.result.get("error") else []
        found += [warning for table in self._tables for warning in table.warnings]
        if not self._run_is_alive and any(table.cut for table in self._tables):
            found.append("an incomplete last line is left out")  # normal while the file is being written
        if self.status != "finished" or self.result.get("stop"):  # no training row marks the end
            return found
        end = self.result.get("frame")
        for path, table in zip((self.train_csv, self.eval_csv), self._tables, strict=True):
            reached = int(max(table.columns["frame"], default=0))
            if not path.exists():
                found.append(f"{path.name} is missing")
            elif end is not None and reached < end:  # for example in an incomplete copy
                found.append(f"{path.name} ends at frame {reached:,} of {end:,}: later rows are missing")
        if not self.read_result():
            found.append(f"{self.result_json.name} is missing or damaged")
        return found


def sessions_text(numbers: Sequence[int]) -> str:
    """Return a text that names sessions: `session 2`, `sessions 0, 1 and 3`, `sessions 0 to 7`. numbers:
    indices, in increasing order."""
    if len(numbers) == 1:
        return f"session {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"sessions {numbers[0]} to {numbers[-1]}"
    return f"sessions {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
