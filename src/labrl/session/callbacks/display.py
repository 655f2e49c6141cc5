"""Progress of sessions: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

REFRESH_SECONDS = 1.0
"""Shortest time between two updates of the terminal, in seconds."""

LINE_SECONDS = 10.0
"""Longest time between two lines about a running session if there is no terminal, in seconds."""

_FREE = 3
"""Number of columns on the right that stay free, so that the `^C` shown by a terminal does not wrap."""

_LAYOUTS = (
    (24, 16, True, True),
    (8, 12, True, True),
    (8, 8, True, True),
    (8, 12, False, True),
    (0, 8, False, True),
    (0, 0, False, True),
    (0, 0, False, False),
)
"""Layouts of a row of the panel, from the widest to the narrowest: width of the progress bar, number of
returns in the spark line, whether frames are shown with all digits, whether the speed is shown."""

_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass
class SessionProgress:
    """Progress of one session, the content of `progress.json`."""

    index: int
    frame: int
    max_frame: int
    episode: int
    return_mean: float | None
    """Mean return of the last `meta.episode_window` episodes; None before the first has ended."""
    fps: float | None
    """Recent frames per second; None before the first measurement."""
    wall: float
    """Seconds of training so far."""
    rows: int
    """Rows of training metrics written by this process."""
    status: str
    """starting, running, finished, interrupted or failed; ended if the process ended without saying how."""
    phases: dict[str, float] = field(default_factory=dict)
    """Fraction of the time spent in `env`, `act`, `learn` and `callbacks`."""
    returns: list[float] = field(default_factory=list)
    """`return_mean` of the latest rows, oldest first."""
    losses: dict[str, float] = field(default_factory=dict)
    """Losses and similar columns of the latest row."""
    max_wall: float | None = None
    """Budget in seconds of training; None for no limit."""

    @property
    def seconds_left(self) -> float | None:
        """The time left at the current speed in seconds; None while it is too early for an estimate.

        The first frames include the start of the environments and precede the first update. An estimate
        therefore needs 3 seconds of training, and 2 % of the frames, 3 rows or 30 seconds.
        """
        begun = self.wall >= 3 and (self.frame >= 0.02 * self.max_frame or self.rows >= 3 or self.wall >= 30)
        if not self.fps or not begun:
            return None
        left = max(self.max_frame - self.frame, 0) / self.fps
        return left if self.max_wall is None else min(left, max(self.max_wall - self.wall, 0.0))


class Terminal(Console):
    """Console on standard output that falls silent when its reader exits (`labrl | head`)."""

    def __init__(self) -> None:
        super().__init__()
        if not self.width:  # COLUMNS=0 stands for an unknown width
            self.width = 80

    def on_broken_pipe(self) -> None:
        """Stop printing, so that training continues; rich would end the process."""
        self.quiet = True
        # The interpreter flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """A live panel on a terminal; plain lines elsewhere."""

    def __init__(
        self, num_sessions: int, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """num_sessions: sessions in the trial; each line names its session if there are several."""
        self._console, self._now, self._several = console or Terminal(), now, num_sessions > 1
        self._live: Live | None = None
        self._width = 0
        self._handlers: list[logging.StreamHandler] = []
        # Time and content of the last line printed for each session.
        self._printed: dict[int, tuple[float, SessionProgress]] = {}

    def show(self, sessions: Sequence[SessionProgress]) -> None:
        """Show the current progress of the sessions."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            for progress in sessions:
                self._line(progress)
            return
        if self._live is None:
            self._live = self._open()
        elif self._console.width < self._width:
            self._erase_wrapped(self._live)
        self._width = self._console.width
        self._live.update(self._panel(sessions), refresh=True)

    def say(self, line: str) -> None:
        """Print one line, above the panel if there is one."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop updating the panel, and leave its last state on the terminal."""
        if self._live is not None:
            self._live.stop()
        for handler in self._handlers:
            handler.setStream(sys.stderr)
        self._live, self._handlers = None, []

    def _open(self) -> Live:
        before, to_terminal = sys.stderr, sys.stderr.isatty()
        live = Live(console=self._console, auto_refresh=False, redirect_stderr=to_terminal)
        live.start()
        self._console.show_cursor(True)  # after a second Ctrl-C there is no time to show it again
        # Log handlers that hold the original stderr would write across the panel.
        for handler in {*logging.getLogger().handlers, *logging.getLogger("labrl").handlers}:
            if to_terminal and isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(sys.stderr)
                self._handlers.append(handler)
        return live

    def _erase_wrapped(self, live: Live) -> None:
        """Erase the lines that the terminal added by wrapping the panel when it became narrower."""
        before = self._console.options.update(width=self._width, height=None)
        lines = self._console.render_lines(live.renderable, before, pad=False)[: live.console.height]
        wrapped = sum(math.ceil(Segment.get_line_length(line) / self._console.width) - 1 for line in lines)
        erase = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
        self._console.control(Control((ControlType.ERASE_IN_LINE, 2), *erase * wrapped))

    def _line(self, progress: SessionProgress) -> None:
        """Print a line at the end, after a new row, or after a while, but never two within a second.

        While a session learns or evaluates, its frame does not change, and no line is repeated.
        """
        if progress.frame == 0 and progress.status in ("starting", "running", "ended"):
            return
        now = self._now()
        printed, last = self._printed.get(progress.index, (-math.inf, None))
        rows, status = (last.rows, last.status) if last else (0, "running")
        pause = REFRESH_SECONDS if progress.rows > rows else LINE_SECONDS
        is_new = last is None or (progress.frame, progress.rows) != (last.frame, last.rows)
        if progress.status != status or (status == "running" and is_new and now - printed >= pause):
            self._printed[progress.index] = (now, progress)
            prefix = f"session {progress.index}: " if self._several else ""
            self.say(prefix + ", ".join(_facts(progress)))

    def _panel(self, sessions: Sequence[SessionProgress]) -> RenderableType:
        """Return a row for each session and, if there is room, its losses and the use of its time."""
        width = self._console.width - _FREE
        tables = (self._table(sessions, *layout) for layout in _LAYOUTS)
        for table in tables:
            if self._console.measure(table).maximum <= width:
                break
        lines: list[RenderableType] = [table]
        if 2 * len(sessions) + 2 <= self._console.height:
            lines += filter(None, (self._details(progress, width) for progress in sessions))
        return Constrain(Group(*lines), width)

    def _table(
        self, sessions: Sequence[SessionProgress], bar: int, sparks: int, exact: bool, fps: bool
    ) -> Table:
        table = Table(box=None, padding=(0, 1), collapse_padding=True)
        number = "{:,}".format if exact else compact
        rows = []
        for progress in sessions:
            done = min(progress.frame, progress.max_frame)  # the last vector step may go beyond the budget
            score = "-" if progress.return_mean is None else score_text(progress.return_mean)
            if sparks and not self._console.options.ascii_only:
                score = f"{spark_line(progress.returns, sparks):>{sparks}} {score}"
            cells: dict[str, RenderableType | None] = {
                "#": str(progress.index) if self._several else None,
                "": ProgressBar(total=progress.max_frame, completed=done) if bar else None,
                "frame": f"{number(done)} / {number(progress.max_frame)}",
                "return": score,
                "frames/s": ("-" if progress.fps is None else f"{progress.fps:,.0f}") if fps else None,
                "time left": _time_left(progress),
            }
            rows.append({name: cell for name, cell in cells.items() if cell is not None})
        # A bar without a width would take all the room; the width of the time left varies.
        widths, least = {"": bar}, {"time left": len("interrupted")}
        for name in rows[0]:
            table.add_column(
                name, justify="right", no_wrap=True, width=widths.get(name), min_width=least.get(name)
            )
        for row in rows:
            table.add_row(*row.values())
        return table

    def _details(self, progress: SessionProgress, width: int) -> Text:
        """Return the shares of time by phase, and as many losses as fit into `width`."""
        phases = [f" {'log' if n == 'callbacks' else n} {share:.0%}" for n, share in progress.phases.items()]
        losses = [f"  {name} {value:.3g}" for name, value in progress.losses.items()]
        if phases and losses:
            losses[0] = "  |" + losses[0]
        text = f" {progress.index}:" if self._several and phases + losses else ""
        for item in phases + losses:
            if len(text + item) > width:
                break
            text += item
        return Text(text, "dim")


def spark_line(values: Sequence[float], width: int) -> str:
    """Return the last `width` values as a row of bars, scaled from their minimum to their maximum."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if len(shown) < 2:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    steps = [round((value - low) / span * (len(_SPARKS) - 1)) if span else 0 for value in shown]
    return "".join(_SPARKS[step] for step in steps)


def score_text(value: float) -> str:
    """Format a return with one decimal, or with three significant digits below 1: 1,234.5, 0.0123."""
    return f"{value:.3g}" if abs(value) >= 1e12 or 0 < abs(value) < 0.95 else f"{value:,.1f}"


def compact(number: float) -> str:
    """Return `number` in at most five characters, such as `2.5M`."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units, such as `5 h 33 min`."""
    whole = round(seconds)
    for unit, name, part, of_part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {of_part}"
    return f"{whole} s"


def _facts(progress: SessionProgress) -> Iterator[str]:
    if progress.frame > progress.max_frame:
        yield f"frame {progress.frame:,} (budget {progress.max_frame:,})"
    else:
        share = progress.frame / progress.max_frame
        yield f"frame {progress.frame:,} of {progress.max_frame:,} ({share:.1%})"
    if progress.return_mean is not None:
        yield f"return {score_text(progress.return_mean)}"
    for name, value in list(progress.losses.items())[:1]:
        yield f"{name} {value:.3g}"
    if progress.fps is not None:
        yield f"{progress.fps:,.0f} frames/s"
    if progress.status != "running":
        yield progress.status
    elif progress.seconds_left is not None:
        yield f"{_time_left(progress)} left"


def _time_left(progress: SessionProgress) -> str:
    if progress.status != "running":
        return progress.status
    return "?" if progress.seconds_left is None else duration(progress.seconds_left)
