"""What acting computed is what learning would compute again, and is used while the weights are the same."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise
from on_policy_cases import assert_same_future, build, play
from test_packed import NARROW, PICTURES, packed_of, torso
from torch import Tensor

from labrl.agents.a2c import A2C
from labrl.networks import kept
from labrl.networks.gradient import GradientWorkers
from labrl.networks.kept import Kept
from labrl.networks.torso import NatureCNN

IMAGES = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
ALL = len(PICTURES)


def workers_of(network: NatureCNN, num_workers: int = 2) -> tuple[GradientWorkers[NatureCNN], Kept]:
    packed_of(network)
    workers = GradientWorkers(network, num_workers, NARROW)
    store = workers.room_to_keep(ALL)
    assert store is not None
    return workers, store


def act(workers: GradientWorkers[NatureCNN], store: Kept, size: int = ALL, changed: bool = True) -> None:
    def work(network: NatureCNN, share: slice) -> None:
        with torch.inference_mode(), NARROW.autocast(), store.beside(network, share):
            network(PICTURES[share])

    workers.map(work, size, changed)


def gradient(workers: GradientWorkers[NatureCNN], store: Kept | None) -> Tensor:
    def loss(network: NatureCNN, share: slice) -> tuple[Tensor, Tensor]:
        known = contextlib.nullcontext() if store is None else store.beside(network, share)
        with NARROW.autocast(), known:
            mean = network(PICTURES[share]).float().square().mean()
        return mean, mean.detach().reshape(1)

    workers.backward(loss, ALL, changed=False)
    assert workers.flat.vector.grad is not None
    return workers.flat.vector.grad.clone()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_gradient_is_that_of_the_layers(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, store = workers_of(torso(), num_workers)
    act(workers, store)
    expected = gradient(workers, None)
    monkeypatch.setattr(NatureCNN, "first_convolution", None)  # no layer computes forward
    found = gradient(workers, store)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01 * float(expected.abs().max()))
    assert expected.abs().max() > 0
    workers.close()


def test_what_other_weights_gave_or_nobody_computed_is_not_used() -> None:
    workers, store = workers_of(torso())
    assert store.of(slice(0, ALL)) is None
    act(workers, store, ALL // 2)
    assert store.of(slice(0, ALL // 2)) is not None
    assert store.of(slice(0, ALL)) is None
    act(workers, store)
    assert store.of(slice(0, ALL)) is not None

    workers.flat.vector.data.mul_(1.5)
    workers.map(lambda network, share: None, ALL, changed=True)
    assert store.of(slice(0, ALL)) is None
    torch.testing.assert_close(gradient(workers, store), gradient(workers, None))
    workers.close()


def test_there_is_no_room_for_too_much_or_beside_weights_that_others_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, _ = workers_of(torso())
    workers.flat.shared = True
    assert workers.room_to_keep(ALL) is None
    workers.flat.shared = False
    monkeypatch.setattr(kept, "MOST_BYTES", 1000)
    assert workers.room_to_keep(ALL) is None
    workers.close()


def a2c(*words: str) -> tuple[A2C, Any, Any]:
    return build("a2c", *words, observation=IMAGES, action=gym.spaces.Discrete(3), compute=NARROW)


def images() -> Noise:
    return Noise(IMAGES, 4, 0)


def test_a2c_learns_from_what_it_acted_by_and_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    packed_of(torso())
    uses: list[bool] = []
    of = Kept.of

    def spy(store: Kept, rows: slice) -> list[Tensor] | None:
        found = of(store, rows)
        uses.append(found is not None)
        return found

    monkeypatch.setattr(Kept, "of", spy)
    agent, clock, _ = a2c()
    assert play(agent, clock, images(), 20) == 4
    assert len(uses) >= 4
    assert all(uses)
    monkeypatch.setattr(kept, "MOST_BYTES", 0)
    other, clock, _ = a2c()
    before = len(uses)
    assert play(other, clock, images(), 20) == 4
    assert len(uses) == before
    torch.testing.assert_close(agent._trained.weights, other._trained.weights, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("steps", [0, 13, 15])
def test_a_resume_within_a_rollout_is_exact(steps: int) -> None:
    assert_same_future(a2c, images(), steps)


@pytest.mark.parametrize(
    "words",
    [("a2c", "agent.horizon=null", "agent.episodes=2"), ("recurrent_a2c", "agent.horizon=5")],
    ids=["episodes", "memory"],
)
def test_rollouts_whose_rows_lie_otherwise_are_computed_again(words: tuple[str, ...]) -> None:
    packed_of(torso())
    agent, clock, _ = build(*words, observation=IMAGES, compute=NARROW)
    assert play(agent, clock, images(), 12) > 0
    assert agent._kept is None
