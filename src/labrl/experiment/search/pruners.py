"""Pruners: which trials a search stops early, and their options (`search.pruner`).

Optuna's pruners write to the storage while they decide, so that a process killed in between could decide
differently the second time. These always decide the same.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from labrl.types import NonNegativeInt, PositiveInt, whole_number

TwoOrMore = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]
"""An integer of at least 2."""


History = Mapping[int, float]
"""Values that one trial has reported, the means over its sessions, by frame."""


class Reports(NamedTuple):
    """The reports of all trials, from which a pruner decides whether to stop the one that has just reported.

    Larger values are better.
    """

    number: int
    """Number of that trial."""
    histories: Mapping[int, History]
    """Histories of all trials by number."""
    full: int
    """Number of trials that have used up their budget."""
    budget: int
    """Budget of a session, frames."""
    study: str
    """Name of the study."""

    @property
    def own(self) -> History:
        """The history of that trial."""
        return self.histories[self.number]


@dataclass(kw_only=True)
class NoPruner:
    """Every trial plays its whole budget."""

    kind: Literal["none"]
    """Name of the pruner."""

    def stops(self, reports: Reports) -> bool:
        """Return False."""
        return False

    def spares(self, budget: int) -> tuple[str, int]:
        """Return the frame before which no trial is stopped, with the key that sets it."""
        return "search/pruner", 0


@dataclass(kw_only=True)
class MedianPruner:
    """Stop a trial whose best value so far is worse than the median of the others at the same frame."""

    kind: Literal["median"]
    """Name of the pruner."""
    startup_trials: NonNegativeInt
    """Trials that must have played their whole budget before any is stopped, >= 0."""
    warmup: NonNegativeInt
    """Frames before which no trial is stopped, >= 0."""

    def stops(self, reports: Reports) -> bool:
        """Return whether to stop the trial that has just reported (Vizier, 2017)."""
        frame, best = max(reports.own), max(reports.own.values())
        others = (history for number, history in reports.histories.items() if number != reports.number)
        there = sorted(history[frame] for history in others if frame in history)
        if not there or reports.full < self.startup_trials or not self.warmup <= frame < reports.budget:
            return False
        return best < (there[(len(there) - 1) // 2] + there[len(there) // 2]) / 2

    def spares(self, budget: int) -> tuple[str, int]:
        """Return the frame before which no trial is stopped, with the key that sets it."""
        return "search.pruner.warmup", self.warmup


@dataclass(kw_only=True)
class Halving:
    """Successive halving, with rungs at the first report after so many frames.

    Of n trials that have reached a rung so far, the best n // reduction_factor continue, but at least one.
    """

    grace_period: PositiveInt | None
    """Frames before which no trial is stopped, for hyperband in the bracket that stops trials earliest, >= 1;
    null: a ninth of the budget, which leaves two rungs with a factor of 3."""
    reduction_factor: TwoOrMore
    """One in this many trials continues after each rung; for hyperband also the ratio of the brackets' grace
    periods, >= 2."""

    def spares(self, budget: int) -> tuple[str, int]:
        """Return the frame before which no trial is stopped, with the key that sets it."""
        return "search.pruner.grace_period", self.grace_period or max(1, budget // 9)

    def _loses(self, reports: Reports, rivals: Iterable[History], rung: int) -> bool:
        """Return whether the trial that has just reported is stopped at the rung that it has reached, if any.

        rivals: histories, including its own; rung: frame of the first rung.
        """
        own, all_of_them = reports.own, list(rivals)
        frame = max(own)
        before = max((other for other in own if other < frame), default=-1)
        while rung <= frame < reports.budget:
            reached = [value for one in all_of_them if (value := _value_at(one, rung)) is not None]
            best = sorted(reached, reverse=True)[: max(1, len(reached) // self.reduction_factor)]
            if rung > before and own[frame] < best[-1]:
                return True
            rung *= self.reduction_factor
        return False


@dataclass(kw_only=True)
class AshaPruner(Halving):
    """Asynchronous successive halving (Li et al., 2020, arXiv:1810.05934).

    A trial that reaches `grace_period * reduction_factor ** k` frames continues if it is among the best
    1 / reduction_factor of those that have got there so far.
    """

    kind: Literal["asha"]
    """Name of the pruner."""

    def stops(self, reports: Reports) -> bool:
        """Return whether to stop the trial that has just reported."""
        _, rung = self.spares(reports.budget)
        return self._loses(reports, reports.histories.values(), rung)


@dataclass(kw_only=True)
class HyperbandPruner(Halving):
    """Several successive halvings that differ in their grace period (Li et al., 2018, arXiv:1603.06560)."""

    kind: Literal["hyperband"]
    """Name of the pruner."""

    def stops(self, reports: Reports) -> bool:
        """Return whether to stop the trial that has just reported, compared with others of its bracket."""
        _, rung = self.spares(reports.budget)
        bracket = self.bracket_of(reports, reports.number)
        rivals = (one for n, one in reports.histories.items() if self.bracket_of(reports, n) == bracket)
        return self._loses(reports, rivals, rung * self.reduction_factor**bracket)

    def bracket_of(self, reports: Reports, number: int) -> int:
        """Return the bracket of a trial. Bracket 0 stops trials earliest, and the last stops none.

        Each bracket gets trials in proportion to how many of them fit into a given number of frames.
        """
        factor, (_, grace) = self.reduction_factor, self.spares(reports.budget)
        count = 1 + max(0, math.floor(math.log(reports.budget / grace, factor) + 1e-9))
        shares = [math.ceil(count * factor ** (count - 1 - k) / (count - k)) for k in range(count)]
        place = zlib.crc32(f"{reports.study}_{number}".encode()) % sum(shares)
        return next(k for k in range(count) if place < sum(shares[: k + 1]))


def _value_at(history: History, rung: int) -> float | None:
    return next((history[frame] for frame in sorted(history) if frame >= rung), None)


Pruner = Annotated[NoPruner | MedianPruner | AshaPruner | HyperbandPruner, Field(discriminator="kind")]
