"""Trials side by side never take more cores or GPUs than there are."""

from __future__ import annotations

from typing import Any

import pytest

from labrl.errors import InputError
from labrl.lab.devices import NUM_CPUS, available_cpus, threads_per_session
from labrl.lab.shares import Machine, Need, Share, visible_gpus


def shares(machine: Machine, need: Need) -> list[Share]:
    """All that a machine can give to trials of one kind."""
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
        ({}, 3, 4, 2),
        ({}, 1, 1, 8),
        ({"max_session": 4}, 100, 2, 4),
        ({"max_session": 100}, 100, 1, 8),
        ({"num_cpus": 2}, 100, 4, 2),
        ({"num_cpus": 2, "max_session": 4}, 100, 4, 2),
        ({"num_cpus": 0.5}, 100, 8, 1),
        ({"num_cpus": 99}, 100, 1, 8),
        ({"num_cpus": "many", "max_session": None}, 100, 8, 1),
    ],
    ids=str,
)
def test_cores_are_divided_and_never_given_twice(
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
        (0.5, [("0",), ("1",), ("0",), ("1",)]),
        (0.25, [("0",), ("1",), ("0",), ("1",), ("0",), ("1",), ("0",), ("1",)]),
        (1, [("0",), ("1",)]),
        (1.5, [("0", "1")]),
        (2, [("0", "1")]),
        (None, [("0",), ("1",)] * 4),
    ],
)
def test_gpus_are_divided_and_trials_spread_over_them(
    num_gpus: float | None, given: list[tuple[str, ...]]
) -> None:
    machine = Machine(cores=8, gpus=["0", "1"])
    got = shares(machine, Need(1, num_gpus))
    assert [share.gpus for share in got] == given
    for share in got:
        machine.give_back(share)
    assert [share.gpus for share in shares(machine, Need(1, num_gpus))] == given


def test_a_trial_with_a_gpu_waits_and_does_not_get_half_of_another() -> None:
    machine = Machine(cores=8, gpus=["0"])
    third = [machine.take(Need(1, 0.4)) for _ in range(3)]
    assert third[2] is None
    assert machine.take(Need(1, 1)) is None
    assert machine.take(Need(1, 0)) is not None


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(InputError, match=r"meta\.num_gpus=3: there are 2 GPUs here"):
        Machine(cores=8, gpus=["0", "1"]).check(Need(1, 3))


def test_a_share_is_kept_to_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Share(cores=1, gpus=("3", "5"), part=1.0)
    assert share.environment == {NUM_CPUS: "1", "CUDA_VISIBLE_DEVICES": "3,5"}
    assert Share(cores=1).environment == {NUM_CPUS: "1"}, "a machine without GPUs is left as it is"
    assert Share(cores=1, gpus=()).environment["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv(NUM_CPUS, "1")
    assert available_cpus() == 1
    assert threads_per_session(None, 1) == 1


@pytest.mark.parametrize(
    ("value", "gpus"), [("", []), ("-1", []), ("2,0", ["2", "0"]), ("MIG-a/1", ["MIG-a/1"])]
)
def test_gpus_that_somebody_chose_for_this_process_are_all_there_are(
    value: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == gpus
