"""`python -m labrl.dashboards.wandb_session`: send sessions to W&B while other processes train them.

`labrl.dashboards.sender` starts this process, and writes to its standard input: first a line of JSON with
what to send, then a line `end` when the trial is over. If the input ends without this line, the trial was
killed, and the process exits at once.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from labrl.errors import DONE, FAILED, INTERRUPTED, first_line
from labrl.processes.secrets import RedactingFormatter, redact
from labrl.run.atomic import write_json
from labrl.run.folder import read_json
from labrl.run.run import Run

POLL_SECONDS = 1.0
"""Seconds between two looks at the run folder."""

INIT_SECONDS = 30.0
"""Seconds that W&B may take to start a run before it is kept offline. WANDB_INIT_TIMEOUT overrides this."""

_PROVENANCE = ("started", "command", "git", "python", "machine", "overrides")
_EXIT_CODES = {"finished": DONE, "pruned": DONE, "interrupted": INTERRUPTED}

_log = logging.getLogger(__name__)


class WandbSession:
    """One session as a run of W&B that contains each row of its tables up to the newest checkpoint once.

    No row is sent that a resume could undo: rows after the newest checkpoint wait for the next checkpoint.
    Rows of both tables at the same frame become one row in W&B, with the frame as its step. Online, the
    server knows where to continue. Offline, logs that never left this machine are written again. `wandb.json`
    in the session's folder holds the id of the W&B run, and the last frame of each of W&B's logs.
    """

    def __init__(self, run: Run, index: int, mode: str, options: Mapping[str, Any]) -> None:
        """mode: online or offline; options: a `WandbConfig` as plain data."""
        self.folder = run.session(index)
        self.mode = mode
        self.ended = False
        self._run_folder, self._config, self._options = run, run.read_config(), options
        self._state = self.folder.path / "wandb.json"
        known = read_json(self._state)
        self.id = known.get("id") or secrets.token_hex(6)
        self._logs: dict[str, int] = known.get("logs", {})
        """Last frame in each of W&B's logs, by the name of the log's folder."""
        self._warning: str | None = None
        self._wandb: Any = None
        self._sent = -1

    def start(self) -> None:
        """Create or continue the W&B run, offline if the server cannot be reached."""
        import wandb

        self._record()  # so that the id survives a kill from now on
        try:
            self._wandb = self._init(wandb)
        except Exception as error:
            if self.mode == "offline":
                raise
            wandb.teardown()  # otherwise the id stays in use
            self._warn(f"not reachable ({first_line(error)}), so the run is kept offline", error)
            self.mode = "offline"
            self._wandb = self._init(wandb)
        self._sent = max(self._logs.values(), default=-1)
        if self.mode == "online":
            self._sent = self._wandb.starting_step - 1
        self._wandb.define_metric("frame")
        for table in ("train", "eval"):
            self._wandb.define_metric(f"{table}/*", step_metric="frame")
        self._record()

    def update(self) -> None:
        """Send the new rows up to the newest checkpoint."""
        newest = max(self.folder.checkpoint_frames(), default=-1)
        if newest <= self._sent:
            return
        if self._config["meta"].get("async_eval") and self.folder.read_result().get("status") != "finished":
            # Steps of W&B can only increase, so rows before a running evaluation wait for it.
            evaluated = [int(row["frame"]) for row in self.folder.read_rows("eval")]
            newest = min(newest, max(evaluated, default=-1))
        for frame, metrics in self._rows(newest):
            self._wandb.log(metrics, step=frame)
            self._sent = frame
        self._record()

    def finish(self, report: Path | None = None) -> None:
        """Send the remaining rows, the summary, the artifacts, and how the session ended.

        report: path of the trial's report, if it is uploaded to this W&B run; None otherwise. Raises
        TimeoutError if the uploads take longer than `wandb.wait`, and the errors of W&B.
        """
        from wandb import Video

        self.update()
        result = self.folder.read_result() or {"status": "failed"}
        plain = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
        self._wandb.summary.update(plain)
        wanted, store = self._options["artifacts"], self.folder.store()
        films = sorted(self.folder.videos.glob("*.mp4"))
        if "media" in wanted and films:  # by the first word of their names, best or latest
            shown = {f"videos/{one.stem.partition('_')[0]}": Video(str(one), format="mp4") for one in films}
            self._sent += 1
            self._wandb.log(shown, step=self._sent)
        if "best" in wanted and (frame := store.best_frame()) is not None:
            self._add("best", "model", sorted(store.path_of(frame).iterdir()))
        if "videos" in wanted and films:
            self._add("videos", "videos", films)
        if report is not None:
            self._add("report", "report", [report])
        self._wandb.finish(exit_code=_EXIT_CODES.get(result["status"], FAILED))
        self.ended = True

    def attempt(self, action: Callable[[], Any]) -> None:
        """Call `action` unless the W&B run has ended. An error of W&B ends only this W&B run."""
        try:
            if not self.ended:
                action()
        except Exception as error:
            self.ended = True
            self._warn(f"an error ended the upload ({first_line(error)})", error)

    def _warn(self, text: str, error: Exception) -> None:
        self._warning = self._warning or text
        _log.warning("session %d: %s", self.folder.index, text, exc_info=error)
        self._record()

    def _record(self) -> None:
        url = None
        if self._wandb is not None:
            self._logs[Path(self._wandb.dir).parent.name] = self._sent
            url = self._wandb.url if self.mode == "online" else None
        facts = {"id": self.id, "mode": self.mode, "url": url, "warning": self._warning, "logs": self._logs}
        write_json(self._state, facts)

    def _rows(self, upto: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the frames in (`_sent`, `upto`] in order, each with the numbers of both tables."""
        merged: dict[int, dict[str, Any]] = {}
        for table in ("train", "eval"):
            for row in self.folder.read_rows(table):
                frame = int(row.pop("frame"))
                if self._sent < frame <= upto:
                    numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
                    found = {f"{table}/{key}": value for key, value in numbers.items()}
                    merged.setdefault(frame, {"frame": frame}).update(found)
        yield from sorted(merged.items())

    def _init(self, wandb: Any) -> Any:
        """Start the W&B run, with the configuration of the trial, the session's index and the provenance."""
        # Remove logs that never left this machine, because their rows are written again.
        for log in (self.folder.path / "wandb").glob(f"*run-*-{self.id}"):
            offline = log.name.startswith("offline-")
            if self._logs.get(log.name, -1) < 0 or (offline and not list(log.glob("*.synced"))):
                shutil.rmtree(log, ignore_errors=True)
                self._logs.pop(log.name, None)
        experiment, facts = self._run_folder.experiment, self._run_folder.read_provenance()
        name = self._options["name"] or self._run_folder.path.name
        recorded = {
            **{key: value for key, value in self._config.items() if key != "wandb"},
            "session": self.folder.index,
            "run_folder": str(self._run_folder.path),
            "experiment": experiment.name if experiment else None,
            "provenance": {key: facts[key] for key in _PROVENANCE if key in facts},
        }
        home = f"{experiment.name}/" if experiment else ""
        return wandb.init(
            project=self._options["project"],
            entity=self._options["entity"],
            name=f"{name}_{self.folder.index}" if self._config["meta"]["max_session"] > 1 else name,
            group=self._options["group"] or f"{home}{self._run_folder.path.name}",
            config=redact(recorded),
            mode=self.mode,
            dir=str(self.folder.path),
            id=self.id,
            resume="allow",
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

    def _add(self, name: str, kind: str, files: list[Path]) -> None:
        from wandb import Artifact

        artifact = Artifact(f"{self.id}-{name}", type=kind)
        for file in files:
            artifact.add_file(str(file), name=file.name)
        self._wandb.log_artifact(artifact)


def main() -> None:
    """Follow the sessions until the trial ends, then finish their W&B runs."""
    for ours in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ours, signal.SIG_IGN)  # the trial receives the signal too, and reports its end
    logging.basicConfig(level=logging.INFO)
    logging.getLogger().handlers[0].setFormatter(RedactingFormatter("%(asctime)s %(message)s"))
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 (unbuffered, for select)
    order = json.loads(orders.readline() or b"null") or sys.exit(1)
    run, options = Run.open(order["folder"]), order["options"]
    sessions: list[WandbSession] = []
    mode = options["mode"]
    for index in order["sessions"]:
        session = WandbSession(run, index, mode, options)
        session.attempt(session.start)
        sessions.append(session)
        mode = session.mode  # if the server cannot be reached, wait for it only once
    patience = 0.0  # rows may have arrived while the sessions started
    while not select.select([orders], [], [], patience)[0]:
        for session in sessions:
            session.attempt(session.update)
        patience = POLL_SECONDS
    if orders.readline().strip() != b"end":
        os._exit(1)
    report: Path | None = run.report if "report" in options["artifacts"] and run.report.exists() else None
    for session in sessions:
        session.attempt(partial(session.finish, report))
        report = None  # once for the trial


if __name__ == "__main__":
    main()
