"""A launcher that trains the trials of an experiment in the process of the test, to start no others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra.core.config_store import ConfigStore

from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.scheduler import Answer, Planned, Task
from labrl.trial.train import carry_out

ConfigStore.instance().store("one_process", {"_target_": "one_process.OneProcess"}, group="hydra/launcher")

ONE_PROCESS = "hydra/launcher=one_process"


class OneProcess(TrialLauncher):
    """Train one trial after another, each to its end."""

    limit = 1

    def send(self, task: Task, planned: Planned) -> None:
        """Do nothing: `answers` trains the trial."""

    def answers(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        (number, (_, planned)), *_ = self._sent.items()
        with _kept_surroundings():
            os.environ.update(planned.order["environment"])
            return [(number, carry_out({**planned.order, "label": ""}))]

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
