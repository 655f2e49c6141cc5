"""One session as a run of Weights & Biases, updated from the session's folder."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from labrl.dashboards.login import Mode
from labrl.errors import DONE, FAILED, INTERRUPTED, first_line
from labrl.processes.secrets import redact
from labrl.run.atomic import write_json
from labrl.run.folder import read_json
from labrl.run.run import Run
from labrl.run.session import RunSession

INIT_SECONDS = 30.0
"""Seconds that W&B may take to start a run before it is kept offline. WANDB_INIT_TIMEOUT overrides this."""

_SHARE_OF_READING = 20
"""The process waits at least this many times as long as it took to read the tables before it reads them
again."""

_PACKAGES = ("labrl", "torch", "numpy", "gymnasium", "ale-py", "hydra-core", "wandb")
_PROVENANCE = ("started", "command", "git", "python", "machine", "overrides")
_SUMMARY = (
    *("final_return", "return_mean", "return_std", "best_return", "best_source", "return_episodes"),
    *("frame", "episodes", "wall", "seed", "status", "error"),
)
_EXIT_CODES = {"finished": DONE, "pruned": DONE, "interrupted": INTERRUPTED}

_log = logging.getLogger(__name__)


class WandbSession:
    """A W&B run that contains each row of a session's tables up to the newest checkpoint exactly once.

    No row is sent that a resume could undo: rows after the newest checkpoint wait for the next checkpoint.
    Rows of both tables at the same frame become one row in W&B, with the frame as its step. Online, the
    server knows where to continue. Offline, logs that never left this machine are written again. `wandb.json`
    in the session's folder holds the id of the W&B run, and the last frame of each of W&B's other logs.
    """

    def __init__(self, run: Run, index: int, mode: Mode, options: Mapping[str, Any]) -> None:
        """mode: online or offline; options: a `WandbConfig` as plain data."""
        self.folder: RunSession = run.session(index)
        self.mode = mode
        self.warning: str | None = None
        """Text on the first problem; None if there was none."""
        self.ended = False
        self._run_folder = run
        self._config = run.read_config()
        self._options = options
        self._state = self.folder.path / "wandb.json"
        known = read_json(self._state)
        self._id = known.get("id") or secrets.token_hex(6)
        self._logs: dict[str, int] = known.get("logs", {})
        """Last frame in each of W&B's logs, by the name of the log's folder."""
        self._wandb: Any = None
        self._sent = -1
        self._next = 0.0

    def go_offline(self, error: Exception) -> None:
        """Keep the run offline from its start, because W&B cannot be reached."""
        self.mode = "offline"
        self._warn(f"not reachable ({first_line(error)}), so the run is kept offline")

    def start(self) -> None:
        """Create or continue the W&B run. Raises the errors of W&B."""
        self._record()  # so that the id survives a kill from now on
        # Remove logs that never left this machine, because their rows are written again.
        for log in (self.folder.path / "wandb").glob(f"*run-*-{self._id}"):
            offline = log.name.startswith("offline-")
            if self._logs.get(log.name, -1) < 0 or (offline and not list(log.glob("*.synced"))):
                shutil.rmtree(log, ignore_errors=True)
                self._logs.pop(log.name, None)
        self._wandb = self._init()
        self._sent = max(self._logs.values(), default=-1)
        if self.mode == "online":
            self._sent = self._wandb.starting_step - 1
        self._wandb.define_metric("frame")
        for table in ("train", "eval"):
            self._wandb.define_metric(f"{table}/*", step_metric="frame")
        self._record()

    def update(self) -> None:
        """Send the new rows up to the newest checkpoint."""
        now = time.monotonic()
        newest = max(self.folder.checkpoint_frames(), default=-1)
        if newest <= self._sent or now < self._next:
            return
        if self._config["meta"].get("async_eval") and self.folder.read_result().get("status") != "finished":
            # Steps of W&B can only increase, so rows before a running evaluation wait for it.
            evaluated = [int(row["frame"]) for row in self.folder.read_rows("eval")]
            newest = min(newest, max(evaluated, default=-1))
        for frame, metrics in self._rows(newest):
            self._log(metrics, frame)
        self._record()
        self._next = time.monotonic() + _SHARE_OF_READING * (time.monotonic() - now)

    def _log(self, metrics: dict[str, Any], step: int) -> None:
        self._wandb.log(metrics, step=step, commit=True)
        self._sent = step

    def wants(self, artifact: str) -> bool:
        """Return whether `artifact` (best, report, videos, media) is configured."""
        return artifact in self._options["artifacts"]

    def finish(self, report: Path | None = None) -> None:
        """Send the remaining rows, the summary, the artifacts, and how the session ended.

        report: path of the trial's report, if it is uploaded to this W&B run; None otherwise. Raises
        TimeoutError if the uploads take longer than `wandb.wait`, and the errors of W&B.
        """
        self._next = 0.0
        self.update()
        result = self.folder.read_result() or {"status": "failed"}
        facts = {key: result[key] for key in _SUMMARY if result.get(key) is not None}
        self._wandb.summary.update(facts)
        if self.wants("media"):
            from wandb import Video

            media = {}
            for path in sorted(self.folder.videos.glob("*.mp4")):
                name = path.stem.partition("_")[0]  # best or latest
                media[f"videos/{name}"] = Video(str(path), caption=path.stem.replace("_", " "), format="mp4")
            if media:
                self._log({"frame": self._sent, **media}, self._sent + 1)
        store = self.folder.store()
        if self.wants("best") and (frame := store.best_frame()) is not None:
            scores = {row["frame"]: row["return_mean"] for row in self.folder.read_rows("eval")}
            best = store.path_of(frame)
            self._add("best", "model", best, "*.*", frame=frame, best_return=scores.get(frame))
        if self.wants("videos"):
            self._add("videos", "videos", self.folder.videos, "*.mp4")
        if report is not None:
            self._add("report", "report", report.parent, report.name)
        self._wandb.finish(exit_code=_EXIT_CODES.get(result["status"], FAILED))
        self.ended = True

    def fail(self, error: Exception) -> None:
        """Give up this run, and record the reason."""
        self.ended = True
        late = isinstance(error, TimeoutError)
        self._warn(
            "the upload did not finish in time"
            if late
            else f"an error ended the upload ({first_line(error)})"
        )

    def _warn(self, text: str) -> None:
        self.warning = self.warning or text
        _log.warning("session %d: %s", self.folder.index, text)
        self._record()

    def _record(self) -> None:
        url = None
        if self._wandb is not None:
            self._logs[Path(self._wandb.dir).parent.name] = self._sent
            url = self._wandb.url if self.mode == "online" else None
        facts = {"mode": self.mode, "url": url, "warning": self.warning, "logs": self._logs}
        write_json(self._state, {"id": self._id, **facts})

    def _rows(self, upto: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the frames in (`_sent`, `upto`] in order, each with the numbers of both tables and the time
        at which its row was written."""
        merged: dict[int, dict[str, Any]] = {}
        for table in ("train", "eval"):
            rows = self.folder.read_rows(table)
            time_of = self._times(table, rows)
            for row in rows:
                frame = int(row.pop("frame"))
                if self._sent < frame <= upto:
                    numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
                    found = merged.setdefault(frame, {"frame": frame})
                    found.update({f"{table}/{key}": value for key, value in numbers.items()})
                    if made := time_of(frame, row.get("wall")):
                        found.setdefault("_timestamp", made)
        yield from sorted(merged.items())

    def _times(
        self, table: str, table_rows: Sequence[Mapping[str, Any]]
    ) -> Callable[[int, Any], float | None]:
        """Return a function from the frame and the `wall` of a row to the time at which the row was written.

        The last row was written at the modification time of the file. For other rows since the last resume,
        this time minus the training time between the row and the last row is returned. Earlier rows are timed
        from the start of their part of the run.
        """
        path = self.folder.path / f"{table}.csv"
        rows = [(row["frame"], row["wall"]) for row in table_rows if isinstance(row.get("wall"), int | float)]
        info = self._run_folder.read_info()
        starts = [(0, 0.0, info.get("created"))]
        for resume in info.get("resumes", []):
            begin = int(resume["frames"].get(str(self.folder.index), 0))
            past = [wall for frame, wall in rows if frame <= begin]
            starts.append((begin, past[-1] if past else 0.0, resume["time"]))

        def time_of(frame: int, wall: Any) -> float | None:
            if not isinstance(wall, int | float) or not rows:
                return None
            begin, past, moment = [start for start in starts if start[0] < frame or start is starts[0]][-1]
            if begin == starts[-1][0]:
                return path.stat().st_mtime - (rows[-1][1] - wall)
            return datetime.fromisoformat(str(moment)).timestamp() + wall - past

        return time_of

    def _init(self) -> Any:
        import wandb

        return wandb.init(
            **self._names(),
            mode="online" if self.mode == "online" else "offline",
            dir=str(self.folder.path),
            entity=self._options["entity"],
            id=self._id,
            resume="allow" if self.mode == "online" else None,
            job_type="session",
            tags=self._options["tags"],
            allow_val_change=True,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,  # provenance records the commit and the changes
                disable_code=True,
                disable_job_creation=True,
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
                finish_timeout=max(self._options["wait"], 0.1),
                finish_timeout_raises=True,
                x_stats_pid=os.getppid(),  # the trial, with the sessions below it
                x_stats_track_process_tree=True,
            ),
        )

    def _names(self) -> dict[str, Any]:
        """Return the project, name, group and configuration of the W&B run.

        The configuration is that of the trial, with the index of the session and the provenance.
        """
        several = self._config["meta"]["max_session"] > 1
        name = self._options["name"] or self._run_folder.path.name
        experiment = self._run_folder.experiment
        group = [experiment.name] if experiment else []
        facts = self._run_folder.read_provenance()
        versions = facts.get("packages", {})
        recorded = {
            **{key: value for key, value in self._config.items() if key != "wandb"},
            "session": self.folder.index,
            "run_folder": str(self._run_folder.path),
            "experiment": experiment.name if experiment else None,
            "provenance": {
                **{key: facts[key] for key in _PROVENANCE if key in facts},
                "packages": {name: versions[name] for name in _PACKAGES if name in versions},
                "resumes": len(self._run_folder.read_info().get("resumes", [])),
            },
        }
        return {
            "project": self._options["project"],
            "name": f"{name}_{self.folder.index}" if several else name,
            "group": self._options["group"] or "/".join([*group, self._run_folder.path.name]),
            "config": redact(recorded),
        }

    def _add(self, name: str, kind: str, folder: Path, pattern: str, **facts: Any) -> None:
        if files := sorted(folder.glob(pattern)):
            from wandb import Artifact

            artifact = Artifact(f"{self._id}-{name}", type=kind, metadata=facts)
            for file in files:
                artifact.add_file(str(file), name=file.name)
            self._wandb.log_artifact(artifact)
