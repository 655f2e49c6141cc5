"""A launcher that trains the trials of an experiment in the process of the test, to start no others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.config_store import ConfigStore

from labrl.experiment.launcher import Answer, TrialLauncher
from labrl.experiment.machine import Need
from labrl.run.experiment import TrialRecord
from labrl.trial.train import carry_out

ConfigStore.instance().store("one_process", {"_target_": "one_process.OneProcess"}, group="hydra/launcher")

ONE_PROCESS = "hydra/launcher=one_process"


class OneProcess(TrialLauncher):
    """Train one trial after another, each to its end."""

    limit = 1

    def send(self, trial: TrialRecord, need: Need, order: dict[str, Any]) -> None:
        """Keep the order: `answers` trains the trial."""
        self._order = trial.number, order

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        number, order = self._order
        with _kept_surroundings():
            os.environ.update(order["environment"])
            return [(number, (*carry_out({**order, "label": ""}), False))]

    def stop(self) -> None:
        """Do nothing, because no trial is running when this is called."""


@contextmanager
def _kept_surroundings() -> Iterator[None]:
    folder, before = os.getcwd(), dict(os.environ)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
