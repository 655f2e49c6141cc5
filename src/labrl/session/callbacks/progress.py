"""Progress of a trial: a small file for each session, and the display of all sessions."""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from labrl.run.atomic import write_json
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.callbacks.display import REFRESH_SECONDS, Display, SessionProgress

_LOSSES = re.compile(r".*loss.*|entropy|td_error|q_mean|exploration")
_NUM_LOSSES = 4


class Progress(Callback):
    """Write the session's `progress.json` at most once a second, and show it if the session runs alone."""

    frequencies = ()

    def __init__(self, show: bool) -> None:
        """show: whether this process writes to the terminal; several sessions leave this to `TrialPanel`."""
        self._display = Display(1) if show else None
        self._rows = 0
        self._points: deque[tuple[float, int]] = deque(maxlen=11)  # times and frames of the latest steps
        self._returns: deque[float] = deque(maxlen=32)
        self._losses: dict[str, float] = {}

    def start(self, session: SessionView) -> None:
        """Show the frame at which the session starts."""
        self.step(session)

    def step(self, session: SessionView) -> None:
        """Show the current progress."""
        self._points.append((time.perf_counter(), session.clock.frame))
        self._show(session, "running")

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Keep the values of a row that the panel shows, and count the row."""
        if table != "train":
            return
        self._rows += 1
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        if "return_mean" in finite:
            self._returns.append(float(finite["return_mean"]))
        losses = [name for name in finite if _LOSSES.fullmatch(name)]
        self._losses = {name: float(finite[name]) for name in losses[:_NUM_LOSSES]}

    def finish(self, session: SessionView) -> None:
        """Show how the session ended."""
        ended = "finished" if session.clock.finished or session.stop() else "failed"
        self._show(session, "interrupted" if session.interrupted() else ended)
        if self._display is not None:
            self._display.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the returns shown in the spark line."""
        return {"returns": list(self._returns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._returns.extend(state["returns"])

    def _show(self, session: SessionView, status: str) -> None:
        (since, first), (until, last) = self._points[0], self._points[-1]
        clock, score = session.clock, session.episodes.statistics()["return_mean"]
        total = sum(session.timers.seconds.values())
        progress = SessionProgress(
            index=session.index,
            frame=clock.frame,
            max_frame=clock.max_frame,
            episode=clock.episode,
            return_mean=None if math.isnan(score) else score,
            fps=(last - first) / (until - since) if until > since else None,
            wall=clock.wall,
            rows=self._rows,
            status=status,
            phases={name: spent / total for name, spent in session.timers.seconds.items() if total > 0},
            returns=list(self._returns),
            losses=self._losses,
            max_wall=clock.max_wall,
        )
        with session.folder.errors.tolerated(session.folder.progress_json):
            write_json(session.folder.progress_json, asdict(progress), durable=False)
        if self._display is not None:
            self._display.show([progress])
        self.next_time = time.perf_counter() + REFRESH_SECONDS


class Panel:
    """A display that is updated at most once a second from files of other processes.

    Use this as a context manager and call `refresh` as often as convenient.
    """

    def __init__(self, display: Display | None) -> None:
        """display: None to show nothing."""
        self._display = display
        self._next = 0.0

    def __enter__(self) -> Self:
        self.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self.finish(self._display)
            self._display.close()

    def refresh(self, now: bool = False) -> None:
        """Show the current progress. A call within a second of the previous one has no effect unless `now` is
        true."""
        if self._display is not None and (now or time.monotonic() >= self._next):
            self.show(self._display)
            self._next = time.monotonic() + REFRESH_SECONDS

    def show(self, display: Display) -> None:
        """Show the current progress."""
        raise NotImplementedError

    def finish(self, display: Display) -> None:
        """Show the remaining output at the end."""
        self.show(display)


class TrialPanel(Panel):
    """Show the sessions of a trial that run in separate processes, from their `progress.json`.

    Warnings in their `session.log` are printed above the panel.
    """

    def __init__(
        self,
        folder: Run,
        num_sessions: int,
        max_frame: int,
        enabled: bool = True,
        console: Console | None = None,
    ) -> None:
        """max_frame: budget of each session; enabled: whether to show anything."""
        super().__init__(Display(num_sessions, console) if enabled else None)
        paths = [folder.path / f"session_{index}" for index in range(num_sessions if enabled else 0)]
        self._sessions = [(session, LogLines(session.log, WARNING)) for session in map(RunSession, paths)]
        self._max_frame = max_frame
        self._ended: Collection[int] = ()

    def update(self, ended: Collection[int] = ()) -> None:
        """Show the current progress of the sessions. A call within a second of the previous one has no
        effect.

        ended: indices of sessions whose process has ended; the file of a killed session still says `running`.
        """
        self._ended = ended
        self.refresh()

    def show(self, display: Display) -> None:
        """Print new warnings, and show the progress of the sessions."""
        for index, (_, warnings) in enumerate(self._sessions):
            for text in warnings.new():
                display.say(f"session {index}: {text}")
        rows = [read_progress(session, self._max_frame) for session, _ in self._sessions]
        for found in rows:
            if found.index in self._ended and found.status in ("starting", "running"):
                found.status = "ended"
        display.show(rows)


def read_progress(session: RunSession, max_frame: int) -> SessionProgress:
    """Return the progress of a session from its `progress.json`. The file is missing until the session has
    started."""
    try:
        return SessionProgress(**json.loads(session.progress_json.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return SessionProgress(session.index, 0, max_frame, 0, None, None, 0.0, 0, "starting")


WARNING = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [\w.]+: (.*)")
"""Pattern of a warning in a session's log; its group is the text after the time and the name of the
logger."""


class LogLines:
    """Reader of the lines that are added to a log after this object has been created."""

    def __init__(self, log: Path, pattern: re.Pattern[str]) -> None:
        """pattern: regular expression for the lines to yield; its first group is their text."""
        self._log, self._pattern = log, pattern
        self._read = log.stat().st_size if log.exists() else 0  # skips lines from before a resume

    def new(self) -> Iterator[str]:
        """Yield the text of each matching complete line that was added since the last call."""
        try:
            with open(self._log, "rb") as file:
                file.seek(self._read)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if found := self._pattern.fullmatch(line):
                yield found[1]
