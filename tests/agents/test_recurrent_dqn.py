"""Tests of recurrent DQN: gradients through sequences, recurrent states, and a task that needs memory."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise, memories, minibatches, play, weights_of
from on_policy_cases import Recorded, build, config_of, noise
from recurrent_cases import Corridor, remembered
from refusals import refused

from labrl.agents.agent import Observation
from labrl.agents.dqn import DQN
from labrl.agents.parts.action_values import ValuePolicy
from labrl.learning.compute import Compute

TINY = ("agent.network.torso.torso.mlp.hidden=[8]", "agent.network.torso.hidden_size=6")
MEMORY = ("agent.memory.sequence_length=7", "agent.memory.burn_in=3", "agent.memory.capacity=400")
WHEN = ("agent.learning_starts=0", "agent.batch_size=16", "agent.updates_per_frame=0.25", "agent.n_step=3")
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)


def step_through(
    network: Any, world: Recorded, env: int, first: int, count: int, state: Any, detached: int
) -> Any:
    """Step a network through one environment's part of a recorded world.

    first, count: first step and number of steps. detached: number of steps after which the recurrent state
    is detached. Returns action values of the observations and of the next observations, [count, actions].
    """
    values, next_values = [], []
    for k in range(count):
        state = state.detach() if k == detached else state
        observation, step = world.seen[first + k][env : env + 1], world.steps[first + k]
        output, state = network(torch.from_numpy(observation), state)
        values.append(output[0, :, 0])
        next_observation = torch.from_numpy(step.next_observation[env : env + 1])
        next_values.append(network(next_observation, state)[0][0, :, 0])
        state = state * (not step.episode_over[env])
    return torch.stack(values), torch.stack(next_values)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_gradient_equals_that_of_stepping_through_each_sequence(
    network: str, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"agent/network={network}", f"agent.double={double}", "agent.max_grad_norm=null"]
    overrides += [*TINY, *MEMORY, *WHEN, "agent.gamma=0.9", "agent.target.every=1000000"]
    agent, clock, _ = build("recurrent_dqn", *overrides)
    learning, copied = agent.modules().values()
    generator = torch.manual_seed(0)
    with torch.no_grad():  # the target network must differ from the learning one
        for parameter in copied.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    acting, target = copy.deepcopy(learning), copy.deepcopy(copied)
    world, samples = Recorded(noise(seed=3)), minibatches(monkeypatch)
    while not play(agent, clock, world, 1):
        pass
    (sample,) = samples
    with torch.no_grad():
        state, states = torch.zeros(4, acting.state_size), []
        for observation, step in zip(world.seen, world.steps, strict=True):
            states.append(state)
            state = acting(torch.from_numpy(observation), state)[1]
            state = state * ~torch.from_numpy(step.episode_over[:, None])
    outputs, targets = [], []
    for index in sample.index:
        sequence, env = divmod(int(index), 4)
        begin = states[4 * sequence][env : env + 1]
        value, next_values = step_through(acting, world, env, 4 * sequence, 9, begin, detached=3)
        with torch.no_grad():
            _, target_values = step_through(target, world, env, 4 * sequence, 9, begin, detached=3)
        for t in range(3, 7):
            outputs.append(value[t, int(world.actions[4 * sequence + t][env])])
            total, k = 0.0, 0
            while True:
                step = world.steps[4 * sequence + t + k]
                total += 0.9**k * float(step.reward[env])
                if k == 2 or step.terminated[env] or step.episode_over[env]:
                    break
                k += 1
            best = int((next_values if double else target_values)[t + k].argmax())
            bootstrap = 0.0 if step.terminated[env] else 0.9 ** (k + 1) * float(target_values[t + k, best])
            targets.append(total + bootstrap)
    torch.nn.functional.huber_loss(torch.stack(outputs), torch.tensor(targets)).backward()
    for ours, expected in zip(learning.parameters(), acting.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-6)


def test_ranks_learn_from_whole_sequences() -> None:
    config = config_of("recurrent_dqn", *MEMORY[:2], "agent.batch_size=16").agent.config
    assert DQN.for_rank(config, 4).batch_size == 4
    with refused("range", "agent.batch_size", "16", "agent.batch_size=24"):
        DQN.for_rank(config, 3)


def test_evaluation_has_its_own_recurrent_state(monkeypatch: pytest.MonkeyPatch) -> None:
    states, values = [], ValuePolicy.values

    def spy(self: ValuePolicy, *given: Any) -> Any:
        states.append(values(self, *given)[1])
        return values(self, *given)

    monkeypatch.setattr(ValuePolicy, "values", spy)
    plain, clock, _ = build("recurrent_dqn", *TINY, *MEMORY, *WHEN)
    play(plain, clock, noise(), 18)
    disturbed, clock, _ = build("recurrent_dqn", *TINY, *MEMORY, *WHEN)
    world, observation = noise(), np.ones((9, 3), np.float32)
    play(disturbed, clock, world, 7)
    disturbed.evaluation_action(
        Observation(observation, start=np.ones(9, np.bool_)), np.random.default_rng(0)
    )
    disturbed.greedy_action(Observation(observation, start=np.arange(9) < 3))
    after_one, after_two = states
    np.testing.assert_allclose(after_two[:3], after_one[:3], rtol=1e-5, atol=1e-6)
    assert not np.allclose(after_two[3:], after_one[3:])
    play(disturbed, clock, world, 11)
    plain_network, network = (agent.modules()["q_network"] for agent in (plain, disturbed))
    assert torch.equal(weights_of(plain_network), weights_of(network))


def test_learner_stores_the_recurrent_states_of_the_acting_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides, buffers = (*TINY, *MEMORY, *WHEN), memories(monkeypatch)
    actor, clock, _ = build("recurrent_dqn", *overrides)
    learner, _, _ = build("recurrent_dqn", *overrides)
    world = noise()
    for _ in range(14):
        observation = world.observation
        step = world.step(actor.act(Observation(observation)))
        learner.adopt(Observation(observation), actor.decision())
        for agent in (actor, learner):
            agent.observe(step)
        clock.tick(4)
    samples = [buffer.sample(16, 0) for buffer in buffers]
    assert samples[0].state.any()
    np.testing.assert_array_equal(samples[0].state, samples[1].state)


def test_recurrent_state_is_updated_during_random_actions() -> None:
    agent, clock, _ = build("recurrent_dqn", *TINY, *MEMORY, *WHEN[1:], "agent.learning_starts=300")
    play(agent, clock, noise(), 6)
    assert agent.state_dict()["state"].any(axis=1).sum() >= 2  # the state of a new episode is zero


@pytest.mark.parametrize(
    "part",
    [
        ("agent/value=quantile",),
        ("agent.network.dueling=true", "agent.network.noisy=0.5", "agent/exploration=noise"),
    ],
    ids=["quantile", "dueling and noisy"],
)
def test_parts_of_the_dqn_family_learn_with_a_recurrent_network(part: tuple[str, ...]) -> None:
    agent, clock, _ = build("recurrent_dqn", *TINY, *MEMORY, *WHEN, *part)
    assert play(agent, clock, noise(), 20) > 0
    assert all(np.isfinite(value) for value in agent.metrics().values())


def test_cue_of_the_first_step_is_remembered_until_the_last() -> None:
    overrides = (
        *("agent.learning_starts=500", "agent.lr=3e-3", "agent.updates_per_frame=0.1"),
        *("agent.memory.sequence_length=16", "agent.memory.burn_in=8", "agent.batch_size=128"),
        *("agent.target.every=200", "agent.exploration.epsilon=0.2"),
        *("agent.network.torso.torso.mlp.hidden=[16]", "agent.network.torso.hidden_size=16"),
    )
    corridor = {"observation": Corridor.SPACE, "action": Corridor.ACTIONS, "num_envs": 16}
    agent, clock, _ = build("recurrent_dqn", *overrides, **corridor)  # type: ignore[arg-type]
    play(agent, clock, Corridor(16), 160)
    assert remembered(agent) > 0.95


@pytest.mark.parametrize("value", ["expected", "categorical", "quantile"])
def test_every_value_distribution_learns_from_images_in_bfloat16(value: str) -> None:
    small = [TINY[1], "agent.network.torso.torso.cnn.features=8", f"agent/value={value}"]
    if value == "categorical":
        small += ["agent.value.v_min=-10", "agent.value.v_max=10"]
    compute = Compute.choose("cpu", "bf16", 1)
    agent, clock, _ = build("recurrent_dqn", *small, *MEMORY, *WHEN, observation=IMAGE, compute=compute)
    world = Noise(IMAGE, 4)
    while not play(agent, clock, world, 1):
        pass
    assert np.isfinite(agent.metrics()["grad_norm"])
