"""Tests of slots: trials that run at once never get more cores or GPUs than the machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import labrl
from labrl.cli import main
from labrl.experiment.machine import Machine, Need, Share
from labrl.session.devices import NUM_CPUS, available_cpus, machine_cpus, threads_per_session, visible_gpus


def shares(machine: Machine, need: Need) -> list[Share]:
    """Return the slots of all trials with the same need that the machine can run at once."""
    given = []
    while share := machine.take(need):
        given.append(share)
        assert len(given) < 1000
    return given


@pytest.mark.parametrize(
    ("meta", "trials", "at_once", "cores"),
    [
        ({}, 100, 8, 1),
        ({}, 4, 4, 2),
        ({}, 1, 1, 8),
        ({"max_session": 4}, 100, 2, 4),
        ({"num_cpus": 2}, 100, 4, 2),
        ({"num_cpus": "many", "max_session": None}, 100, 8, 1),
    ],
    ids=str,
)
def test_cores_are_divided_among_trials_and_never_given_twice(
    meta: dict[str, Any], trials: int, at_once: int, cores: int
) -> None:
    machine = Machine(cores=8, gpus=[])
    given = shares(machine, Need.of(meta, trials, machine.cores))
    assert [share.cores for share in given] == [cores] * at_once
    assert sum(share.cores for share in given) <= 8
    machine.give_back(given[0])
    assert machine.take(Need.of(meta, trials, machine.cores)) is not None


@pytest.mark.parametrize(
    ("num_gpus", "given"),
    [
        (0, [()] * 8),
        (0.4, [("0",), ("1",), ("0",), ("1",)]),
        (1, [("0",), ("1",)]),
        (1.5, [("0", "1")]),
        (None, [("0",), ("1",)] * 4),
    ],
)
def test_trials_are_spread_over_the_gpus(num_gpus: float | None, given: list[tuple[str, ...]]) -> None:
    machine = Machine(cores=8, gpus=["0", "1"])
    got = shares(machine, Need(1, num_gpus))
    assert [share.gpus for share in got] == given
    for share in got:
        machine.give_back(share)
    assert [share.gpus for share in shares(machine, Need(1, num_gpus))] == given


@pytest.mark.parametrize("override", ["meta.num_cpus=10000", "meta.num_gpus=99"])
@pytest.mark.parametrize(
    "command",
    [[], ["-m", "seed=1,2"], ["-m", "hydra/launcher=submitit_local"]],
    ids=" ".join,
)
def test_commands_refuse_more_resources_than_the_machine_has(
    command: list[str],
    override: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "wandb=disabled", override]) == 2
    message = capsys.readouterr().err
    assert override.partition("=")[0] in message
    assert "Traceback" not in message
    assert not list(tmp_path.glob("runs/*"))


def test_trial_may_ask_for_all_cores_though_it_was_given_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NUM_CPUS, "1")
    overrides = ["agent=random", "env.max_frame=100", "wandb=disabled", f"hydra.run.dir={tmp_path / 'run'}"]
    assert labrl.train([*overrides, f"meta.num_cpus={machine_cpus()}"]).exit_code == 0


def test_slots_are_passed_on_by_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Share(cores=1, gpus=("3", "5"), part=1.0)
    assert share.environment == {NUM_CPUS: "1", "CUDA_VISIBLE_DEVICES": "3,5"}
    assert Share(cores=1).environment == {NUM_CPUS: "1"}, "GPUs were restricted"
    assert Share(cores=1, gpus=()).environment["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv(NUM_CPUS, "1")
    assert available_cpus() == 1
    assert threads_per_session(None, 1) == 1
    for value, gpus in (("", []), ("-1", []), ("2,0", ["2", "0"]), ("MIG-a/1", ["MIG-a/1"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert visible_gpus() == gpus


@pytest.mark.parametrize("given", ["0", "two", "1.5"])
def test_wrong_number_of_cores_in_the_environment_is_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: labrl used all cores of a shared machine instead."""
    monkeypatch.setenv(NUM_CPUS, given)
    with refused("range", NUM_CPUS):
        labrl.train(["agent=random", "env.max_frame=100", f"hydra.run.dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()
