"""A session's part of a run: its folder, tables, checkpoints, episodes and result."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.run.atomic import write_json
from labrl.run.checkpoint import REPLAY, Checkpoint, CheckpointStore, frames_in
from labrl.run.folder import read_json
from labrl.run.lock import FolderLock
from labrl.run.write_errors import WriteErrors

if TYPE_CHECKING:
    from labrl.run.episodes import Source
    from labrl.run.run import Run
    from labrl.run.tables import Column, Table

# Methods import labrl.run.tables and labrl.run.episodes late: a wrong override must not wait for NumPy.

SessionStatus = Literal["finished", "pruned", "failed", "interrupted"]

EPISODE = ("frame", "return", "length", "truncated", "source", "environment", "number", "seed")
"""Columns of the table of recorded episodes, after the name of each episode."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SessionResult:
    """The outcome of one session, which `result.json` in its folder contains."""

    index: int
    """Number of the session in its trial."""
    seed: int
    """Seed of the session's streams, derived from the trial's seed and the index."""
    status: SessionStatus
    """`finished`, `pruned` (by a search), `failed` or `interrupted`."""
    frame: int = 0
    """Frames played."""
    opt_step: int = 0
    """Optimizer updates made."""
    wall: float = 0.0
    """Seconds of training."""
    episodes: int = 0
    """Finished whole episodes."""
    final_return: float | None = None
    """Mean return of the evaluation checkpoints in the last tenth of the frames; None without any."""
    return_mean: float | None = None
    """Mean raw return of the last `return_episodes` training episodes; None without any."""
    return_std: float | None = None
    """Population standard deviation of the same episodes; None for fewer than two."""
    return_episodes: int = 0
    """Number of training episodes of `return_mean`, at most `meta.episode_window`."""
    best_return: float | None = None
    """The highest score of an evaluation checkpoint."""
    best_source: Source | None = None
    """Kind of episodes of that score: evaluation with `meta.rigorous_eval`, otherwise the last training
    episodes. None without a score."""
    networks: dict[str, int] = field(default_factory=dict)
    """Learned parameters of each network of the agent."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of training by what they were spent on: act, env, learn, callbacks."""
    stop: dict[str, Any] | None = None
    """Limit that ended a finished session before its budget: `key`, `limit`, the `value` that reached it, and
    a sentence, `why`; None if the session used up its budget."""
    error: str | None = None
    """Error of a failed session, in one line."""

    @property
    def failure(self) -> str | None:
        """The error of a failed session in one line with its number; None if it did not fail."""
        return f"session {self.index} failed: {self.error}" if self.status == "failed" else None

    @property
    def fps(self) -> float:
        """Frames for each second of training."""
        return self.frame / self.wall if self.wall > 0 else math.nan


class RunSession:
    """A session's part of a run. Use `Run.session` or `Run.sessions` to get one.

    Methods read the files each time. Other attributes are read when they are first needed, and then kept.
    """

    def __init__(self, path: Path, run: Run | None = None) -> None:
        """run: the run that the session belongs to, which may know more about it; None if that is not
        needed."""
        self.path = path
        self._run = run
        self.errors = WriteErrors() if run is None else run.errors
        """The files that cannot be written at present."""
        self.train_csv = path / "train.csv"
        self.eval_csv = path / "eval.csv"
        self.checkpoints = path / "checkpoints"
        """Folder of the resumable states and the best model."""
        self.start = path / "start"
        """Folder of the weights of another run that the session starts from."""
        self.networks = path / "networks.txt"
        """The networks' layers and parameters, as text."""
        self.crash = path / "crash"
        """Folder of the state at a crash, if `meta.on_crash` asks for it."""
        self.profile = path / "profile"
        """Folder of the trace and the table of a profiled window."""
        self.tensorboard = path / "tensorboard"
        self.replay = path / REPLAY
        """Folder of the replay buffer, if it is stored in files."""
        self.episodes = path / "episodes"
        self.videos = path / "videos"
        self.log = path / "session.log"
        """The session's warnings, and the traceback if it crashed."""
        self.result_json = path / "result.json"
        self.progress_json = path / "progress.json"
        """Progress of the session, at most a second old while it runs."""

    @property
    def index(self) -> int:
        """Number of the session in its trial."""
        return int(self.path.name.removeprefix("session_"))

    def lock(self) -> FolderLock:
        """Return the lock of the session's own process, which may outlive the process that started it."""
        return FolderLock(self.path, part_of=self.path.parent)

    def read_result(self) -> dict[str, Any]:
        """Return the content of `result.json`; empty until the session has ended, or if the file is
        damaged."""
        return read_json(self.result_json)

    def write_result(self, result: SessionResult) -> None:
        """Write `result.json`. If that fails, `errors` has it."""
        with self.errors.tolerated(self.result_json):
            write_json(self.result_json, asdict(result))

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of `train` or `eval` in their order, as `labrl.run.tables.read_rows` does."""
        from labrl.run.tables import read_rows

        return read_rows(self.path / f"{table}.csv")

    def read_episodes(self) -> list[dict[str, Any]]:
        """Return the facts of the recorded episodes, without damaged ones, which are reported."""
        from labrl.run.episodes import read_episode, recorded_names

        rows = []
        for name in recorded_names(self.episodes):
            try:
                facts = read_episode(self.episodes / f"{name}.npz").plain()
            except LabrlError as error:
                _log.warning("%s", error)
                continue
            facts["return"] = facts["episode_return"]
            rows.append({"episode": name, **{column: facts[column] for column in EPISODE}})
        return rows

    @property
    def has_begun(self) -> bool:
        """Whether the session has ever been built."""
        return any(path.exists() for path in (self.result_json, self.progress_json, self.networks, self.log))

    @property
    def ended_well(self) -> bool:
        """Whether the session has recorded that nothing is left to do."""
        return self.read_result().get("status") in ("finished", "pruned")

    def store(self, keep_last: int = 1) -> CheckpointStore:
        """Return the checkpoints. keep_last: number of checkpoints to keep if further ones are written."""
        return CheckpointStore(self.checkpoints, keep_last)

    def checkpoint_frames(self) -> list[int]:
        """Return the frames that have a checkpoint, complete or not, newest first. Reads no files."""
        return frames_in(self.checkpoints)

    def choose_checkpoint(self, wanted: str, key: str = "checkpoint") -> tuple[Checkpoint, str]:
        """Return a checkpoint and its name.

        wanted: `best`, `latest`, a frame, or `default` for the best, or the latest if there is no best. For
        a session that was evaluated only at its end, `best` is the latest, too; key: the option that it was
        given with. Raises InputError with the list of existing checkpoints, and
        DamagedFileError if none of them is complete.
        """
        # A run whose only evaluation was that at its end has no other best model than its latest checkpoint.
        evaluated = wanted == "best" and self.best_score() > -math.inf
        kinds = ("best", "latest") if wanted == "default" or evaluated else (wanted,)
        for _ in range(3):  # a running session may replace them while they are read
            store = self.store()
            for kind in kinds:
                load = {"best": store.best, "latest": store.latest}.get(kind)
                found = load() if load is not None else store.at(int(kind))
                if found is not None:
                    return found, kind if load is not None else "chosen"
        frames, best = store.frames(), store.best_frame()
        there = [f"{frame}" for frame in frames] + ([f"{best} (best)"] if best is not None else [])
        if store.broken:
            raise DamagedFileError.about(store.folder, f"no checkpoint is complete: {store.broken_message}")
        if not there:
            why = "there is no checkpoint yet: the first is written after meta.log_frequency frames"
            raise InputError.not_found(self.checkpoints, why)
        missing = "the session has no checkpoint of that frame"
        if wanted == "best":
            missing = "no evaluation of the session with a finished episode has ended yet"
        raise InputError.not_found(
            f"{key}={wanted}",
            f"{missing}. Session {self.index} of {self.path.parent} has checkpoints of frames "
            f"{', '.join(there)} (meta.keep_last and meta.keep_every keep more)",
            f"{key}=latest" if wanted == "best" else "",
        )

    def best_score(self) -> float:
        """Return the highest score of an evaluation checkpoint; minus infinity if there is none."""
        scores = (row.get("return_mean") for row in self.read_rows("eval"))
        return max((one for one in scores if isinstance(one, int | float)), default=-math.inf)

    def final_return(self) -> float | None:
        """Return the final return according to the tables; None if they have no return."""
        from labrl.run.tables import final_return, scores_in

        scores = scores_in(*self._read_tables())
        return final_return(scores["frame"], scores["return_mean"])

    @cached_property
    def result(self) -> dict[str, Any]:
        """Content of `result.json`; empty until the session has ended."""
        found = self.read_result()
        if found or self._run is None or self._run.info.get("status") == "running":
            return found
        # For a process that died without a result, its trial wrote one, unless a resume made it obsolete.
        noted = self._run.info.get("sessions") or []
        return next((entry for entry in noted if entry.get("index") == self.index), {})

    @cached_property
    def reached(self) -> dict[str, Any]:
        """Progress of the session, which may be beyond the last row: its result, or until it has ended
        `progress.json`."""
        return self.result or read_json(self.progress_json)

    @property
    def _run_is_alive(self) -> bool:
        return self._run is not None and self._run.status == "running"

    @cached_property
    def status(self) -> str:
        """`finished`, `failed`, `interrupted`, `running`, or `killed` if its process ended without a
        result."""
        return str(self.result.get("status") or ("running" if self._run_is_alive else "killed"))

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
            found["final_return"] = self.final_return()
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
        return self._read_tables()

    def _read_tables(self) -> tuple[Table, Table]:
        from labrl.run.tables import read_table

        return read_table(self.train_csv), read_table(self.eval_csv)

    @cached_property
    def scores(self) -> dict[str, Column]:
        """The evaluation rows with a return, or the training rows of a session that was never evaluated.

        Columns `frame`, `return_mean`, `wall` and `opt_step`, [rows] each, in order of the frames.
        """
        from labrl.run.tables import scores_in

        return scores_in(*self._tables)

    def last(self, column: str) -> float | None:
        """Return the last value of a column that only grows, or None if none is known."""
        from labrl.run.tables import known

        tables = (known(table, column) for table in (self.train, self.eval))
        return max((float(values[-1]) for values in tables if len(values)), default=None)

    def furthest(self, column: str) -> float:
        """Return the last value of `frame` or `wall`, which after an interruption may be beyond the last
        row."""
        said = self.reached.get(column)
        beyond = float(said) if isinstance(said, int | float) and math.isfinite(said) else 0.0
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
    """Name sessions by their increasing numbers: `session 2`, `sessions 0, 1 and 3`, `sessions 0 to 7`."""
    if len(numbers) == 1:
        return f"session {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"sessions {numbers[0]} to {numbers[-1]}"
    return f"sessions {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
