"""Pruners that stop trials early: pure functions of the values that all trials have reported.

Optuna's pruners write to the storage while they decide, so that a process killed in between could decide
differently the second time. These functions always decide the same. A value is the mean over a trial's
sessions, and larger is better; a history maps frames to values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from labrl.experiment.search.options import AshaPruner, HyperbandPruner, MedianPruner, NoPruner, Pruner

History = Mapping[int, float]
"""Values of one trial by frame."""


def is_hopeless(
    pruner: Pruner, number: int, histories: Mapping[int, History], full: int, budget: int, name: str = ""
) -> bool:
    """Return whether to stop trial `number`, which has just reported.

    histories: those of all trials by number, including its own; full: number of trials that have used up
    their budget of `budget` frames; name: name of the study, from which hyperband derives brackets.
    """
    own = histories[number]
    frame = max(own)
    if isinstance(pruner, NoPruner) or frame >= budget:
        return False
    if isinstance(pruner, MedianPruner):
        others = [history for other, history in histories.items() if other != number]
        return full >= pruner.startup_trials and frame >= pruner.warmup and below_median(own, others)
    grace = pruner.grace_period or default_grace(budget)
    if isinstance(pruner, AshaPruner):
        return loses_halving(own, list(histories.values()), grace, pruner.reduction_factor)
    assert isinstance(pruner, HyperbandPruner)
    bracket = bracket_of(name, number, grace, pruner.reduction_factor, budget)
    rivals = [
        history
        for other, history in histories.items()
        if bracket_of(name, other, grace, pruner.reduction_factor, budget) == bracket
    ]
    return loses_halving(own, rivals, grace * pruner.reduction_factor**bracket, pruner.reduction_factor)


def default_grace(budget: int) -> int:
    """Return the default grace period in frames: a ninth of the budget, for two rungs with a factor of 3."""
    return max(1, budget // 9)


def below_median(own: History, others: list[History]) -> bool:
    """Return whether the best value so far is below the median of the others at this frame (Vizier, 2017)."""
    frame = max(own)
    there = [history[frame] for history in others if frame in history]
    return bool(there) and max(own.values()) < float(np.median(there))


def loses_halving(own: History, all_of_them: list[History], grace: int, factor: int) -> bool:
    """Return whether successive halving stops the trial at the rung that it has just reached, if any.

    Rung k is at the first report after `grace * factor ** k` frames. Of the n trials that have reached it,
    the best n // factor continue, but at least one.
    """
    frame = max(own)
    before = max((other for other in own if other < frame), default=-1)
    rung = grace
    while rung <= frame:
        if rung > before and not _goes_on(_value_at(own, rung), all_of_them, rung, factor):
            return True
        rung *= factor
    return False


def bracket_of(name: str, number: int, grace: int, factor: int, budget: int) -> int:
    """Return the bracket of a trial in hyperband. Bracket 0 stops trials earliest, and the last stops none.

    Each bracket gets trials in proportion to how many of them fit into a given number of frames.
    """
    count = 1 + max(0, math.floor(math.log(budget / grace, factor) + 1e-9))
    shares = [math.ceil(count * factor ** (count - 1 - k) / (count - k)) for k in range(count)]
    place = zlib.crc32(f"{name}_{number}".encode()) % sum(shares)
    return next(k for k in range(count) if place < sum(shares[: k + 1]))


def _value_at(history: History, rung: int) -> float | None:
    return next((history[frame] for frame in sorted(history) if frame >= rung), None)


def _goes_on(value: float | None, histories: list[History], rung: int, factor: int) -> bool:
    reached = sorted((v for h in histories if (v := _value_at(h, rung)) is not None), reverse=True)
    assert value is not None
    return value >= reached[max(1, len(reached) // factor) - 1]
