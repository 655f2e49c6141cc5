"""Tests of experiment folders: claimed by one process, consistent when killed, and readable afterwards."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import damaged, refused

from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import Run


def record(number: int) -> TrialRecord:
    return TrialRecord(number=number, overrides=[f"seed={number}"], folder=f"{number}_ppo_cartpole")


def test_trials_and_status_are_read_back_as_written(tmp_path: Path) -> None:
    made = Experiment.begin(tmp_path / "e", "grid", [record(0), record(1)], overrides=["seed=0,1"])
    changed = record(1)
    changed.status, changed.error, changed.facts = "failed", "out of memory", {"params": {"agent.lr": 1e-4}}
    made.set_trials([changed, record(2)])
    made.set_status("failed", ended="now")
    again = Experiment.open(tmp_path / "e")
    assert again.trials() == [record(0), changed, record(2)]
    assert again.trial_path(changed) == tmp_path / "e" / "1_ppo_cartpole"
    info = json.loads((tmp_path / "e" / "experiment.json").read_text())
    assert (info["kind"], info["status"], info["ended"]) == ("grid", "failed", "now")
    assert info["overrides"] == ["seed=0,1"]
    assert info["trials"][1]["params"] == {"agent.lr": 1e-4}


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
