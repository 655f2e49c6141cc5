"""How far a trial is: a small file for each session, and what the person at the terminal sees of them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.storage.atomic import write_json
from labrl.storage.run_folder import RunFolder

REFRESH_SECONDS = 1.0
"""Shortest time between two writes of a session's file, and between two pictures on the terminal."""

LINE_SECONDS = 10.0
"""Longest time without a line about a running session, where there is no terminal."""

_FPS_WINDOW = 10

_WIDE = 110
"""Columns of a terminal from which on the panel says where the time goes."""


@dataclass
class SessionProgress:
    """How far one session is; what `progress.json` holds."""

    index: int
    frame: int
    max_frame: int
    episode: int
    return_mean: float | None
    """Over the last `meta.episode_window` episodes; None before the first has ended."""
    fps: float | None
    """Frames per second of late; None before there is a measurement."""
    wall: float
    """Seconds of training so far."""
    rows: int
    """Rows of training metrics written by this process."""
    status: str
    """starting, running, finished, interrupted, failed; ended where its process is gone without a word."""
    phases: dict[str, float] = field(default_factory=dict)
    """Share of the time in `env`, `act`, `learn`, `callbacks`."""

    @property
    def seconds_left(self) -> float | None:
        """At the present speed; None before there is a measurement."""
        return (self.max_frame - self.frame) / self.fps if self.fps else None


class Progress(Callback):
    """Writes the session's `progress.json` at most once a second; shows it where the session runs alone."""

    def __init__(self, show: bool) -> None:
        """show: whether this process has the terminal; sessions side by side leave it to `TrialPanel`."""
        self._display = Display(1) if show else None
        self._rows = 0
        self._next = 0.0
        self._points: deque[tuple[float, int]] = deque(maxlen=_FPS_WINDOW + 1)

    def start(self, session: SessionView) -> None:
        """Show where the session begins."""
        self._points.append((time.monotonic(), session.clock.frame))
        self._tell(session, "running")

    def step(self, session: SessionView) -> None:
        """Tell how far the session is if a second has passed."""
        now = time.monotonic()
        if now >= self._next:
            self._points.append((now, session.clock.frame))
            self._tell(session, "running")

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Count rows: a line without a terminal follows each, seconds apart."""
        self._rows += table == "train"

    def finish(self, session: SessionView) -> None:
        """Show how it ended."""
        ended = "finished" if session.clock.finished else "failed"
        status = "interrupted" if session.interrupted else ended
        self._tell(session, status)
        if self._display is not None:
            self._display.close()

    def _tell(self, session: SessionView, status: str) -> None:
        progress = self._progress(session, status)
        with contextlib.suppress(OSError):  # a full disk must not end the training that this tells about
            write_json(session.folder.progress, asdict(progress), durable=False)
        if self._display is not None:
            self._display.show([progress])
        self._next = time.monotonic() + REFRESH_SECONDS

    def _progress(self, session: SessionView, status: str) -> SessionProgress:
        (since, first), (until, last) = self._points[0], self._points[-1]
        score = session.episodes.statistics()["return_mean"]
        total = sum(session.timers.seconds.values())
        phases = {name: spent / total for name, spent in session.timers.seconds.items()} if total > 0 else {}
        clock = session.clock
        return SessionProgress(
            index=session.index,
            frame=clock.frame,
            max_frame=clock.max_frame,
            episode=clock.episode,
            return_mean=None if math.isnan(score) else score,
            fps=(last - first) / (until - since) if until > since else None,
            wall=clock.wall,
            rows=self._rows,
            status=status,
            phases=phases,
        )


class TrialPanel:
    """Shows the sessions of a trial that run in processes of their own, from their `progress.json`.

    Use it as a context manager and call `update` as often as is convenient.
    """

    def __init__(
        self,
        folder: RunFolder,
        num_sessions: int,
        max_frame: int,
        enabled: bool = True,
        console: Console | None = None,
    ) -> None:
        """max_frame: budget of each session; enabled: False shows nothing."""
        self._files = [folder.path / f"session_{index}" / "progress.json" for index in range(num_sessions)]
        self._max_frame = max_frame
        self._ended: frozenset[int] = frozenset()
        self._display = Display(num_sessions, console) if enabled else None
        self._next = 0.0

    def __enter__(self) -> TrialPanel:
        self.update()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.show(self._read())
            self._display.close()

    def update(self, ended: Collection[int] = ()) -> None:
        """Show the sessions as they stand; shows nothing new when called again within a second.

        ended: indices of those whose process has ended; a killed one's file still says that it runs.
        """
        self._ended = frozenset(ended)
        if self._display is not None and time.monotonic() >= self._next:
            self._display.show(self._read())
            self._next = time.monotonic() + REFRESH_SECONDS

    def _read(self) -> list[SessionProgress]:
        found = []
        for index, path in enumerate(self._files):
            try:
                found.append(SessionProgress(**json.loads(path.read_text())))
            except (OSError, ValueError, TypeError):
                found.append(SessionProgress(index, 0, self._max_frame, 0, None, None, 0.0, 0, "starting"))
            if index in self._ended and found[-1].status in ("starting", "running"):
                found[-1].status = "ended"
        return found


class Terminal(Console):
    """Standard output; where its reader has gone away (`labrl | head`), silence, since training goes on."""

    def on_broken_pipe(self) -> None:
        """Print no more; rich would end the process."""
        self.quiet = True
        # The interpreter flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """A live panel on a terminal; elsewhere a line now and then."""

    def __init__(
        self, num_sessions: int, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """num_sessions: of the trial; lines name their session where there are several."""
        self._console = console or Terminal()
        self._now = now
        self._several = num_sessions > 1
        self._live: Live | None = None
        self._told: dict[int, tuple[float, int, str]] = {}  # session: when, rows and status of its last line

    def show(self, sessions: Sequence[SessionProgress]) -> None:
        """Show the sessions as they stand."""
        if not self._console.is_terminal:
            for progress in sessions:
                self._line(progress)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            self._console.show_cursor(True)  # a second Ctrl-C leaves no time to bring it back
        self._live.update(self._panel(sessions), refresh=True)

    def close(self) -> None:
        """Leave the last picture on the terminal and give it back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, progress: SessionProgress) -> None:
        """Print a line at the end, at a new row, or after a while; never two within a second."""
        now = self._now()
        if progress.frame == 0 and progress.status in ("starting", "running"):
            return
        told, rows, status = self._told.get(progress.index, (-math.inf, 0, "running"))
        ended = progress.status != status
        if ended or now - told >= (REFRESH_SECONDS if progress.rows > rows else LINE_SECONDS):
            self._told[progress.index] = (now, progress.rows, progress.status)
            prefix = f"session {progress.index}: " if self._several else ""
            self._console.print(
                prefix + ", ".join(_facts(progress)), markup=False, highlight=False, soft_wrap=True
            )

    def _panel(self, sessions: Sequence[SessionProgress]) -> RichTable:
        table = RichTable(box=None, padding=(0, 1), collapse_padding=True)
        width = self._console.width
        if self._several:
            table.add_column("session", justify="right", no_wrap=True)
        table.add_column("", width=min(24, width // 8))
        for name in ("frame", "return", "frames/s", "time left"):
            table.add_column(name, justify="right", no_wrap=True)
        if width >= _WIDE:
            table.add_column("time goes to", style="dim", overflow="ellipsis", no_wrap=True)
        for progress in sessions:
            cells: list[str | ProgressBar] = [
                ProgressBar(total=progress.max_frame, completed=min(progress.frame, progress.max_frame)),
                f"{progress.frame:,} / {progress.max_frame:,}",
                "-" if progress.return_mean is None else f"{progress.return_mean:,.1f}",
                "-" if progress.fps is None else f"{progress.fps:,.0f}",
                _time_left(progress),
            ]
            if self._several:
                cells.insert(0, str(progress.index))
            if width >= _WIDE:
                cells.append(" ".join(f"{name} {share:.0%}" for name, share in progress.phases.items()))
            table.add_row(*cells)
        return table


def _facts(progress: SessionProgress) -> list[str]:
    facts = [
        f"frame {progress.frame:,} of {progress.max_frame:,} ({progress.frame / progress.max_frame:.1%})"
    ]
    if progress.return_mean is not None:
        facts.append(f"return {progress.return_mean:,.1f}")
    if progress.fps is not None:
        facts.append(f"{progress.fps:,.0f} frames/s")
    left = _time_left(progress)
    return [*facts, f"{left} left" if progress.status == "running" else left]


def _time_left(progress: SessionProgress) -> str:
    if progress.status != "running":
        return progress.status
    return "?" if progress.seconds_left is None else duration(progress.seconds_left)


def duration(seconds: float) -> str:
    """A time span in the two units that matter, such as `5 h 33 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
