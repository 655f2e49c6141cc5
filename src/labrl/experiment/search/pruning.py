"""Pruners that stop trials early: pure functions of the values that all trials have reported.

Optuna's own pruners keep notes in the storage while they decide; a process killed between a note and its
consequence would decide differently the second time. These always decide the same.
A value is the mean over a trial's sessions, the larger the better; a history maps frames to values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from labrl.experiment.search.options import AshaPruner, HyperbandPruner, MedianPruner, NoPruner, Pruner

History = Mapping[int, float]
"""Value by frame, of one trial."""


def is_hopeless(
    pruner: Pruner, number: int, histories: Mapping[int, History], full: int, budget: int, name: str = ""
) -> bool:
    """Return whether trial `number`, which has just reported, must be stopped.

    histories: of all trials by number, its own included; full: how many trials have played their whole
    budget of `budget` frames; name: of the study, which hyperband draws its brackets from.
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
    """Return the default grace period, frames: a ninth of the budget, which leaves two rungs with a reduction
    by 3."""
    return max(1, budget // 9)


def below_median(own: History, others: list[History]) -> bool:
    """Return whether the best value so far is below the median of the others at this frame (Vizier, 2017)."""
    frame = max(own)
    there = [history[frame] for history in others if frame in history]
    return bool(there) and max(own.values()) < float(np.median(there))


def loses_halving(own: History, all_of_them: list[History], grace: int, factor: int) -> bool:
    """Return whether successive halving stops the trial at the rung that it has just reached, if any.

    Rung k lies at the first report from `grace * factor ** k` frames on. Of n trials that have reached
    it the best n // factor continue, and as long as there are fewer than `factor` the best one.
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
    """Return the bracket of a trial in hyperband, from 0, which stops earliest, to the one that stops
    nothing.

    Brackets get trials in proportion to how many of each fit the same number of frames.
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
