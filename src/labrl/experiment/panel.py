"""The panel of an experiment: its trials as rows, and an estimate of the time left for all."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from labrl.analysis.formats import duration
from labrl.errors import LabrlError
from labrl.run.experiment import TRIAL_LOG, TrialRecord
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.callbacks.display import Display, TrialProgress
from labrl.session.callbacks.progress import LogLines, Panel, read_progress

if TYPE_CHECKING:
    from labrl.experiment.launcher import TrialLauncher
    from labrl.experiment.scheduler import Queue

_MESSAGE = re.compile(r"(?!Traceback|\s)(.*\S.*)")
"""Pattern of a line of a trial's output that does not belong to a traceback."""

_KEY = re.compile(r"(?<!\S)\+*(?:[\w/@]+\.)*?((?:[\w/@]+\.)?([\w/@]+))(?==)")
"""Pattern of a key. Its groups are the last two parts and the last part, such as `actor.lr` and `lr`."""

_STATES = ("running", "waiting", "finished", "pruned", "failed", "interrupted")
"""States of trials, in the order in which they are counted."""

_BAR = 24
"""Width of the progress bar of the experiment, in columns."""

_PERIOD = 3600.0
"""Maximum number of past seconds from whose progress the time left is estimated."""


class ExperimentPanel(Panel):
    """Show the trials of an experiment in a terminal or a notebook, from the files of the running trials.

    The output of each trial goes to a file in its folder, and its lines are printed above the panel. Without
    a terminal or notebook, or if `queue.shows_progress` is False, the trials print lines themselves, and the
    panel does nothing.
    """

    def __init__(self, queue: Queue, launcher: TrialLauncher, console: Console | None = None) -> None:
        display = Display(2, console, transient=True) if queue.shows_progress else None
        super().__init__(display if display is not None and display.is_live else None)
        self._queue = queue
        self._not_begun = "starting" if launcher.traits.knows_room else "waiting"
        self._trials: dict[int, TrialRecord] = {}
        self._running: set[int] = set()
        self._sessions: dict[int, list[tuple[RunSession, int]]] = {}
        """Sessions of each trial that has begun, with their budget in frames."""
        self._ended: dict[int, TrialProgress] = {}
        self._logs: dict[int, LogLines] = {}
        self._begun: set[int] = set()
        columns = (BarColumn(_BAR), TextColumn("{task.description}"))
        self._whole = Progress(*columns, get_time=lambda: time.monotonic(), speed_estimate_period=_PERIOD)
        """The bar of the experiment; its only task begins with the first trial."""

    def adopt(self, trial: TrialRecord) -> bool:
        """Return whether the panel shows the progress of a trial that is about to start, instead of its
        output."""
        if self._display is None:
            return False
        self._trials[trial.number] = trial
        self._sessions.pop(trial.number, None)  # of an attempt whose process has died
        if not self._queue.keeps_logs:
            self._logs[trial.number] = LogLines(self._queue.path_of(trial) / TRIAL_LOG, _MESSAGE)
        return True

    def update(self, running: Collection[TrialRecord], now: bool = False) -> None:
        """Show the current progress. A call within a second of the previous one has no effect unless `now` is
        true.

        running: the trials that have started.
        """
        if self._display is not None:
            self._running = {trial.number for trial in running}
            self.refresh(now)

    def show(self, display: Display) -> None:
        """Print new lines of the trials, and show as many rows as there is room for, running trials first."""
        self.finish(display)
        self._trials = {trial.number: trial for trial, _ in self._queue.left} | self._trials
        running = {number: self._row(number) for number in sorted(self._running)}
        foot = list(self._foot(running))
        ended = [number for number in reversed(self._queue.over) if number in self._trials]
        by_importance = dict.fromkeys([*running, *ended, *self._trials])
        shown = sorted(list(by_importance)[: max(display.height - len(foot) - 2, 0)])
        display.show([running.get(number) or self._row(number) for number in shown], foot)

    def finish(self, display: Display) -> None:
        """Print the lines that the trials have written since the previous update."""
        for number, lines in list(self._logs.items()):
            for line in lines.new():
                display.say(f"[{number}] {line}")
            if number in self._queue.over:
                del self._logs[number]

    def _row(self, number: int) -> TrialProgress:
        if number in self._ended:
            return self._ended[number]
        trial, over = self._trials[number], self._queue.over.get(number)
        about = brief_keys(self._queue.about(trial))
        if over is None and number not in self._running:
            return TrialProgress.of(number, about, "waiting")
        if number not in self._sessions:
            self._sessions[number] = list(_sessions_in(self._queue.path_of(trial)))
        sessions = [read_progress(*one) for one in self._sessions[number]]
        if over is not None:
            self._ended[number] = TrialProgress.of(number, about, over.status, sessions)
            return self._ended[number]
        if not sessions:
            del self._sessions[number]
            return TrialProgress.of(number, about, self._not_begun)
        # After its sessions, a trial makes its report and its videos.
        trains = any(one.status in ("starting", "running") for one in sessions)
        row = TrialProgress.of(number, about, "running" if trains else "finishing", sessions)
        if number not in self._begun:
            self._begun.add(number)
            for whole in self._whole.tasks:  # what a resumed trial had done before is no progress
                whole.completed += row.fraction
        return row

    def _foot(self, running: dict[int, TrialProgress]) -> Iterator[RenderableType]:
        """Yield a bar with the time left, the number of trials in each state, and notes."""
        states = self._queue.states(running)
        queued = sum(row.status == "waiting" for row in running.values())  # in the queue of a cluster
        states.update(running=-queued, waiting=queued)
        # Trials count as equally long.
        total, rows = max(states.total(), 1), running.values()
        ended = states.total() - states["waiting"] - states["running"]
        done = ended + sum(row.fraction for row in rows)
        if not self._whole.tasks:
            self._whole.add_task("", total=total)
            self._whole.tasks[0].completed = done
        (task,) = self._whole.tasks
        self._whole.update(task.id, total=total, completed=done)
        text = f"{done / total:.0%} of {total} trial{'s' if total > 1 else ''}"
        if task.time_remaining is not None and done < total:
            last = max((row.left or 0.0 for row in rows), default=0.0)
            text += f", {duration(round(max(task.time_remaining, last)))} left"
        self._whole.update(task.id, description=text)
        yield self._whole.make_tasks_table([task])
        parts = [f"{states[state]} {state}" for state in _STATES if states[state]]
        ends = any(row.status == "finishing" for row in running.values())
        ending = "finishing: a trial makes its videos and its report, and keeps its slots" if ends else ""
        for line in filter(None, (", ".join(parts), ending, self._queue.note())):
            yield Text(line, no_wrap=True, overflow="ellipsis")


def brief_keys(text: str) -> str:
    """Return overrides with only the last part of each key, or the last two if keys share the last one."""
    known = Counter(key[2] for key in _KEY.finditer(text))
    return _KEY.sub(lambda key: key[2] if known[key[2]] == 1 else key[1], text)


def _sessions_in(folder: Path) -> Iterator[tuple[RunSession, int]]:
    """Yield each session of a trial with its budget in frames. Yields nothing before the trial has begun."""
    try:
        run = Run.open(folder)
        if run.recorded_status != "waiting":
            for index in range(run.config["meta"]["max_session"]):
                yield RunSession(run.path / f"session_{index}"), run.config["env"]["max_frame"]
    except LabrlError:
        return
