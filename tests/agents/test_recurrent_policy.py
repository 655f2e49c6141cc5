"""Tests of recurrent PPO and A2C: sequences, recurrent states, gradients, and a task that needs memory."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import gradient_of, minibatches, play, weights_of
from on_policy_cases import Recorded, build, network_of, noise, rollouts
from recurrent_cases import Corridor, remembered

from labrl.agents.agent import Observation
from labrl.learning.compute import Compute
from labrl.step import Step

TINY = ("agent.network.torso.torso.mlp.hidden=[8]", "agent.network.torso.hidden_size=6")
PPO = ("agent.horizon=12", "agent.sequence_length=4", "agent.batch_size=48", "agent.epochs=1")
A2C = ("agent.horizon=12",)
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)


def stepwise(network: Any, world: Recorded) -> dict[str, torch.Tensor]:
    """Compute a network's outputs for a recorded rollout, one step at a time.

    Returns the parameters and value of each step, the recurrent state before it, and the value of the next
    observation, which is 0 after a termination. All are [steps, num_envs, ...].
    """
    state = torch.zeros(len(world.seen[0]), network.state_size)
    outputs: dict[str, list[torch.Tensor]] = {"parameters": [], "value": [], "next_value": [], "state": []}
    for observation, step in zip(world.seen, world.steps, strict=True):
        outputs["state"].append(state)
        parameters, value, state = network(torch.from_numpy(observation), state)
        outputs["parameters"].append(parameters)
        outputs["value"].append(value)
        next_value = network(torch.from_numpy(step.next_observation), state)[1]
        outputs["next_value"].append(next_value * ~torch.from_numpy(step.terminated))
        state = state * ~torch.from_numpy(step.episode_over[:, None])
    return {name: torch.stack(values) for name, values in outputs.items()}


def reference(
    network: Any, world: Recorded, length: int, gamma: float, lam: float
) -> dict[str, torch.Tensor]:
    """Compute outputs with gradients through sequences of `length` steps, advantages and value targets.

    All are [steps, num_envs, ...].
    """
    with torch.no_grad():
        rollout = stepwise(network, world)
    reward = torch.from_numpy(np.stack([step.reward for step in world.steps]))
    ended = torch.from_numpy(np.stack([step.terminated | step.episode_over for step in world.steps]))
    error = reward + gamma * rollout["next_value"] - rollout["value"]
    advantage, next_advantage = torch.zeros_like(error), torch.zeros_like(error[0])
    for t in reversed(range(len(error))):
        advantage[t] = next_advantage = error[t] + gamma * lam * next_advantage * ~ended[t]
    outputs: dict[str, list[torch.Tensor]] = {"parameters": [], "value": []}
    for t, (observation, step) in enumerate(zip(world.seen, world.steps, strict=True)):
        state = rollout["state"][t] if t % length == 0 else state  # noqa: F821
        parameters, value, state = network(torch.from_numpy(observation), state)
        outputs["parameters"].append(parameters)
        outputs["value"].append(value)
        state = state * ~torch.from_numpy(step.episode_over[:, None])
    now = {name: torch.stack(values) for name, values in outputs.items()}
    return {**now, "advantage": advantage, "target": advantage + rollout["value"]}


PPO_CASE, A2C_CASE = (
    ("recurrent_ppo", PPO, 4, 0.95),
    ("recurrent_a2c", (*A2C, "agent.gae_lambda=0.8"), 12, 0.8),
)


@pytest.mark.parametrize(
    ("agent_name", "overrides", "length", "lam", "network", "shared"),
    [
        (*PPO_CASE, "gru", False),
        (*PPO_CASE, "lstm", True),
        (*A2C_CASE, "gru", True),
        (*A2C_CASE, "lstm", False),
    ],
    ids=["ppo-gru", "ppo-lstm-shared", "a2c-gru-shared", "a2c-lstm"],
)
def test_gradient_equals_that_of_stepping_through_each_sequence(
    agent_name: str, overrides: tuple[str, ...], length: int, lam: float, network: str, shared: bool
) -> None:
    options = [f"agent/network={network}", f"agent.network.shared={shared}", "agent.entropy_coef=0.02"]
    agent, clock, _ = build(agent_name, *options, *TINY, *overrides, "agent.max_grad_norm=null")
    world = Recorded(noise())
    assert play(agent, clock, world, 12) == 1
    before, _, _ = build(agent_name, *options, *TINY, *overrides)
    network, expected = network_of(before), reference(network_of(before), world, length, 0.99, lam)
    policy = torch.distributions.Categorical(logits=expected["parameters"])
    log_prob = policy.log_prob(torch.from_numpy(np.stack(world.actions)))
    advantage = expected["advantage"]
    if agent_name == "recurrent_ppo":
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob = (log_prob - log_prob.detach()).exp()
    loss = (
        -(log_prob * advantage).mean() + 0.5 * 0.5 * (expected["value"] - expected["target"]).square().mean()
    )
    (loss - 0.02 * policy.entropy().mean()).backward()
    for ours, parameter in zip(network_of(agent).parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, parameter.grad, rtol=1e-3, atol=1e-6)


def test_recurrent_state_carries_over_to_the_next_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("recurrent_ppo", *TINY, *PPO, "agent.lr=0")
    batches, world = rollouts(monkeypatch), Recorded(noise())
    play(agent, clock, world, 24)
    assert len(batches) == 2
    with torch.no_grad():
        expected = stepwise(network_of(agent), world)
    for number, batch in enumerate(batches):
        begins = expected["state"][12 * number : 12 * (number + 1) : 4]  # [3, num_envs, state_size]
        torch.testing.assert_close(batch.state, begins.flatten(0, 1))
        value = expected["value"][12 * number : 12 * (number + 1)].view(3, 4, 4).transpose(1, 2)
        torch.testing.assert_close(batch.value, value.flatten(), rtol=1e-4, atol=1e-5)
    assert batches[1].state[:4].count_nonzero()


def test_truncation_bootstraps_from_the_final_observation_and_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = ("agent.horizon=2", "agent.sequence_length=2", "agent.batch_size=8", "agent.gae_lambda=0")
    agent, _, _ = build("recurrent_ppo", *TINY, *overrides, "agent.gamma=0.5")
    batches = rollouts(monkeypatch)
    first, final, reset = (np.full((4, 3), x, np.float32) for x in (0.1, 2.0, -2.0))
    truncated, never = np.array([True, False, False, False]), np.zeros(4, np.bool_)
    reward = np.ones(4, np.float32)
    next_observation = np.where(truncated[:, None], reset, final)
    network = copy.deepcopy(network_of(agent))
    agent.act(Observation(first))
    agent.observe(Step(next_observation, final, reward, never, truncated, truncated))
    agent.act(Observation(next_observation))
    agent.observe(Step(next_observation, next_observation, reward, never, never, never))
    agent.learn()
    with torch.no_grad():
        fresh = torch.zeros(1, network.state_size)
        _, value, state = network(torch.from_numpy(first[:1]), fresh)
        with_state = network(torch.from_numpy(final[:1]), state)[1]
        without_state = network(torch.from_numpy(final[:1]), fresh)[1]
    assert abs(float(with_state - without_state)) > 1e-3
    # Rows are ordered by sequences of two steps, so every second row is the first step of an environment.
    advantage = batches[0].advantage[::2]
    torch.testing.assert_close(advantage, (1 + 0.5 * with_state - value).expand(4), rtol=1e-4, atol=1e-5)


def test_minibatches_are_whole_sequences_used_once_per_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, clock, _ = build("recurrent_ppo", *TINY, *PPO[:2], "agent.batch_size=16", "agent.epochs=2")
    parts = minibatches(monkeypatch)
    assert play(agent, clock, noise(), 12) == 6
    assert [len(part) for part in parts] == [4] * 6
    orders = [torch.cat([part.rows for part in epoch]) for epoch in (parts[:3], parts[3:])]
    for order in orders:
        sequences = order.view(-1, 4)
        assert (sequences - sequences[:, :1] == torch.arange(4)).all()
        assert sorted(sequences[:, 0].tolist()) == list(range(0, 48, 4))
    assert not torch.equal(*orders)


def test_evaluation_has_its_own_recurrent_state() -> None:
    plain, clock, _ = build("recurrent_ppo", *TINY, *PPO)
    play(plain, clock, noise(), 18)
    disturbed, clock, _ = build("recurrent_ppo", *TINY, *PPO)
    world, observation, rng = noise(), np.ones((9, 3), np.float32), np.random.default_rng(0)
    play(disturbed, clock, world, 7)
    begin, continued = np.ones(9, np.bool_), np.zeros(9, np.bool_)
    disturbed.evaluation_action(Observation(observation, start=begin), rng)
    disturbed.greedy_action(Observation(observation, start=continued))
    play(disturbed, clock, world, 11)
    assert torch.equal(weights_of(network_of(plain)), weights_of(network_of(disturbed)))

    agent, network = disturbed, network_of(disturbed)
    inputs, state, expected = torch.from_numpy(observation), torch.zeros(9, network.state_size), []
    with torch.no_grad():
        for _ in range(3):  # policies at the first, second and third observation
            parameters, _, state = network(inputs, state)
            expected.append(parameters.softmax(1).numpy())
    assert not np.allclose(expected[0], expected[2])
    partly = np.arange(9) < 3
    found = [
        next(iter(agent.policy_numbers(Observation(observation, start=start)).values()))
        for start in (begin, continued, partly)
    ]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2][:3], expected[0][:3], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2][3:], expected[2][3:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("agent", "network", "overrides"),
    [("ppo", "gru", PPO), ("a2c", "lstm", (*A2C, "agent.gae_lambda=0.8"))],
    ids=["ppo", "a2c"],
)
def test_plain_agent_with_a_recurrent_network_equals_the_recurrent_one(
    agent: str, network: str, overrides: tuple[str, ...]
) -> None:
    learned = []
    for name in (agent, f"recurrent_{agent}"):
        same = ("agent/optimizer=adam", "agent.lr=1e-3", f"agent/network={network}")
        made, clock, _ = build(name, *same, *TINY, *overrides)
        assert play(made, clock, noise(), 24) == 2
        learned.append(weights_of(network_of(made)))
    assert torch.equal(*learned)


def test_gradients_span_the_rollout_when_sequence_length_is_null() -> None:
    learned = []
    for length in ("null", "12", "4"):
        overrides = (
            "agent.horizon=12",
            f"agent.sequence_length={length}",
            "agent.batch_size=48",
            "agent.epochs=1",
        )
        agent, clock, _ = build("recurrent_ppo", *TINY, *overrides)
        assert play(agent, clock, noise(), 12) == 1
        learned.append(weights_of(network_of(agent)))
    assert torch.equal(learned[0], learned[1])
    assert not torch.equal(learned[0], learned[2])


def test_gradient_is_the_same_for_any_number_of_workers() -> None:
    gradients = []
    for threads in (1, 3, 9):
        overrides = ("agent.horizon=8", "agent.sequence_length=4", "agent.batch_size=32", "agent.epochs=1")
        small = (TINY[1], "agent.network.torso.torso.cnn.features=8", "agent.max_grad_norm=null")
        agent, clock, _ = build("recurrent_ppo", *small, *overrides, observation=IMAGE, compute=fp32(threads))
        world = type(noise())(IMAGE, 4)
        assert play(agent, clock, world, 8) == 1
        gradients.append(gradient_of(network_of(agent)))
        agent.close()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-5)


def fp32(threads: int) -> Compute:
    return Compute.choose("cpu", "fp32", threads)


SMALL = ("agent.network.torso.torso.mlp.hidden=[16]", "agent.network.torso.hidden_size=16")
QUICK = ("agent.horizon=32", "agent.batch_size=128", "agent.lr=3e-3")


@pytest.mark.parametrize(
    ("agent", "overrides", "steps"),
    [
        ("recurrent_ppo", QUICK, 200),
        pytest.param("recurrent_ppo", (*QUICK, "agent/network=lstm"), 300, marks=pytest.mark.slow),
        pytest.param(
            "recurrent_a2c", ("agent/optimizer=adam", "agent.lr=3e-3"), 1500, marks=pytest.mark.slow
        ),
    ],
    ids=["ppo", "ppo with lstm", "a2c"],
)
def test_cue_of_the_first_step_is_remembered_until_the_last(
    agent: str, overrides: tuple[str, ...], steps: int
) -> None:
    corridor = {"observation": Corridor.SPACE, "action": Corridor.ACTIONS, "num_envs": 16}
    player, clock, _ = build(agent, *overrides, *SMALL, **corridor)  # type: ignore[arg-type]
    play(player, clock, Corridor(16), steps)
    assert remembered(player) > 0.95


@pytest.mark.slow
def test_agent_without_recurrent_state_is_right_half_of_the_time() -> None:
    overrides = (
        "agent.horizon=32",
        "agent.batch_size=128",
        "agent.lr=3e-3",
        "agent.network.torso.mlp.hidden=[16]",
    )
    agent, clock, _ = build(
        "ppo", *overrides, observation=Corridor.SPACE, action=Corridor.ACTIONS, num_envs=16
    )
    world = Corridor(16)
    play(agent, clock, world, 400)
    assert np.mean(world.paid) == pytest.approx(0.5, abs=0.06)
