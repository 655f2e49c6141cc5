"""Tests of experiment folders: claimed by one process, consistent when killed, and readable afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import damaged, refused

from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import Run


def record(number: int) -> TrialRecord:
    return TrialRecord(number=number, overrides=[f"seed={number}"], folder=f"{number}_ppo_cartpole")


def test_run_folder_cannot_become_an_experiment_folder(tmp_path: Path) -> None:
    Run.create(tmp_path / "run")
    with refused("range", "hydra.sweep.dir"):
        Experiment.begin(tmp_path / "run", "grid", [])


def test_simultaneous_updates_of_threads_are_all_kept(tmp_path: Path) -> None:
    made = Experiment.begin(tmp_path / "e", "search", [])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: made.set_trials([record(number)]), range(40)))
    assert [trial.number for trial in made.trials()] == list(range(40))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format_version": 3, "trials": [{"number": 0}]}'])
def test_damaged_experiment_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(content)
    with damaged(tmp_path / "experiment.json"):
        Experiment.open(tmp_path).trials()
