"""Runs the trials of an experiment side by side, as many at once as the machine carries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from labrl.errors import FAILED, TERMINATED
from labrl.experiment.labelled import label_output
from labrl.experiment.outcome import Outcome
from labrl.experiment.pool import Lost, Pool
from labrl.session.interruption import Interruption
from labrl.trial.shares import Machine, Need, Share

RunTrial = Callable[[int, list[str]], Outcome]
"""Runs one trial in the calling process, given its number and the words that compose it."""


@dataclass(frozen=True)
class Order:
    """A trial to be run."""

    number: int
    """Of the trial in its experiment."""
    words: list[str]
    """All that compose it, those for Hydra included."""
    need: Need


@dataclass
class Workers:
    """The machine's processes, and what a trial is to them."""

    run_trial: RunTrial
    """Picklable by cloudpickle."""
    machine: Machine
    limit: int | None = None
    """Most trials at once; None: as many as the machine carries."""

    def run_all(
        self,
        orders: Iterable[Order],
        on_start: Callable[[int], None],
        on_end: Callable[[int, Outcome], None],
    ) -> int | None:
        """Run all trials in order, telling of each start and end by its number.

        Returns None, or the exit code where a signal ended it: then running trials have saved and the rest
        has not begun.
        """
        waiting = deque(orders)
        shares: dict[int, Share] = {}
        perform = _Labelled(self.run_trial)
        with Interruption() as interruption, Pool[int, Order, Outcome](perform) as pool:
            while pool.jobs or (waiting and not interruption.requested):
                if interruption.requested:
                    pool.stop()
                while waiting and not interruption.requested and self._has_room(pool.jobs):
                    share = self.machine.take(waiting[0].need)
                    if share is None:
                        break
                    order = waiting.popleft()
                    shares[order.number] = share
                    pool.start(order.number, order, share.environment)
                    on_start(order.number)
                for number, result in pool.ended(seconds=0.25):
                    self.machine.give_back(shares.pop(number))
                    on_end(number, _outcome(result) if isinstance(result, Lost) else result)
        return interruption.exit_code if interruption.requested else None

    def _has_room(self, running: list[int]) -> bool:
        return self.limit is None or len(running) < self.limit


@dataclass
class _Labelled:
    """What a process does with an order: run its trial, with the number before each line it prints."""

    run_trial: RunTrial
    label: Callable[[str], None] | None = field(default=None, init=False)

    def __call__(self, order: Order) -> Outcome:
        self.label = self.label or label_output()
        self.label(f"[{order.number}] ")
        return self.run_trial(order.number, order.words)


def _outcome(lost: Lost) -> Outcome:
    if lost.interrupted:
        return Outcome(status="interrupted", exit_code=TERMINATED)
    return Outcome(status="failed", exit_code=FAILED, error=str(lost))
