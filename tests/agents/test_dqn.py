"""Tests of DQN: updates follow the papers and come at the configured rate, and runs repeat exactly."""

from __future__ import annotations

import copy
import dataclasses
from fractions import Fraction
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import (
    FAMILY,
    Noise,
    build,
    config_of,
    errors,
    gradient_of,
    memories,
    minibatches,
    play,
    weights_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from labrl.agents.agent import NonFiniteError, Observation
from labrl.agents.dqn import DQN, td_loss
from labrl.agents.parts.action_values import ExpectedValue, ExpectedValueConfig, ValuePolicy, select_outputs
from labrl.agents.parts.experience import Experience
from labrl.clock import Clock
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 36, 36), np.uint8)
EARLY = ("agent.learning_starts=40", "agent.batch_size=16", "agent.updates_per_frame=0.25")


def weights(agent: DQN) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in agent.modules().values() for p in m.parameters()])


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("memory", ["uniform", "prioritized"])
def test_update_equals_an_adam_step_on_the_loss_of_the_papers(
    double: bool, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the first update, from weights unlike the target's, with one computed from the papers alone."""
    made, seen = memories(monkeypatch), minibatches(monkeypatch)
    overrides = (*EARLY, f"agent.double={double}", f"agent/memory={memory}", "agent.max_grad_norm=0.5")
    agent, clock, _ = build(config_of("dqn", *overrides, "agent.lr=1e-2"), VECTOR)
    network, target = agent.modules()["q_network"], copy.deepcopy(agent.modules()["target"])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += torch.randn(parameter.shape, generator=generator)
    world = Noise(VECTOR, 4)
    play(agent, clock, world, 10)
    if memory == "prioritized":
        made[0].update_priorities(made[0].sample(30, 0).index, np.arange(30.0))
    online = copy.deepcopy(network)
    assert play(agent, clock, world, 1) == 1

    (batch,) = seen
    assert (len(np.unique(batch.weight)) > 1) == (memory == "prioritized")
    rows = torch.arange(16)
    with torch.no_grad():
        values = target(batch.next_observation).outputs.squeeze(2)
        selecting = online(batch.next_observation).outputs.squeeze(2) if double else values
        td_target = batch.reward + batch.discount * values[rows, selecting.argmax(1)]
    value = online(batch.observation).outputs.squeeze(2)[rows, batch.action]
    loss = batch.weight * torch.nn.functional.huber_loss(value, td_target, reduction="none")
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2, eps=1e-8)
    loss.mean().backward()
    torch.nn.utils.clip_grad_norm_(online.parameters(), 0.5)
    optimizer.step()
    for ours, expected in zip(network.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("double", "expected"), [(False, 1 + 0.5 * 9), (True, 1 + 0.5 * 2)])
def test_online_network_selects_the_next_action_only_in_double_dqn(double: bool, expected: float) -> None:
    value, one = ExpectedValue(ExpectedValueConfig(loss="squared"), torch.device("cpu")), torch.ones(1)
    online, target = torch.tensor([[[0.0], [5.0]]]), torch.tensor([[[9.0], [2.0]]])
    selecting = online if double else target
    loss, rows = td_loss(value, torch.zeros(1, 1), target, selecting, one, one / 2, one, None)
    assert float(rows[DQN.ROWS.index("td_error"), 0]) == pytest.approx(expected)
    assert float(loss) == pytest.approx(0.5 * expected**2)


def test_invalid_next_action_is_never_selected() -> None:
    value, one = ExpectedValue(ExpectedValueConfig(loss="squared"), torch.device("cpu")), torch.ones(1)
    later, valid = torch.tensor([[[9.0], [2.0]]]), torch.tensor([[False, True]])
    _, rows = td_loss(value, torch.zeros(1, 1), later, later, one, one / 2, one, valid)
    assert float(rows[DQN.ROWS.index("td_error"), 0]) == pytest.approx(1 + 0.5 * 2)


@pytest.mark.parametrize("agent", FAMILY)
def test_target_equals_the_online_network_until_the_first_update(agent: str) -> None:
    player, clock, _ = build(config_of(agent, *EARLY, "agent.target.every=1000000"), VECTOR)
    inputs, (network, target) = torch.randn(5, 3), player.modules().values()
    assert torch.equal(network(inputs).outputs, target(inputs).outputs)
    world = Noise(VECTOR, 4)
    assert play(player, clock, world, 10) == 0
    assert player.metrics()["target_distance"] == 0
    assert play(player, clock, world, 10) > 0
    assert player.metrics()["target_distance"] > 0
    assert not torch.equal(network(inputs).outputs, target(inputs).outputs)


def test_target_is_replaced_at_every_multiple_of_its_period() -> None:
    """With four environments and a period of 30 frames, steps that cross 30, 60, 90, ... copy the weights."""
    agent, clock, _ = build(config_of("dqn", *EARLY, "agent.target.every=30"), VECTOR)
    network, target = agent.modules().values()
    world, expected = Noise(VECTOR, 4), weights_of(network)
    for _ in range(40):
        if (clock.frame + 4) // 30 > clock.frame // 30:
            expected = weights_of(network)
        play(agent, clock, world, 1)
        assert torch.equal(weights_of(target), expected)


def test_polyak_target_is_the_moving_average_of_the_weights() -> None:
    overrides = (*EARLY, "agent/target=polyak", "agent.target.tau=0.25")
    agent, clock, _ = build(config_of("dqn", *overrides), VECTOR)
    network, target = agent.modules().values()
    world, average = Noise(VECTOR, 4), weights_of(network)
    for _ in range(30):
        if play(agent, clock, world, 1):
            average = 0.75 * average + 0.25 * weights_of(network)
        torch.testing.assert_close(weights_of(target), average)


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
    options = {"learning_starts": starts, "updates_per_frame": Fraction(text)}
    config = dataclasses.replace(config_of("dqn", *EARLY).agent.config, **options)
    spaces = Spaces(VECTOR, gym.spaces.Discrete(2), num_envs)
    experience = Experience(config, spaces, clock, Streams(3), Compute.choose("cpu", "fp32", 1))
    while clock.frame < 1500:
        experience.updates += experience.due()
        clock.tick(num_envs)
        frames = max(clock.frame - max(starts, 16 + num_envs), 0)
        assert experience.updates == frames * Fraction(text) // 1


@pytest.mark.parametrize(
    ("override", "expected"), [("0.1", Fraction(1, 10)), ("4", Fraction(4)), ("1/3", Fraction(1, 3))]
)
def test_updates_per_frame_are_parsed_as_exact_fractions(override: str, expected: Fraction) -> None:
    assert config_of("dqn", f"agent.updates_per_frame={override}").agent.config.updates_per_frame == expected


def test_warm_up_actions_are_random_or_chosen_by_the_policy() -> None:
    greedy = ("agent.exploration.epsilon=0", *EARLY)
    for source, distinct in (("random", 2), ("policy", 1)):
        agent, clock, _ = build(config_of("dqn", *greedy, f"agent.warmup_actions={source}"), VECTOR)
        still = np.zeros((4, 3), np.float32)
        actions = [agent.act(Observation(still)) for _ in range(10)]
        assert len(np.unique(actions)) == distinct
        clock.frame = 40
        assert len(np.unique([agent.act(Observation(still)) for _ in range(10)])) == 1


def test_actions_are_shifted_by_the_start_of_the_action_space() -> None:
    config, spaces = config_of("dqn", *EARLY).agent.config, Spaces(VECTOR, gym.spaces.Discrete(2, start=5), 4)
    shifted = DQN(config, spaces, Clock(1000), Streams(3), Compute.choose("cpu", "fp32", 1))
    look = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert set(np.unique([shifted.act(Observation(look)) for _ in range(10)])) == {5, 6}
    assert set(shifted.evaluation_action(Observation(look), np.random.default_rng(0))) <= {5, 6}


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_two_workers_compute_the_gradient_of_one(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers use the same noise as one, and return the errors in the order of the samples."""
    gradients, found, metrics, memory = [], errors(monkeypatch), [], "agent/memory=prioritized"
    for num_threads in (1, 2):
        player, clock, _ = build(config_of(agent, *EARLY, memory), IMAGE, num_threads=num_threads)
        assert play(player, clock, Noise(IMAGE, 4), 11) == 1
        gradients.append(gradient_of(player.modules()["q_network"]))
        metrics.append([player.metrics()[name] for name in ("loss", "td_error", "q_mean", "q_max")])
        player.close()
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
    (index, error), (other_index, other_error) = found
    np.testing.assert_array_equal(index, other_index)
    np.testing.assert_allclose(error, other_error, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*metrics, rtol=1e-4, atol=1e-5)


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
    agent, clock, _ = build(config_of("rainbow", *EARLY), VECTOR)
    assert play(agent, clock, Noise(VECTOR, 4), 12) == 2
    # A step draws one row per environment. An update draws three: one each for the online network, the
    # target network and the choice of the next action.
    assert [len(rows) for rows in drawn] == [4, 3, 4, 3]
    assert len(torch.cat(drawn)[:, 0].unique()) == 14


def test_evaluation_uses_no_noise_and_does_not_affect_training() -> None:
    plain, clock, _ = build(config_of("rainbow", *EARLY), VECTOR)
    play(plain, clock, Noise(VECTOR, 4), 15)
    disturbed, clock, _ = build(config_of("rainbow", *EARLY), VECTOR)
    world, look = Noise(VECTOR, 4), np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    play(disturbed, clock, world, 10)
    actions = [
        disturbed.evaluation_action(Observation(look), np.random.default_rng(seed)) for seed in range(5)
    ]
    assert all(np.array_equal(action, actions[0]) for action in actions)
    play(disturbed, clock, world, 5)
    assert torch.equal(weights(plain), weights(disturbed))


def test_schedules_follow_the_clock() -> None:
    falling = "{kind: linear, start: 1.0, end: 0.0, horizon: 100}"
    overrides = ("~agent.lr", f"+agent.lr={falling}", f"agent.exploration.epsilon={falling}")
    agent, clock, _ = build(config_of("dqn", *overrides), VECTOR)
    clock.tick(25)
    metrics = agent.metrics()
    assert (metrics["lr"], metrics["exploration"]) == (0.75, 0.75)


@pytest.mark.filterwarnings("error")
def test_non_finite_loss_raises_with_term_and_frame_without_a_warning() -> None:
    agent, clock, _ = build(config_of("dqn", *EARLY, "agent.lr=1e30", "agent.value.loss=squared"), VECTOR)
    with pytest.raises(NonFiniteError) as caught:
        play(agent, clock, Noise(VECTOR, 4), 40)
    assert caught.value.term in ("loss", "grad_norm")
    assert caught.value.frame > 40


def test_priorities_are_updated_with_the_absolute_td_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build(config_of("dueling_dqn", *EARLY), VECTOR)
    world = Noise(VECTOR, 4)
    play(agent, clock, world, 18)
    seen, given = minibatches(monkeypatch), errors(monkeypatch)
    online, target = (copy.deepcopy(network) for network in agent.modules().values())
    assert play(agent, clock, world, 1) == 1
    (batch,), ((_, error),) = seen, given
    with torch.no_grad():
        best = online(batch.next_observation).outputs.squeeze(2).argmax(1)
        bootstrap = select_outputs(target(batch.next_observation).outputs, best).squeeze(1)
        td_target = batch.reward + batch.discount * bootstrap
        value = select_outputs(online(batch.observation).outputs, batch.action).squeeze(1)
    np.testing.assert_allclose(error, (td_target - value).abs().numpy(), rtol=1e-4, atol=1e-6)
