"""Schedule the trials of a grid or a search: a queue provides trials, and a launcher runs several at a time.

A trial is represented by its `TrialRecord`, its entry in `experiment.json`; how it ended is read in the
`run.json` of its folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labrl.errors import DONE, FAILED, TERMINATED, WRONG_INPUT, first_line
from labrl.experiment.panel import ExperimentPanel
from labrl.run.experiment import TrialRecord
from labrl.run.folder import read_json
from labrl.run.run import MARKER
from labrl.trial.summary import say

if TYPE_CHECKING:
    from labrl.experiment.launcher import TrialLauncher
    from labrl.experiment.machine import Need
    from labrl.session.interruption import Interruption

REFUSED = "refused"
"""Fact of a failed trial that was refused because of wrong input."""

ENDED = ("finished", "pruned", "failed", "interrupted")


def read_end(trial: TrialRecord, run: Path) -> None:
    """Set the status and the error of a trial as its run folder records them.

    A trial whose status is still `running` counts as finished, because it was killed after its sessions had
    ended.
    """
    info = read_json(run / MARKER)
    sessions = info.get("sessions", [])
    errors = [
        f"session {one['index']}: {one['error']}" if len(sessions) > 1 else one["error"]
        for one in sessions
        if one["error"]
    ]
    status: Any = info.get("status", "failed")
    trial.status = status if status in ENDED else "finished"
    trial.error = "; ".join(errors) or (None if info else f"{run / MARKER} cannot be read")


def end_failed(trial: TrialRecord, error: str, code: int = FAILED) -> None:
    """Set that `error` has ended a trial without a result. code: exit code of the error."""
    trial.status, trial.error = "failed", error
    if code == WRONG_INPUT:
        trial.facts[REFUSED] = True


def returns_of(run: Path) -> tuple[float, ...]:
    """Return the final return of each session in a run folder that has one and did not fail."""
    sessions = read_json(run / MARKER).get("sessions", [])
    values = (one.get("final_return") for one in sessions if one["status"] != "failed")
    return tuple(value for value in values if value is not None)


def exit_code_of(trials: Iterable[TrialRecord]) -> int:
    """Return the exit code of a command from the statuses of its trials: 2 if one was refused, 1 if one
    failed, 143 if one was interrupted, otherwise 0."""
    codes = {"failed": FAILED, "interrupted": TERMINATED}
    found = {WRONG_INPUT if REFUSED in one.facts else codes.get(one.status, DONE) for one in trials}
    return next((code for code in (WRONG_INPUT, FAILED, TERMINATED) if code in found), DONE)


class Queue:
    """Provides the trials of an experiment, and keeps those that have ended."""

    seconds = 0.5
    """Longest time between two calls of `tick`, and between two checks for a signal, in seconds."""
    shows_progress = False
    """Whether a panel shows the trials, if there is a terminal or a notebook for it."""
    keeps_logs = False
    """Whether the output of a trial goes to a file in its folder even without a panel, and is not printed."""

    def __init__(self, home: Path, left: Sequence[tuple[TrialRecord, Need]] = ()) -> None:
        """home: folder of the experiment; left: the trials that are still to be run with their slots, as far
        as they are known, in order."""
        self.home, self.left = home, list(left)
        self.over: dict[int, TrialRecord] = {}
        """Trials that have ended, by number."""

    def path_of(self, trial: TrialRecord) -> Path:
        """Return the run folder of a trial."""
        return self.home / trial.folder

    def about(self, trial: TrialRecord) -> str:
        """Return the text that distinguishes a trial from others in a panel."""
        return trial.folder

    def next(self, has_room: Callable[[Need], bool]) -> tuple[TrialRecord, Need] | None:
        """Return the next trial; None if there is no further trial, or no room for it at present."""
        return self.left.pop(0) if self.left and has_room(self.left[0][1]) else None

    def ended(self, trial: TrialRecord, need: Need, died: bool) -> None:
        """Keep a trial that has ended. died: whether its process ended without a result, so that another
        attempt can continue from a checkpoint."""
        self.over[trial.number] = trial

    def tick(self, running: Collection[TrialRecord]) -> None:
        """Do periodic work while trials run, every `seconds`. An error ends all trials."""

    def states(self, running: Collection[Any]) -> Counter[str]:
        """Return the number of trials in each state. running: the trials that have started."""
        states = Counter(running=len(running), waiting=len(self.left))
        states.update(trial.status for trial in self.over.values())
        return states

    def note(self) -> str:
        """Return a further line for the panel, or an empty string."""
        return ""


class RetryingQueue(Queue):
    """A queue of trials that continue from their checkpoints when their processes die."""

    keeps_logs = True

    def __init__(
        self,
        home: Path,
        retries: int,
        interruption: Interruption,
        left: Sequence[tuple[TrialRecord, Need]] = (),
    ) -> None:
        """retries: maximum number of times that a trial continues; interruption: no trial continues once it
        is requested."""
        super().__init__(home, left)
        self._retries, self.interruption = retries, interruption
        self._attempts = Counter[int]()
        """Number of times that the process of each trial has died."""

    def ended(self, trial: TrialRecord, need: Need, died: bool) -> None:
        """Have a trial continue if its process has died; otherwise, record how it ended."""
        whole = trial.status in ("finished", "pruned")
        if not whole and self.interruption.requested:
            return  # A resume continues it, even if the signal arrived where it made the trial fail.
        if not whole and (died or trial.status == "interrupted"):
            self._attempts[trial.number] += 1
            how, deaths = trial.error or "its process was asked to stop", self._attempts[trial.number]
            if deaths <= self._retries:
                say(f"{trial.folder}: {how}; it continues from its checkpoint")
                trial.status, trial.error = "waiting", None
                self.left.insert(0, (trial, need))
                return
            end_failed(trial, f"its process died {deaths} times; the last time: {how}")
        self.over[trial.number] = trial
        self.done(trial)

    def done(self, trial: TrialRecord) -> None:
        """Print the failure of a trial that does not continue."""
        from labrl.trial.summary import say

        if trial.error:
            say(f"{trial.folder} failed: {first_line(trial.error)}")


def run_queue(queue: Queue, launcher: TrialLauncher, interruption: Interruption) -> None:
    """Run trials when there is room for them, until the queue is empty and the last one has ended.

    After a signal, no further trial starts, and the running trials save and end.
    """
    with ExperimentPanel(queue, launcher) as panel:
        while True:
            while not interruption.requested and (found := queue.next(launcher.has_room)) is not None:
                launcher.start(*found, shown=panel.adopt(found[0]))
            if not launcher.running:
                panel.update((), now=True)  # A notebook keeps it.
                return
            for trial, need, died in launcher.ended(queue.seconds):
                queue.ended(trial, need, died)
            queue.tick(launcher.running)
            panel.update(launcher.running)
            if interruption.take_save():
                launcher.save()
            if interruption.requested:
                launcher.stop()
