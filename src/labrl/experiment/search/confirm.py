"""Confirmation: runs the best trials on seeds that the search has not used, to rule out luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from labrl.errors import LabrlError
from labrl.experiment.machine import Need
from labrl.experiment.scheduler import RetryingQueue
from labrl.experiment.search.objective import trial_values
from labrl.experiment.search.options import Confirm
from labrl.experiment.search.recipe import Recipe
from labrl.experiment.search.study import Plan
from labrl.experiment.task import Outcome, Task
from labrl.seeding import derived_seed
from labrl.session.interruption import Interruption
from labrl.storage.experiment_folder import CONFIRMING, TRIAL_LOG
from labrl.storage.run_folder import RunFolder
from labrl.trial.summary import say


@dataclass
class Candidate:
    """One configuration to confirm."""

    number: int | None
    """Number of the trial; None for the configuration without any searched value."""
    params: dict[str, Any]
    searched: list[float] | None
    """Its value in the search, by objective."""
    folders: list[Path]
    """Run folders, one for each seed."""
    values: list[list[float] | None] = field(default_factory=list)
    """Values on each seed, by objective; None where the run did not finish."""

    @property
    def mean(self) -> float | None:
        """Mean of the first objective over the seeds; None where one of them failed."""
        known = [values[0] for values in self.values if values is not None]
        return float(np.mean(known)) if known and len(known) == len(self.folders) else None


@dataclass
class Confirmation:
    """The confirmation of all candidates on the same fresh seeds."""

    seeds: list[int]
    candidates: list[Candidate]

    @classmethod
    def of(
        cls, config: Confirm, plan: Plan, best: Sequence[FrozenTrial], seed: int, home: Path
    ) -> Confirmation:
        """Return the confirmation to run. seed: seed of the study; home: the experiment folder."""
        seeds = [derived_seed(seed, "confirmation", index) for index in range(config.sessions)]

        def candidate(number: int | None, params: dict[str, Any], searched: list[float] | None) -> Candidate:
            name = "default" if number is None else f"trial_{number}"
            folders = [home / f"{CONFIRMING}{name}_{index}" for index in range(config.sessions)]
            return Candidate(number, params, searched, folders)

        chosen = [
            candidate(trial.number, dict(trial.params), list(trial.values)) for trial in best[: config.top]
        ]
        return cls(seeds, chosen + ([candidate(None, {}, None)] if config.default else []))

    def read(self, plan: Plan) -> None:
        """Read the results of the runs."""
        for one in self.candidates:
            one.values = [
                trial_values(folder, plan.measures, 1, plan.random_return) if _has_finished(folder) else None
                for folder in one.folders
            ]

    def winner(self, maximize: bool) -> Candidate | None:
        """Return the trial with the best mean over the fresh seeds; None where no trial has one."""
        known = [one for one in self.candidates if one.number is not None and one.mean is not None]
        sign = -1 if maximize else 1
        return min(known, key=lambda one: (sign * (one.mean or 0.0), one.number), default=None)

    def as_json(self, home: Path, maximize: bool) -> dict[str, Any]:
        """Return the entry in `experiment.json`: seeds, candidates, and whether the best trial stayed the
        best."""
        winner = self.winner(maximize)
        return {
            "seeds": self.seeds,
            "candidates": [
                {
                    "trial": one.number,
                    "params": one.params,
                    "searched": one.searched,
                    "folders": [str(folder.relative_to(home)) for folder in one.folders],
                    "values": one.values,
                    "mean": one.mean,
                }
                for one in self.candidates
            ],
            "winner": None if winner is None else winner.number,
            "held": None if winner is None else winner is self.candidates[0],
        }


class ConfirmingRuns(RetryingQueue):
    """The queue of a confirmation: a run for each candidate and seed."""

    def __init__(
        self,
        confirmation: Confirmation,
        recipe: Recipe,
        need: Need,
        retries: int,
        interruption: Interruption,
    ) -> None:
        """retries: how often a run whose process died continues."""
        runs = [
            (one.params, folder, seed)
            for one in confirmation.candidates
            for folder, seed in zip(one.folders, confirmation.seeds, strict=True)
        ]
        tasks = [
            Task(
                number=number,
                overrides=[*recipe.overrides(params, seed, max_session=1), *recipe.place(folder)],
                folder=folder,
                need=need,
                log=TRIAL_LOG,
                label=folder.name,
            )
            for number, (params, folder, seed) in enumerate(runs)
        ]
        super().__init__(retries, interruption, tasks)

    def done(self, task: Task, outcome: Outcome) -> None:
        """Print a failure; what a run came to lies in its folder."""
        if outcome.error:
            say(f"{task.named} failed: {outcome.error}")


def _has_finished(folder: Path) -> bool:
    try:
        return RunFolder.open(folder).status == "finished"
    except LabrlError:
        return False
