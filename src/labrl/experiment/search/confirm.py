"""Confirmation: the best trials run again on seeds that the search has not used, to rule out luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from labrl.errors import LabrlError
from labrl.experiment.search.objective import trial_values
from labrl.experiment.search.options import Confirm
from labrl.experiment.search.study import Plan
from labrl.seeding import derived_seed
from labrl.storage.experiment_folder import CONFIRMING
from labrl.storage.run_folder import RunFolder


@dataclass
class Candidate:
    """One configuration that is confirmed."""

    number: int | None
    """Of the trial; None: the configuration without any searched value."""
    params: dict[str, Any]
    searched: list[float] | None
    """What the search found it to be worth, on its own seeds."""
    folders: list[Path]
    """Run folders, one for each seed."""
    values: list[list[float] | None] = field(default_factory=list)
    """What each of them came to, by objective; None where it did not reach its end."""

    @property
    def mean(self) -> float | None:
        """Of the first objective over the seeds; None where one of them failed."""
        known = [values[0] for values in self.values if values is not None]
        return float(np.mean(known)) if known and len(known) == len(self.folders) else None


@dataclass
class Confirmation:
    """All candidates on the same fresh seeds."""

    seeds: list[int]
    candidates: list[Candidate]

    @classmethod
    def of(
        cls, config: Confirm, plan: Plan, best: Sequence[FrozenTrial], seed: int, home: Path
    ) -> Confirmation:
        """What is to be run. seed: of the study; home: the experiment folder."""
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
        """Take over what the runs came to."""
        for one in self.candidates:
            one.values = [
                trial_values(folder, plan.measures, 1, plan.random_return) if _has_finished(folder) else None
                for folder in one.folders
            ]

    def winner(self, maximize: bool) -> Candidate | None:
        """The trial with the best mean over the fresh seeds; None where no trial has one."""
        known = [one for one in self.candidates if one.number is not None and one.mean is not None]
        sign = -1 if maximize else 1
        return min(known, key=lambda one: (sign * (one.mean or 0.0), one.number), default=None)

    def as_json(self, home: Path, maximize: bool) -> dict[str, Any]:
        """For `experiment.json`: seeds, candidates, and whether the search's best trial stayed the best."""
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


def _has_finished(folder: Path) -> bool:
    try:
        return RunFolder.open(folder).status == "finished"
    except LabrlError:
        return False
