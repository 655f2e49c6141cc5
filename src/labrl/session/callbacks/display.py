"""Progress of sessions and trials: a live panel in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from labrl.analysis.formats import duration, score, short_number, shorten

REFRESH_SECONDS = 1.0
"""Shortest time between two updates of the terminal, in seconds."""

LINE_SECONDS = 10.0
"""Longest time between two lines about a running session if there is no terminal, in seconds."""

_FREE = 3
"""Number of columns on the right that stay free. Without them, the `^C` shown by a terminal would wrap."""

_WIDE = 80
"""Smallest number of columns of a terminal that shows all digits of frames, and spark lines."""

_STYLES = {"waiting": "dim", "failed": "red"}

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


class Bar(NamedTuple):
    """The cells of one line of the panel, beside its bar."""

    fraction: float
    """Completed part, in [0, 1]."""
    number: str = ""
    frames: str = ""
    reached: str = ""
    speed: str = ""
    left: str = ""
    about: str = ""
    style: str = ""


class _Cell(ProgressColumn):
    """A column with the text of one field of a task."""

    def __init__(self, name: str, heading: str = "", side: Literal["left", "right"] = "right") -> None:
        super().__init__(Column(heading, justify=side, no_wrap=True))
        self._field = name

    def render(self, task: Task) -> Text:
        return Text(task.fields[self._field], style=task.fields["style"])


class _Panel(Progress):
    """Bars with headings, and lines below them."""

    lines: Sequence[Text] = ()
    width = 80

    def get_renderables(self) -> Iterator[RenderableType]:
        table = self.make_tasks_table(self.tasks)
        table.show_header = True
        yield Constrain(Group(table, *self.lines), self.width)


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
        self._panel = _Panel(
            _Cell("number", "#" if self._several else ""),
            BarColumn(None, table_column=Column(max_width=24)),
            _Cell("frames", "frame"),
            _Cell("reached", "return"),
            *([_Cell("speed", "frames/s")] if self._console.width >= 60 else []),
            _Cell("left", "time left"),
            _Cell("about", side="left"),
            console=self._console,
            auto_refresh=False,
            redirect_stderr=sys.stderr.isatty(),
            transient=transient,
        )
        self._in_notebook: Any = None  # IPython's handle of the panel
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

    def show(
        self,
        rows: Sequence[SessionProgress],
        texts: Sequence[str] = (),
        whole: Bar | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Show the current progress of sessions or trials.

        texts: what distinguishes each trial from others; whole: the last line, for all trials; notes: lines
        below.
        """
        if not self.is_live:
            for progress in rows if SHOWN_ABOVE not in os.environ else ():
                self._line(progress)
            return
        bars = [self._bar(*one) for one in zip(rows, texts or [""] * len(rows), strict=True)]
        bars += [whole] if whole else []
        for _ in range(len(bars) - len(self._panel.tasks)):
            self._panel.add_task("", total=1.0, visible=False)
        for place, task in enumerate(self._panel.task_ids):
            bar = bars[place] if place < len(bars) else Bar(0.0)
            self._panel.update(task, visible=place < len(bars), completed=bar.fraction, **bar._asdict())
        if not notes and 2 * len(rows) + 2 <= self.height:
            notes = list(filter(None, map(self._details, rows)))
        self._panel.width = self._console.width - _FREE
        self._panel.lines = [Text(note, "dim", no_wrap=True, overflow="ellipsis") for note in notes]
        if not self._console.is_jupyter:
            self._open()
            self._panel.refresh()
        elif self._in_notebook is None:
            from IPython.display import display

            self._in_notebook = display(self._panel, display_id=True)
        else:
            self._in_notebook.update(self._panel)

    def say(self, line: str) -> None:
        """Print one line, above the panel if there is one."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop updating the panel, and leave its last state on the terminal unless it is transient."""
        if self._panel.live.is_started:
            during = sys.stderr
            self._panel.stop()
            _redirect_logs(during)
            Display._above = None

    def _open(self) -> None:
        """Start the panel, unless it has been started."""
        if not self._panel.live.is_started:
            before = sys.stderr
            self._panel.start()
            self._console.show_cursor(True)  # after a second Ctrl-C there is no time to show it again
            _redirect_logs(before)
            Display._above = self._console

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

    def _bar(self, progress: SessionProgress, about: str = "") -> Bar:
        wide = self._console.width >= _WIDE
        number = "{:,}".format if wide and not about else partial(short_number, digits=3)
        done = min(progress.frame, progress.max_frame)  # the last vector step may go beyond the budget
        sparks = spark_line(progress.returns, 12) if wide and not self._console.options.ascii_only else ""
        return Bar(
            progress.fraction,
            number=str(progress.index) if self._several else "",
            frames=f"{number(done)} / {number(progress.max_frame)}" if progress.max_frame else "-",
            reached=f"{sparks} {score(progress.return_mean, thousands=1)}",
            speed="-" if progress.fps is None else f"{progress.fps:,.0f}",
            left=_time_left(progress),
            about=shorten(about, max(self._console.width - 62, 12)),
            style=_STYLES.get(progress.status, ""),
        )

    def _details(self, progress: SessionProgress) -> str:
        """Return the fraction of time spent in each phase, and the latest losses."""
        phases = [f"{'log' if name == 'callbacks' else name} {p:.0%}" for name, p in progress.phases.items()]
        losses = [f"{name} {value:.3g}" for name, value in progress.losses.items()]
        text = "  |  ".join(filter(None, (" ".join(phases), "  ".join(losses))))
        return f"{progress.index}: {text}" if self._several and text else text


def _redirect_logs(before: Any) -> None:
    """Let log handlers that hold the stream `before` write to `sys.stderr`, and not across the panel."""
    for handler in {*logging.getLogger().handlers, *logging.getLogger("labrl").handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(sys.stderr)


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
