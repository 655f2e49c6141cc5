"""The panel of an experiment: its trials as rows, and an estimate of the time left for all."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console

from labrl.analysis.formats import duration
from labrl.errors import LabrlError
from labrl.run.experiment import TRIAL_LOG, TrialRecord
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.callbacks.display import Bar, Display, SessionProgress
from labrl.session.callbacks.progress import LogLines, Panel, read_progress

if TYPE_CHECKING:
    from labrl.experiment.launcher import TrialLauncher
    from labrl.experiment.scheduler import Queue

_MESSAGE = re.compile(r"(?!Traceback|\s)(.*\S.*)")
"""Pattern of a line of a trial's output that does not belong to a traceback."""

_GROUPS = re.compile(r"(?<!\S)\+*(?:[\w/@]+\.)+(?=\w+=)")
"""Pattern of a key without its last part."""

_STATES = ("running", "waiting", "finished", "pruned", "failed", "interrupted")
"""States of trials, in the order in which they are counted."""


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
        self._logs: dict[int, LogLines] = {}
        self._start: tuple[float, float] | None = None
        """Time, and number of completed trials, when the panel was first shown."""
        self._found: dict[int, float] = {}
        """Fraction of its budget that each trial, by its number, had completed when it began here."""

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
        ended = [number for number in reversed(self._queue.over) if number in self._trials]
        by_importance = dict.fromkeys([*running, *ended, *self._trials])
        notes = list(self._notes(running))
        shown = sorted(list(by_importance)[: max(display.height - len(notes) - 3, 0)])
        texts = [_GROUPS.sub("", self._queue.about(self._trials[number])) for number in shown]
        rows = [running.get(number) or self._row(number) for number in shown]
        display.show(rows, texts, self._whole(running.values()), notes)

    def finish(self, display: Display) -> None:
        """Print the lines that the trials have written since the previous update."""
        for number, lines in list(self._logs.items()):
            for line in lines.new():
                display.say(f"[{number}] {line}")
            if number in self._queue.over:
                del self._logs[number]

    def _row(self, number: int) -> SessionProgress:
        trial, over = self._trials[number], self._queue.over.get(number)
        if over is None and number not in self._running:
            return mean_progress(number, "waiting")
        if not self._sessions.get(number):
            self._sessions[number] = list(_sessions_in(self._queue.path_of(trial)))
        sessions = [read_progress(*one) for one in self._sessions[number]]
        # After its sessions, a trial makes its report and its videos.
        trains = any(one.status in ("starting", "running") for one in sessions)
        status = "running" if trains else "finishing" if sessions else self._not_begun
        return mean_progress(number, over.status if over else status, sessions)

    def _whole(self, running: Collection[SessionProgress]) -> Bar:
        """Return the bar of the experiment, in which trials count as equally long."""
        states = self._queue.states(self._running)
        total = max(states.total(), 1)
        done = states.total() - states["waiting"] - states["running"] + sum(row.fraction for row in running)
        self._start = self._start or (time.monotonic(), done)
        self._found = {row.index: row.fraction for row in running if row.max_frame} | self._found
        spent = time.monotonic() - self._start[0]
        gained = done - self._start[1] - sum(self._found.values())
        left = duration(round((total - done) * spent / gained)) if gained * spent > 0 and done < total else ""
        return Bar(done / total, frames=f"{done / total:.0%} of {total} trial{'s' * (total > 1)}", left=left)

    def _notes(self, running: dict[int, SessionProgress]) -> Iterator[str]:
        """Yield the number of trials in each state, and notes."""
        states = self._queue.states(running)
        queued = sum(row.status == "waiting" for row in running.values())  # in the queue of a cluster
        states.update(running=-queued, waiting=queued)
        yield ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])
        if any(row.status == "finishing" for row in running.values()):
            yield "finishing: a trial makes its videos and its report, and keeps its slots"
        if note := self._queue.note():
            yield note


def mean_progress(number: int, status: str, sessions: Sequence[SessionProgress] = ()) -> SessionProgress:
    """Return the mean progress of a trial's sessions. number: the index of the trial; status: its state."""
    if not sessions:
        return SessionProgress(number, 0, 0, 0, None, None, 0.0, 0, status)
    speeds = [one.fps for one in sessions if one.fps and one.status == "running"]
    scores = [one.return_mean for one in sessions if one.return_mean is not None]
    return replace(
        sessions[0],
        index=number,
        status=status,
        frame=round(fmean(one.frame for one in sessions)),
        wall=max(one.wall for one in sessions),
        return_mean=fmean(scores) if scores else None,
        fps=fmean(speeds) if speeds else None,
        returns=sessions[0].returns if len(sessions) == 1 else [],
    )


def _sessions_in(folder: Path) -> Iterator[tuple[RunSession, int]]:
    """Yield each session of a trial with its budget in frames. Yields nothing before the trial has begun."""
    try:
        run = Run.open(folder)
        if run.recorded_status != "waiting":
            for index in range(run.config["meta"]["max_session"]):
                yield RunSession(run.path / f"session_{index}"), run.config["env"]["max_frame"]
    except LabrlError:
        return
