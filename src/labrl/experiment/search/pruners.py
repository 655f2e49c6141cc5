"""Pruners, which decide which trials a search stops early, and their options (`search.pruner`).

Optuna's pruners read the study while it changes, and some write to it while they decide, so that a process
that is killed in between could decide differently after a restart. The pruners of this module decide from the
reports alone.
"""

from __future__ import annotations

import math
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from labrl.types import Fraction, NonNegativeInt, PositiveInt, whole_number

TwoOrMore = Annotated[int, BeforeValidator(whole_number), Field(ge=2)]
"""An integer of at least 2."""

STARTUP = ((12, 5, 3), (50, 3, 2), (math.inf, 0, 1))
"""Triples of a number of trials, and the defaults of `n_startup_trials` and `n_startup_rows` for searches of
fewer trials than this number.

In a small search, every trial matters, and the first trials have few others to be compared with. In a large
search, many trials run at the same time, and all of them would run to the end if pruning had to wait for the
first to finish."""


History = Mapping[int, float]
"""Values that one trial or session has reported, by frame. The values of a trial are the means over its
sessions."""


def value_at(history: History, frame: int) -> float | None:
    """Return the first value at `frame` or later; None if there is none."""
    return next((history[at] for at in sorted(history) if at >= frame), None)


class Reports(NamedTuple):
    """The reports of all trials, from which a pruner decides whether to stop the one that has just reported.

    Larger values are better.
    """

    number: int
    """Number of the trial that has just reported."""
    histories: Mapping[int, History]
    """Histories of all trials by number. The history of a trial with several sessions is empty until all its
    sessions have reported."""
    full: int
    """Number of trials that have used up their budget."""
    total: int
    """Number of trials of the search."""
    budget: int
    """Budget of a session in frames."""
    study: str
    """Name of the study."""
    sessions: Sequence[History] = ()
    """Histories of the sessions of the trial that has just reported; empty for pruners that do not compare
    sessions."""
    best: Sequence[History] = ()
    """Histories of the sessions of the best finished trial; empty for pruners that do not compare
    sessions."""

    @property
    def own(self) -> History:
        """The history of the trial that has just reported."""
        return self.histories.get(self.number, {})


@dataclass(kw_only=True)
class NoPruner:
    """No pruning: every trial uses its complete budget."""

    kind: Literal["none"]
    """Name of the pruner."""

    def stops(self, reports: Reports) -> bool:
        """Return False."""
        return False


@dataclass(kw_only=True)
class StartingPruner(ABC):
    """Base class of pruners, which begin to stop trials once there are enough results to compare."""

    n_startup_trials: NonNegativeInt | None
    """Number of trials that must have finished before any trial is stopped, >= 0; null: 5 in a search of
    fewer than 12 trials, 3 in a search of fewer than 50 trials, otherwise 0."""
    n_startup_rows: PositiveInt | None
    """Number of evaluation rows that a trial must have before it may be stopped, >= 1; null: 3 in a search of
    fewer than 12 trials, 2 in a search of fewer than 50 trials, otherwise 1."""

    def startup(self, total: int) -> tuple[int, int]:
        """Return the number of trials and of rows before which no trial is stopped.

        total: number of trials of the search.
        """
        _, trials, rows = next(line for line in STARTUP if total < line[0])
        own_trials, own_rows = self.n_startup_trials, self.n_startup_rows
        return trials if own_trials is None else own_trials, rows if own_rows is None else own_rows

    def stops(self, reports: Reports) -> bool:
        """Return whether to stop the trial that has just reported."""
        trials, rows = self.startup(reports.total)
        return reports.full >= trials and self._loses(reports, rows)

    @abstractmethod
    def _loses(self, reports: Reports, rows: int) -> bool:
        """Return whether the trial that has just reported is worse than others before the end of its budget.

        rows: number of rows below which the trial is not stopped.
        """


@dataclass(kw_only=True)
class MedianPruner(StartingPruner):
    """Stop a trial whose best value so far is worse than the median of the other trials at the same frame."""

    kind: Literal["median"]
    """Name of the pruner."""

    def _loses(self, reports: Reports, rows: int) -> bool:
        """Compare with the median (Vizier, 2017)."""
        own = reports.own
        frame = max(own, default=0)
        others = (history for number, history in reports.histories.items() if number != reports.number)
        there = sorted(value for one in others if (value := value_at(one, frame)) is not None)
        if not there or len(own) < rows or frame >= reports.budget:
            return False
        return max(own.values()) < (there[(len(there) - 1) // 2] + there[len(there) // 2]) / 2


@dataclass(kw_only=True)
class Halving(StartingPruner):
    """Successive halving. A rung is the first report of a trial after a certain number of frames.

    Of n trials that have reached a rung so far, the best n // reduction_factor continue, but at least one.
    """

    grace_period: PositiveInt | None
    """Number of frames before which no trial is stopped, >= 1; for hyperband, in the bracket that stops
    trials earliest. null: a ninth of the budget, which leaves two rungs with a reduction factor of 3."""
    reduction_factor: TwoOrMore
    """Factor by which each rung reduces the number of trials, >= 2; for hyperband also the ratio of the
    brackets' grace periods."""

    def first_rung(self, budget: int) -> int:
        """Return the frame before which no trial is stopped. budget: budget of a session in frames."""
        return self.grace_period or max(1, budget // 9)

    def _loses_at(self, rung: int, reports: Reports, rivals: Iterable[History], rows: int) -> bool:
        """Return whether the trial that has just reported loses at one of the rungs that it has just reached.

        rung: frame of the first rung; rivals: histories of trials to compare with, including the trial's own.
        """
        own, all_of_them = reports.own, list(rivals)
        frames = sorted(own)
        if len(frames) < rows or frames[-1] >= reports.budget:
            return False
        # The first row that counts is compared at all rungs so far.
        before = frames[-2] if len(frames) > rows else -1
        while rung <= frames[-1]:
            reached = [value for one in all_of_them if (value := value_at(one, rung)) is not None]
            best = sorted(reached, reverse=True)[: max(1, len(reached) // self.reduction_factor)]
            value = value_at(own, rung)
            if rung > before and value is not None and value < best[-1]:
                return True
            rung *= self.reduction_factor
        return False


@dataclass(kw_only=True)
class AshaPruner(Halving):
    """Asynchronous successive halving (Li et al., 2020, arXiv:1810.05934).

    A trial that reaches `grace_period * reduction_factor ** k` frames continues if it is among the best
    fraction 1 / reduction_factor of the trials that have reached that frame so far.
    """

    kind: Literal["asha"]
    """Name of the pruner."""

    def _loses(self, reports: Reports, rows: int) -> bool:
        return self._loses_at(self.first_rung(reports.budget), reports, reports.histories.values(), rows)


@dataclass(kw_only=True)
class HyperbandPruner(Halving):
    """Several successive halvings that differ in their grace period (Li et al., 2018, arXiv:1603.06560)."""

    kind: Literal["hyperband"]
    """Name of the pruner."""

    def _loses(self, reports: Reports, rows: int) -> bool:
        """Compare with other trials of the same bracket."""
        bracket = self.bracket_of(reports, reports.number)
        rivals = (one for n, one in reports.histories.items() if self.bracket_of(reports, n) == bracket)
        rung = self.first_rung(reports.budget) * self.reduction_factor**bracket
        return self._loses_at(rung, reports, rivals, rows)

    def bracket_of(self, reports: Reports, number: int) -> int:
        """Return the bracket of a trial. Bracket 0 stops trials earliest, and the last bracket stops none.

        Each bracket gets a share of the trials in proportion to how many trials it can run in a given number
        of frames.
        """
        factor, grace = self.reduction_factor, self.first_rung(reports.budget)
        count = 1 + max(0, math.floor(math.log(reports.budget / grace, factor) + 1e-9))
        shares = [math.ceil(count * factor ** (count - 1 - k) / (count - k)) for k in range(count)]
        place = zlib.crc32(f"{reports.study}_{number}".encode()) % sum(shares)
        return next(k for k in range(count) if place < sum(shares[: k + 1]))


@dataclass(kw_only=True)
class WilcoxonPruner(StartingPruner):
    """Stop a trial that is worse than the best finished trial in a signed-rank test over seeds, like Optuna's
    WilcoxonPruner.

    The steps of Optuna's pruner are the seeds: session k of the trial is compared with session k of the best
    trial, at the latest frame that all sessions of the trial have reported.
    """

    kind: Literal["wilcoxon"]
    """Name of the pruner."""
    p_threshold: Fraction
    """p-value below which a trial counts as worse, in (0, 1]. Because the test is repeated at every row, a
    trial that is as good as the best one is stopped with a probability above this threshold."""

    @property
    def fewest_sessions(self) -> int:
        """The smallest number of sessions with which the p-value of the test can be below the threshold.

        With n sessions, the smallest p-value is 1 / 2 ** n.
        """
        return max(2, math.floor(math.log2(1 / self.p_threshold)) + 1)

    def _loses(self, reports: Reports, rows: int) -> bool:
        frame = max(reports.own, default=0)
        if len(reports.own) < rows or frame >= reports.budget or not reports.best or not all(reports.best):
            return False
        # A session that stopped early keeps its last value.
        own_values = {session: own[max(own)] for session, own in enumerate(reports.sessions)}
        best_values = {}
        for session, best in enumerate(reports.best):
            there = value_at(best, frame)
            best_values[session] = best[max(best)] if there is None else there
        import optuna

        study = optuna.create_study(direction="maximize")
        study.add_trial(optuna.trial.create_trial(value=0.0, intermediate_values=best_values))
        state = optuna.trial.TrialState.RUNNING
        trial = optuna.trial.create_trial(state=state, intermediate_values=own_values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.pruners.WilcoxonPruner(p_threshold=self.p_threshold).prune(study, trial)


Pruner = Annotated[
    NoPruner | MedianPruner | AshaPruner | HyperbandPruner | WilcoxonPruner, Field(discriminator="kind")
]
