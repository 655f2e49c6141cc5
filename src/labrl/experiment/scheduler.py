"""Schedule the trials of a grid or a search: a queue provides tasks, and a launcher runs several at a time.

Tasks and outcomes are plain data that can be sent to other processes and machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from labrl.errors import DONE, FAILED, TERMINATED, first_line
from labrl.experiment.machine import Need
from labrl.processes.script import surroundings
from labrl.run.run import Run
from labrl.session.interruption import Interruption

if TYPE_CHECKING:
    from labrl.experiment.launcher import TrialLauncher


@dataclass(frozen=True, kw_only=True)
class Task:
    """A trial to run, or to continue from an earlier attempt in its folder."""

    number: int
    """Number of the trial in its experiment."""
    overrides: list[str]
    """All overrides that compose the trial, including those for Hydra."""
    folder: Path
    """Run folder of the trial, which the overrides also set."""
    need: Need
    """Cores and GPUs of the trial."""
    reports_to: Path | None = None
    """Folder of the search that answers the evaluations of the trial's sessions; None: there is no search."""
    log: str | None = None
    """Name of the file in `folder` for the output of the trial; None: the output goes to the terminal."""
    attempts: int = 0
    """Number of times that the process of the trial has died."""
    label: str = ""
    """Name of the trial in messages; if empty, the trial is named by its number."""
    about: str = ""
    """The overrides that distinguish the trial from others."""
    shown: bool = False
    """Whether the panel of the experiment shows the progress of the trial."""

    @property
    def named(self) -> str:
        """Name of the trial in messages."""
        return self.label or f"trial {self.number}"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A trial whose folder is written, so that any process can train it."""

    folder: Path
    """The run folder of the trial."""
    order: dict[str, Any]
    """Plain data for `labrl.trial.train.carry_out` in the process that trains it."""

    def order_elsewhere(self) -> dict[str, Any]:
        """Return the order for a process that does not start with the variables and modules of this
        process."""
        return {**self.order, **surroundings()}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a trial."""

    status: Literal["finished", "pruned", "failed", "interrupted"]
    exit_code: int
    """0 after success, 1 if the trial failed, 2 if it was refused, 130 or 143 if a signal ended it."""
    error: str | None = None
    """The error of a failed trial, in one line."""
    returns: tuple[float, ...] = ()
    """Final return of each session that has one and did not fail."""
    died: bool = False
    """Whether its process ended without a result, so that another attempt can continue from a checkpoint."""

    @classmethod
    def failed(cls, error: str, code: int = FAILED) -> Outcome:
        """Return the outcome of a trial that `error` ended without a result."""
        return cls(status="failed", exit_code=code, error=error)

    @classmethod
    def lost(cls, error: str, interrupted: bool) -> Outcome:
        """Return the outcome of a trial whose process or machine has died.

        interrupted: whether the process was asked to end.
        """
        if interrupted:
            return cls(status="interrupted", exit_code=TERMINATED, error=error, died=True)
        return cls(status="failed", exit_code=FAILED, error=error, died=True)


Answer = tuple[int, str | None] | Outcome
"""Answer of the process of a planned trial: its exit code, and the error of the trial if there is one. For a
process that was lost, the outcome of the trial stands in its place."""

_EXIT_CODES = {"finished": DONE, "pruned": DONE, "failed": FAILED, "interrupted": TERMINATED}


def recorded(run: Run, exit_code: int | None = None) -> Outcome:
    """Return the outcome that a run folder records.

    A trial whose status is `running` counts as finished, because it was killed after its sessions had ended.
    exit_code: exit code of the trial, if it is known.
    """
    info = run.read_info()
    status: Any = info["status"] if info["status"] in _EXIT_CODES else "finished"
    sessions = info.get("sessions", [])
    errors = [
        f"session {session['index']}: {session['error']}" if len(sessions) > 1 else session["error"]
        for session in sessions
        if session["error"]
    ]
    returns = [session.get("final_return") for session in sessions if session["status"] != "failed"]
    return Outcome(
        status=status,
        exit_code=_EXIT_CODES[status] if exit_code is None else exit_code,
        error="; ".join(errors) or None,
        returns=tuple(value for value in returns if value is not None),
    )


def outcome_of(folder: Path, answer: Answer) -> Outcome:
    """Return the outcome of the planned trial in `folder`, whose process has given `answer`."""
    if isinstance(answer, Outcome):
        return answer
    code, error = answer
    return Outcome.failed(error, code) if error else recorded(Run.open(folder), code)


class Planning(Protocol):
    """Plans the trials that a launcher starts."""

    def plan(self, task: Task) -> Planned | Outcome:
        """Return the planned trial, or the outcome of a trial that is refused or has already ended."""


class Queue:
    """Provides the trials of an experiment, and keeps their outcomes."""

    seconds = 0.5
    """Longest time between two calls of `tick`, and between two checks for a signal, in seconds."""
    shows_progress = False
    """Whether a panel shows the trials, if there is a terminal or a notebook for it."""

    def __init__(self, left: Sequence[Task] = ()) -> None:
        """left: the trials that are still to be run, as far as they are known, in order."""
        self.left = list(left)
        self.outcomes: dict[int, Outcome] = {}
        """Outcomes of the trials that have ended, by number."""

    def next(self, has_room: Callable[[Need], bool]) -> Task | None:
        """Return the next trial; None if there is no further trial, or no room for it at present."""
        return self.left.pop(0) if self.left and has_room(self.left[0].need) else None

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Keep the outcome of a trial."""
        self.outcomes[task.number] = outcome

    def tick(self, running: Collection[Task]) -> None:
        """Do periodic work while trials run, every `seconds`. An error ends all trials."""

    def states(self, running: Collection[Any]) -> Counter[str]:
        """Return the number of trials in each state. running: the trials that have started."""
        states = Counter(running=len(running), waiting=len(self.left))
        states.update(outcome.status for outcome in self.outcomes.values())
        return states

    def note(self) -> str:
        """Return a further line for the panel, or an empty string."""
        return ""


class RetryingQueue(Queue):
    """A queue of trials that continue from their checkpoints when their processes die."""

    def __init__(self, retries: int, interruption: Interruption, left: Sequence[Task] = ()) -> None:
        """retries: maximum number of times that a trial continues; interruption: no trial continues once it
        is requested."""
        super().__init__(left)
        self._retries, self._interruption = retries, interruption

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Have a trial continue if its process has died; otherwise, record its outcome."""
        if outcome.status in ("finished", "pruned"):
            self._done(task, outcome)
        elif self._interruption.requested:
            return  # A resume continues it, even if the signal arrived where it made the trial fail.
        elif outcome.status == "failed" and not outcome.died:
            self._done(task, outcome)
        else:
            # Imported late: a single run loads this module and must not wait for it.
            from labrl.trial.summary import say

            how = outcome.error or "its process was asked to stop"
            if task.attempts < self._retries:
                say(f"{task.named}: {how}; it continues from its checkpoint")
                self.left.insert(0, replace(task, attempts=task.attempts + 1))
                self.retried(self.left[0])
            else:
                why = f"its process died {task.attempts + 1} times; the last time: {how}"
                self._done(task, Outcome.failed(why))

    def retried(self, task: Task) -> None:
        """Record that a trial continues for the `task.attempts`-th time."""

    def _done(self, task: Task, outcome: Outcome) -> None:
        self.outcomes[task.number] = outcome
        self.done(task, outcome)

    def done(self, task: Task, outcome: Outcome) -> None:
        """Print the failure of a trial that does not continue."""
        from labrl.trial.summary import say

        if outcome.error:
            say(f"{task.named} failed: {first_line(outcome.error)}")


def run_queue(queue: Queue, launcher: TrialLauncher, interruption: Interruption) -> None:
    """Run trials when there is room for them, until the queue is empty and the last one has ended.

    After a signal, no further trial starts, and the running trials save and end.
    """
    # Imported late: a single run loads this module and must not wait for it.
    from labrl.experiment.panel import ExperimentPanel

    with ExperimentPanel(queue, launcher) as panel:
        while True:
            while not interruption.requested and (task := queue.next(launcher.has_room)) is not None:
                launcher.start(panel.adopt(task))
            if not launcher.running:
                panel.update((), now=True)  # A notebook keeps it.
                return
            for task, outcome in launcher.ended(queue.seconds):
                queue.ended(task, outcome)
            queue.tick(launcher.running)
            panel.update(launcher.running)
            if interruption.take_save():
                launcher.save()
            if interruption.requested:
                launcher.stop()
