"""Tests of experiment folders: claimed by one process, consistent when killed, and readable afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import busy, damaged, refused

from labrl.errors import InputError
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
    assert (info["kind"], info["status"], info["overrides"], info["ended"]) == (
        "grid",
        "failed",
        ["seed=0,1"],
        "now",
    )
    assert info["trials"][1]["params"] == {"agent.lr": 1e-4}


def test_only_one_of_many_simultaneous_claims_gets_the_folder(tmp_path: Path) -> None:
    def claim(_: int) -> bool:
        try:
            Experiment.begin(tmp_path / "e", "grid", [])
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(32))) == 1
    with refused("range", "hydra.sweep.dir"):
        Experiment.begin(tmp_path / "e", "grid", [])


def test_run_folder_cannot_become_an_experiment_folder(tmp_path: Path) -> None:
    Run.create(tmp_path / "run")
    with refused("range", "hydra.sweep.dir"):
        Experiment.begin(tmp_path / "run", "grid", [])


def test_simultaneous_updates_of_threads_are_all_kept(tmp_path: Path) -> None:
    made = Experiment.begin(tmp_path / "e", "search", [])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: made.set_trials([record(number)]), range(40)))
    assert [trial.number for trial in made.trials()] == list(range(40))


@pytest.mark.extended
def test_file_is_complete_after_a_kill_while_writing(tmp_path: Path) -> None:
    code = (
        "from labrl.run.experiment import Experiment as E, TrialRecord as T\n"
        f"made = E.begin({str(tmp_path / 'e')!r}, 'grid', [])\n"
        "for n in range(10**9):\n"
        "    made.set_trials([T(number=n % 50, overrides=['x' * 500], folder=str(n))])\n"
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code])
        marker = tmp_path / "e" / "experiment.json"
        while not marker.exists() or len(Experiment.open(tmp_path / "e").trials()) < 5:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert len(Experiment.open(tmp_path / "e").trials()) >= 5
        marker.unlink()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format_version": 3, "trials": [{"number": 0}]}'])
def test_damaged_experiment_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(content)
    with damaged(tmp_path / "experiment.json"):
        Experiment.open(tmp_path).trials()


def test_folder_without_an_experiment_or_of_a_newer_labrl_is_refused(tmp_path: Path) -> None:
    with refused("not-found", tmp_path):
        Experiment.open(tmp_path)
    (tmp_path / "experiment.json").write_text('{"format_version": 99}')
    with refused("not-installed", tmp_path) as error:
        Experiment.open(tmp_path)
    assert "99" in str(error.value)


def test_running_experiment_cannot_be_locked_again(tmp_path: Path) -> None:
    made = Experiment.begin(tmp_path / "e", "grid", [])
    with made.lock(), busy(tmp_path / "e") as error, Experiment.open(tmp_path / "e").lock():
        pass
    assert str(os.getpid()) in str(error.value)
    with made.lock():
        pass
