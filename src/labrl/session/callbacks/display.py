"""Progress of sessions and trials: a live panel in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, ClassVar, Self

from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.constrain import Constrain
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from labrl.analysis.formats import duration, score, short_number, shorten_overrides

REFRESH_SECONDS = 1.0
"""Shortest time between two updates of the terminal, in seconds."""

LINE_SECONDS = 10.0
"""Longest time between two lines about a running session if there is no terminal, in seconds."""

_FREE = 3
"""Number of columns on the right that stay free. Without them, the `^C` shown by a terminal would wrap."""

_LAYOUTS = (
    (24, 16, True, True),
    (8, 12, True, True),
    (8, 8, True, True),
    (8, 12, False, True),
    (0, 8, False, True),
    (0, 0, False, True),
    (0, 0, False, False),
)
"""Layouts of a row of the panel, from the widest to the narrowest. Each has the width of the progress bar,
the number of returns in the spark line, whether frames are shown with all digits, and whether the speed is
shown."""

_TRIAL_LAYOUTS = (
    (24, 16, False, True),
    (16, 12, False, True),
    (8, 8, False, True),
    (8, 8, False, False),
    (8, 0, False, False),
    (0, 0, False, False),
)
"""Layouts of a row about a trial, in the form of `_LAYOUTS`."""

_STYLES = {"waiting": "dim", "failed": "red"}

_ABOUT = 30
"""Smallest number of columns in a row for a text that distinguishes the trial from others, if there is no
layout in which the whole text fits."""

SHOWN_ABOVE = "LABRL_PROGRESS_SHOWN"
"""Name of the environment variable that is set for a trial whose progress is shown in its experiment's
panel."""

_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass
class SessionProgress:
    """Progress of one session, the content of `progress.json`."""

    index: int
    frame: int
    max_frame: int
    episode: int
    return_mean: float | None
    """Mean return of the last `meta.episode_window` episodes; None before the first episode has ended."""
    fps: float | None
    """Recent frames per second; None before the first measurement."""
    wall: float
    """Seconds of training so far."""
    rows: int
    """Number of rows of training metrics written by this process."""
    status: str
    """One of starting, running, finished, interrupted and failed, or ended if the process has ended without
    recording how."""
    phases: dict[str, float] = field(default_factory=dict)
    """Fraction of the time spent in `env`, `act`, `learn` and `callbacks`."""
    returns: list[float] = field(default_factory=list)
    """`return_mean` of the latest rows, oldest first."""
    losses: dict[str, float] = field(default_factory=dict)
    """Losses and similar columns of the latest row."""
    max_wall: float | None = None
    """Budget in seconds of training; None for no limit."""

    @property
    def fraction(self) -> float:
        """The part of the budget that is used up, in [0, 1]."""
        of_wall = self.wall / self.max_wall if self.max_wall else 0.0
        return min(max(self.frame / max(self.max_frame, 1), of_wall), 1.0)

    @property
    def seconds_left(self) -> float | None:
        """The time left at the current speed in seconds; None while it is too early for an estimate.

        The first frames include the start of the environments and precede the first update. An estimate
        therefore needs at least 3 seconds of training, and in addition 2 % of the frames, 3 rows or 30
        seconds.
        """
        begun = self.wall >= 3 and (self.frame >= 0.02 * self.max_frame or self.rows >= 3 or self.wall >= 30)
        if not self.fps or not begun:
            return None
        left = max(self.max_frame - self.frame, 0) / self.fps
        return left if self.max_wall is None else min(left, max(self.max_wall - self.wall, 0.0))


@dataclass
class TrialProgress(SessionProgress):
    """Progress of a trial: means over its sessions, and the sum of their speeds."""

    about: str = ""
    """What distinguishes the trial from others of its experiment."""
    left: float | None = None
    """The time until the trial's last session ends, in seconds; None if unknown."""

    @classmethod
    def of(cls, number: int, about: str, status: str, sessions: Sequence[SessionProgress] = ()) -> Self:
        """Return the progress of the trial with index `number` in its experiment."""
        running = [one for one in sessions if one.status == "running"]
        scores = [one.return_mean for one in sessions if one.return_mean is not None]
        returns = [one.returns for one in sessions if one.returns]
        shortest = min(map(len, returns), default=0)
        left = [one.seconds_left for one in running]
        return cls(
            index=number,
            frame=round(fmean(one.frame for one in sessions)) if sessions else 0,
            max_frame=max((one.max_frame for one in sessions), default=0),
            episode=sum(one.episode for one in sessions),
            return_mean=fmean(scores) if scores else None,
            fps=sum(one.fps or 0.0 for one in running) or None,
            wall=max((one.wall for one in sessions), default=0.0),
            rows=0,
            status=status,
            returns=[fmean(row) for row in zip(*(one[-shortest:] for one in returns), strict=True)],
            max_wall=sessions[0].max_wall if sessions else None,
            about=about,
            left=max((one for one in left if one is not None), default=None) if None not in left else None,
        )

    @property
    def seconds_left(self) -> float | None:
        """The time until the last session ends, in seconds; None if unknown."""
        return self.left


class Terminal(Console):
    """Console on standard output that falls silent when its reader exits (`labrl | head`)."""

    def __init__(self) -> None:
        # FORCE_COLOR, as in notebooks and CI, lets rich take any stream for a terminal.
        super().__init__(force_interactive=None if sys.stdout.isatty() else False)
        if not self.width:  # COLUMNS=0 stands for an unknown width
            self.width = 80

    def on_broken_pipe(self) -> None:
        """Stop printing, so that training continues; rich would end the process."""
        self.quiet = True
        # The interpreter flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Live(Live):
    """Rich's live display, extended to erase the lines that a terminal adds when it becomes narrower.

    A terminal that becomes narrower wraps the lines of the panel.
    """

    _drawn: Sequence[int] = ()
    """Lengths of the lines that were drawn last."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return `renderables`, which appear above the panel, with what to print before and after them."""
        console, erase = self.console, ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
        wrapped = sum(math.ceil(length / console.width) - 1 for length in self._drawn if length)
        lines = console.render_lines(self.renderable, console.options.update(height=None), pad=False)
        self._drawn = [Segment.get_line_length(line) for line in lines[: console.height]]
        before = [Control((ControlType.ERASE_IN_LINE, 2), *erase * wrapped)] if wrapped else []
        return [*before, *super().process_renderables(renderables)]


class Display:
    """A live panel in a terminal or a notebook; plain lines elsewhere."""

    _above: ClassVar[Console | None] = None
    """Console that prints above the panel in this process's terminal; None without a panel."""

    def __init__(
        self,
        num_rows: int,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
        transient: bool = False,
    ) -> None:
        """num_rows: number of sessions or trials; if there are several, each line names its session or trial;
        transient: whether `close` removes the panel from the terminal."""
        self._console, self._now, self._several = console or Terminal(), now, num_rows > 1
        self._transient = transient
        self._live: Live | None = None
        self._in_notebook: Any = None  # IPython's handle of the panel
        self._handlers: list[logging.StreamHandler] = []
        # Time and content of the last line printed for each session.
        self._printed: dict[int, tuple[float, SessionProgress]] = {}

    @property
    def is_live(self) -> bool:
        """Whether the display is a panel, which is updated in place."""
        return self._console.is_jupyter or self._console.is_interactive

    @property
    def height(self) -> int:
        """Number of lines in the terminal."""
        return self._console.height

    def show(self, rows: Sequence[SessionProgress], foot: Sequence[RenderableType] = ()) -> None:
        """Show the current progress of sessions or trials. foot: lines below the panel."""
        if not self.is_live:
            for progress in rows if SHOWN_ABOVE not in os.environ else ():
                self._line(progress)
        elif self._console.is_jupyter:
            from IPython.display import display

            panel = self._panel(rows, foot)
            if self._in_notebook is None:
                self._in_notebook = display(panel, display_id=True)
            else:
                self._in_notebook.update(panel)
        else:
            self._live = self._live or self._open()
            self._live.update(self._panel(rows, foot), refresh=True)

    def say(self, line: str) -> None:
        """Print one line, above the panel if there is one."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop updating the panel, and leave its last state on the terminal unless it is transient."""
        if self._live is not None:
            self._live.stop()
            Display._above = None
        for handler in self._handlers:
            handler.setStream(sys.stderr)
        self._live, self._handlers = None, []

    def _open(self) -> Live:
        before, to_terminal = sys.stderr, sys.stderr.isatty()
        live = _Live(
            console=self._console,
            auto_refresh=False,
            redirect_stderr=to_terminal,
            transient=self._transient,
        )
        live.start()
        self._console.show_cursor(True)  # after a second Ctrl-C there is no time to show it again
        Display._above = self._console
        # Log handlers that hold the original stderr would write across the panel.
        for handler in {*logging.getLogger().handlers, *logging.getLogger("labrl").handlers}:
            if to_terminal and isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(sys.stderr)
                self._handlers.append(handler)
        return live

    @classmethod
    def console(cls) -> Console:
        """Return a console on standard output, which prints above the panel if there is one."""
        redirected = not isinstance(sys.stdout, FileProxy)
        return Terminal() if cls._above is None or redirected else cls._above

    def _line(self, progress: SessionProgress) -> None:
        """Print a line when the session has ended, after a new row, or after a while, but never two within a
        second.

        While a session learns or evaluates, its frame does not change, so no line is printed.
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

    def _panel(self, rows: Sequence[SessionProgress], foot: Sequence[RenderableType]) -> RenderableType:
        """Return the rows and, if there is room, the losses and the use of time of each session."""
        width = self._console.width - _FREE
        trials = [one for one in rows if isinstance(one, TrialProgress)]
        longest = max((len(one.about) for one in trials), default=0)
        layouts = _TRIAL_LAYOUTS if longest else _LAYOUTS
        tables = [self._table(rows, *layout) for layout in layouts]
        room = [width - self._console.measure(table).maximum for table in tables]
        wanted = (longest + 1, min(longest, _ABOUT) + 1) if longest else (0,)
        chosen = (at for least in wanted for at, left in enumerate(room) if left >= least)
        at = next(chosen, len(layouts) - 1)
        table, left = tables[at], room[at] - 1
        if longest and left > 0:
            texts = shorten_overrides([one.about for one in trials], left)
            short = [replace(one, about=text) for one, text in zip(trials, texts, strict=True)]
            table = self._table(short, *layouts[at], about=min(left, longest))
        lines: list[RenderableType] = [table, *foot] if rows else [*foot]
        if 2 * len(rows) + 2 <= self._console.height:
            lines += filter(None, (self._details(progress, width) for progress in rows))
        return Constrain(Group(*lines), width)

    def _table(
        self, rows: Sequence[SessionProgress], bar: int, sparks: int, exact: bool, fps: bool, about: int = 0
    ) -> Table:
        table = Table(box=None, padding=(0, 1), collapse_padding=True)
        number = "{:,}".format if exact else partial(short_number, digits=3)
        table_rows = []
        for progress in rows:
            done = min(progress.frame, progress.max_frame)  # the last vector step may go beyond the budget
            reached = score(progress.return_mean, thousands=1)
            if sparks and not self._console.options.ascii_only:
                reached = f"{spark_line(progress.returns, sparks):>{sparks}} {reached}"
            frames = f"{number(done)} / {number(progress.max_frame)}" if progress.max_frame else "-"
            cells: dict[str, RenderableType | None] = {
                "#": str(progress.index) if self._several else None,
                "": ProgressBar(total=1.0, completed=progress.fraction) if bar else None,
                "frame": frames,
                "return": reached,
                "frames/s": ("-" if progress.fps is None else f"{progress.fps:,.0f}") if fps else None,
                "time left": _time_left(progress),
                "trial": progress.about if about and isinstance(progress, TrialProgress) else None,
            }
            table_rows.append({name: cell for name, cell in cells.items() if cell is not None})
        # A bar without a width would take all the room; the width of the time left varies.
        widths, least = {"": bar, "trial": about}, {"time left": len("interrupted")}
        for name in table_rows[0] if rows else ():
            table.add_column(
                name,
                justify="left" if name == "trial" else "right",
                no_wrap=True,
                width=widths.get(name),
                min_width=least.get(name),
            )
        for row, progress in zip(table_rows, rows, strict=True):
            table.add_row(*row.values(), style=_STYLES.get(progress.status))
        return table

    def _details(self, progress: SessionProgress, width: int) -> Text:
        """Return the fraction of time spent in each phase, and as many losses as fit into `width`."""
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


def _facts(progress: SessionProgress) -> Iterator[str]:
    if progress.frame > progress.max_frame:
        yield f"frame {progress.frame:,} (budget {progress.max_frame:,})"
    else:
        share = progress.frame / progress.max_frame
        yield f"frame {progress.frame:,} of {progress.max_frame:,} ({share:.1%})"
    if progress.return_mean is not None:
        yield f"return {score(progress.return_mean, thousands=1)}"
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
    return "?" if progress.seconds_left is None else duration(round(progress.seconds_left))
