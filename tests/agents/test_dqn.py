"""Tests of DQN: updates follow the papers and come at the configured rate, and runs repeat exactly."""

from __future__ import annotations

import copy
import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from agent_cases import DISCRETE, VECTOR, Noise, build, config_of, cpu, disturb, minibatches, play, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labrl.agents.agent import Observation
from labrl.agents.parts.action_values import ValuePolicy
from labrl.agents.parts.experience import Experience
from labrl.clock import Clock
from labrl.seeding import Streams
from labrl.spaces import Spaces

EARLY = "agent.updates_per_frame=0.25"


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("memory", ["uniform", "prioritized"])
def test_update_equals_an_adam_step_on_the_loss_of_the_papers(
    double: bool, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the first update, from weights unlike the target's, with one computed from the papers alone."""
    seen, errors = minibatches(monkeypatch), []
    overrides = (EARLY, f"agent.double={double}", f"agent/memory={memory}", "agent.max_grad_norm=0.5")
    agent, clock, _ = build("dqn", *overrides, "agent.lr=1e-2")
    assert agent.metrics()["target_distance"] == 0
    disturb(agent)
    network, target = (copy.deepcopy(module) for module in agent.modules().values())
    world, buffer = Noise(), agent.experience.memory
    play(agent, clock, world, 10)
    if memory == "prioritized":
        buffer.update_priorities(buffer.sample(30, 0).index, np.arange(30.0))
        monkeypatch.setattr(buffer, "update_priorities", lambda index, error: errors.append(error))
    assert play(agent, clock, world, 1) == 1

    (batch,) = seen
    assert (len(np.unique(batch.weight)) > 1) == (memory == "prioritized")
    rows = torch.arange(16)
    with torch.no_grad():
        values = target(batch.next_observation).outputs.squeeze(2)
        selecting = network(batch.next_observation).outputs.squeeze(2) if double else values
        best = selecting.argmax(1)
        assert (
            best != (network if not double else target)(batch.next_observation).outputs.squeeze(2).argmax(1)
        ).any()
        td_target = batch.reward + batch.discount * values[rows, best]
    value = network(batch.observation).outputs.squeeze(2)[rows, batch.action]
    loss = batch.weight * torch.nn.functional.huber_loss(value, td_target, reduction="none")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, eps=1e-8)
    loss.mean().backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    optimizer.step()
    for ours, expected in zip(agent.modules()["q_network"].parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    for error in errors:
        np.testing.assert_allclose(error, (td_target - value).abs().detach(), rtol=1e-4, atol=1e-6)
    assert len(errors) == (memory == "prioritized")


def flat(network: nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def test_target_is_replaced_at_every_multiple_of_its_period() -> None:
    """With four environments and a period of 30 frames, steps that cross 30, 60, 90, ... copy the weights."""
    agent, clock, _ = build("dqn", EARLY, "agent.target.every=30")
    network, target = agent.modules().values()
    world, expected = Noise(), flat(network)
    for _ in range(40):
        if (clock.frame + 4) // 30 > clock.frame // 30:
            expected = flat(network)
        play(agent, clock, world, 1)
        assert torch.equal(flat(target), expected)


def test_polyak_target_is_the_moving_average_of_the_weights() -> None:
    overrides = (EARLY, "agent/target=polyak", "agent.target.tau=0.25")
    agent, clock, _ = build("dqn", *overrides)
    network, target = agent.modules().values()
    world, average = Noise(), flat(network)
    for _ in range(30):
        if play(agent, clock, world, 1):
            average = 0.75 * average + 0.25 * flat(network)
        torch.testing.assert_close(flat(target), average)


@pytest.mark.extended
@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from(["0.25", "0.1", "0.3", "4", "2.5", "1/3", "7/5", "1e-2", "0.0078125"]),
    num_envs=st.integers(1, 129),
    starts=st.integers(0, 300),
)
def test_updates_per_frame_are_exact_for_any_number_of_environments(
    text: str, num_envs: int, starts: int
) -> None:
    clock = Clock(10**6)
    config = config_of("dqn", f"agent.updates_per_frame={text}").agent.config
    config = dataclasses.replace(config, learning_starts=starts)
    experience = Experience(config, Spaces(VECTOR, DISCRETE, num_envs), clock, Streams(3), cpu())
    while clock.frame < 1500:
        experience.updates += experience.due()
        clock.tick(num_envs)
        frames = max(clock.frame - max(starts, 16 + num_envs), 0)
        assert experience.updates == frames * Fraction(text) // 1


def test_warm_up_actions_are_random_or_chosen_by_the_policy() -> None:
    greedy = ("agent.exploration.epsilon=0", EARLY)
    for source, distinct in (("random", 3), ("policy", 1)):
        agent, clock, _ = build("dqn", *greedy, f"agent.warmup_actions={source}")
        still = np.zeros((4, 3), np.float32)
        actions = [agent.act(Observation(still)) for _ in range(10)]
        assert len(np.unique(actions)) == distinct
        clock.frame = 40
        assert len(np.unique([agent.act(Observation(still)) for _ in range(10)])) == 1


def test_noise_is_redrawn_for_every_step_update_and_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[torch.Tensor] = []
    noise = ValuePolicy.noise

    def spy(self: ValuePolicy, rows: int, *place: Any) -> torch.Tensor | None:
        found = noise(self, rows, *place)
        assert found is not None
        drawn.append(found.clone())
        return found

    monkeypatch.setattr(ValuePolicy, "noise", spy)
    agent, clock, _ = build("rainbow", EARLY)
    assert play(agent, clock, Noise(), 12) == 2
    # A step draws one row per environment. An update draws three: one each for the online network, the
    # target network and the choice of the next action.
    assert [len(rows) for rows in drawn] == [4, 3, 4, 3]
    assert len(torch.cat(drawn)[:, 0].unique()) == 14


def test_evaluation_uses_no_noise_and_does_not_affect_training() -> None:
    plain, clock, _ = build("rainbow", EARLY)
    play(plain, clock, Noise(), 15)
    disturbed, clock, _ = build("rainbow", EARLY)
    world, look = Noise(), np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    play(disturbed, clock, world, 10)
    actions = [
        disturbed.evaluation_action(Observation(look), np.random.default_rng(seed)) for seed in range(5)
    ]
    assert all(np.array_equal(action, actions[0]) for action in actions)
    play(disturbed, clock, world, 5)
    assert torch.equal(weights_of(plain), weights_of(disturbed))
