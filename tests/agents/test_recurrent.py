"""Tests of recurrent agents: gradients through sequences, recurrent states, and a task that needs memory."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import (
    Noise,
    Recorded,
    assert_same_gradient,
    build,
    config_of,
    cpu,
    gradient_of,
    minibatches,
    network_of,
    play,
    rollouts,
    weights_of,
)
from numpy.typing import NDArray
from refusals import refused

from labrl.agents.agent import Observation
from labrl.agents.dqn import DQN
from labrl.step import Episode, Step

TINY = ("agent.network.torso.torso.mlp.hidden=[8]", "agent.network.torso.hidden_size=6")
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
PPO = ("agent.horizon=12", "agent.sequence_length=4", "agent.batch_size=48", "agent.epochs=1")
A2C = ("agent.horizon=12", "agent.gae_lambda=0.8")
REPLAY = ("agent.memory.sequence_length=7", "agent.memory.burn_in=3", "agent.memory.capacity=400")
REPLAY += ("agent.learning_starts=0", "agent.batch_size=16", "agent.updates_per_frame=0.25", "agent.n_step=3")
OVERRIDES = {"recurrent_ppo": PPO, "recurrent_a2c": A2C, "recurrent_dqn": REPLAY}


def made(agent: str, *overrides: str, **spaces: Any) -> Any:
    return build(agent, *TINY, *OVERRIDES[agent], *overrides, **spaces)


def stepwise(network: Any, world: Recorded, length: int) -> dict[str, torch.Tensor]:
    """Compute a network's outputs for a recorded rollout, one step at a time.

    Returns the parameters and value of each step, the recurrent state before it, and the value of the next
    observation, which is 0 after a termination. All are [steps, num_envs, ...]. Gradients reach back to the
    start of sequences of `length` steps.
    """
    state = torch.zeros(len(world.seen[0]), network.state_size)
    outputs: dict[str, list[torch.Tensor]] = {"parameters": [], "value": [], "next_value": [], "state": []}
    for t, (observation, step) in enumerate(zip(world.seen, world.steps, strict=True)):
        state = state.detach() if t % length == 0 else state
        outputs["state"].append(state)
        parameters, value, state = network(torch.from_numpy(observation), state)
        outputs["parameters"].append(parameters)
        outputs["value"].append(value)
        next_value = network(torch.from_numpy(step.next_observation), state)[1].detach()
        outputs["next_value"].append(next_value * ~torch.from_numpy(step.terminated))
        state = state * ~torch.from_numpy(step.episode_over[:, None])
    return {name: torch.stack(values) for name, values in outputs.items()}


@pytest.mark.parametrize(
    ("agent_name", "length", "lam", "network", "shared"),
    [
        ("recurrent_ppo", 4, 0.95, "gru", False),
        ("recurrent_ppo", 4, 0.95, "lstm", True),
        ("recurrent_a2c", 12, 0.8, "gru", True),
        ("recurrent_a2c", 12, 0.8, "lstm", False),
    ],
)
def test_gradient_of_a_policy_equals_that_of_stepping_through_each_sequence(
    agent_name: str, length: int, lam: float, network: str, shared: bool
) -> None:
    options = [f"agent/network={network}", f"agent.network.shared={shared}", "agent.entropy_coef=0.02"]
    agent, clock, _ = made(agent_name, *options, "agent.max_grad_norm=null")
    world, before = Recorded(Noise()), copy.deepcopy(network_of(agent))
    assert play(agent, clock, world, 12) == 1
    found = stepwise(before, world, length)
    reward = torch.from_numpy(np.stack([step.reward for step in world.steps]))
    ended = torch.from_numpy(np.stack([step.terminated | step.episode_over for step in world.steps]))
    error = reward + 0.99 * found["next_value"] - found["value"].detach()
    advantage, next_advantage = torch.zeros_like(error), torch.zeros_like(error[0])
    for t in reversed(range(len(error))):
        advantage[t] = next_advantage = error[t] + 0.99 * lam * next_advantage * ~ended[t]
    target = advantage + found["value"].detach()
    policy = torch.distributions.Categorical(logits=found["parameters"])
    log_prob = policy.log_prob(torch.from_numpy(np.stack(world.actions)))
    if agent_name == "recurrent_ppo":
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_prob = (log_prob - log_prob.detach()).exp()
    value_error = 0.5 * 0.5 * (found["value"] - target).square().mean()
    (-(log_prob * advantage).mean() + value_error - 0.02 * policy.entropy().mean()).backward()
    assert_same_gradient(network_of(agent), before)


def step_through(network: Any, world: Recorded, env: int, first: int, state: Any) -> Any:
    """Step a network through nine steps of one environment, the first three of them without gradients.

    Returns action values of the observations and of the next observations, [9, actions].
    """
    values, next_values = [], []
    for k in range(9):
        state = state.detach() if k == 3 else state
        observation, step = world.seen[first + k][env : env + 1], world.steps[first + k]
        output, state = network(torch.from_numpy(observation), state)
        values.append(output[0, :, 0])
        next_observation = torch.from_numpy(step.next_observation[env : env + 1])
        next_values.append(network(next_observation, state)[0][0, :, 0])
        state = state * (not step.episode_over[env])
    return torch.stack(values), torch.stack(next_values)


@pytest.mark.parametrize(("network", "double"), [("gru", True), ("lstm", False)])
def test_gradient_of_action_values_equals_that_of_stepping_through_each_sequence(
    network: str, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"agent/network={network}", f"agent.double={double}", "agent.max_grad_norm=null"]
    agent, clock, _ = made("recurrent_dqn", *overrides, "agent.gamma=0.9", "agent.target.every=1000000")
    learning, copied = agent.modules().values()
    generator = torch.manual_seed(0)
    with torch.no_grad():  # so that both networks prefer different actions
        for parameter in (*learning.parameters(), *copied.parameters()):
            parameter += torch.randn(parameter.shape, generator=generator)
    acting, target = copy.deepcopy(learning), copy.deepcopy(copied)
    world, samples = Recorded(Noise(seed=3)), minibatches(monkeypatch)
    while not play(agent, clock, world, 1):
        pass
    (sample,) = samples
    with torch.no_grad():
        state, states = torch.zeros(4, acting.state_size), []
        for observation, step in zip(world.seen, world.steps, strict=True):
            states.append(state)
            state = acting(torch.from_numpy(observation), state)[1]
            state = state * ~torch.from_numpy(step.episode_over[:, None])
    outputs, targets, differs = [], [], 0
    for index in sample.index:
        sequence, env = divmod(int(index), 4)
        begin = states[4 * sequence][env : env + 1]
        value, next_values = step_through(acting, world, env, 4 * sequence, begin)
        with torch.no_grad():
            _, target_values = step_through(target, world, env, 4 * sequence, begin)
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
            differs += bootstrap != 0 and bool(next_values[t + k].argmax() != target_values[t + k].argmax())
            targets.append(total + bootstrap)
    assert differs > 2
    torch.nn.functional.huber_loss(torch.stack(outputs), torch.tensor(targets)).backward()
    assert_same_gradient(learning, acting)


def test_recurrent_state_carries_over_to_the_next_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = made("recurrent_ppo", "agent.lr=0")
    batches, world = rollouts(monkeypatch), Recorded(Noise())
    play(agent, clock, world, 24)
    assert len(batches) == 2
    with torch.no_grad():
        expected = stepwise(network_of(agent), world, length=4)
    for number, batch in enumerate(batches):
        begins = expected["state"][12 * number : 12 * (number + 1) : 4]  # [3, num_envs, state_size]
        torch.testing.assert_close(batch.state, begins.flatten(0, 1))
        value = expected["value"][12 * number : 12 * (number + 1)].view(3, 4, 4).transpose(1, 2)
        torch.testing.assert_close(batch.value, value.flatten(), rtol=1e-4, atol=1e-5)
    assert batches[1].state[:4].count_nonzero()


@pytest.mark.parametrize("agent", ["recurrent_ppo", "recurrent_dqn"])
def test_evaluation_has_its_own_recurrent_state(agent: str) -> None:
    plain, clock, _ = made(agent)
    play(plain, clock, Noise(), 18)
    disturbed, clock, _ = made(agent)
    world, observation, rng = Noise(), Noise(num_envs=64, seed=1).observation, np.random.default_rng(0)
    play(disturbed, clock, world, 7)
    begin, partly = np.ones(64, np.bool_), np.arange(64) < 20
    disturbed.evaluation_action(Observation(observation, start=begin), rng)
    disturbed.greedy_action(Observation(observation, start=~begin))
    play(disturbed, clock, world, 11)
    assert torch.equal(weights_of(plain), weights_of(disturbed))
    with torch.no_grad():
        network = next(iter(disturbed.modules().values()))
        for weight in network.parameters():
            weight.mul_(4)  # so that actions depend on the state
        state, expected = torch.zeros(64, network.state_size), []
        for _ in range(3):  # the best actions at the first, second and third observation
            outputs, *_, state = network(torch.from_numpy(observation), state)
            expected.append(outputs.view(64, -1).argmax(1).numpy())
    assert (expected[0] != expected[2])[20:].any()
    disturbed.evaluation_action(Observation(observation, start=begin), rng)
    second, third = (disturbed.greedy_action(Observation(observation, start=at)) for at in (~begin, partly))
    np.testing.assert_array_equal(second, expected[1])
    np.testing.assert_array_equal(third, np.where(partly, expected[0], expected[2]))


@pytest.mark.parametrize(("agent", "network"), [("ppo", "gru"), ("a2c", "lstm")])
def test_plain_agent_with_a_recurrent_network_equals_the_recurrent_one(agent: str, network: str) -> None:
    learned = []
    for name in (agent, f"recurrent_{agent}"):
        same = ("agent/optimizer=adam", "agent.lr=1e-3", f"agent/network={network}")
        player, clock, _ = build(name, *same, *TINY, *OVERRIDES[f"recurrent_{agent}"])
        assert play(player, clock, Noise(), 24) == 2
        learned.append(weights_of(player))
    assert torch.equal(*learned)


def test_gradients_span_the_rollout_when_sequence_length_is_null() -> None:
    learned = []
    for length in ("null", "12", "4"):
        agent, clock, _ = made("recurrent_ppo", f"agent.sequence_length={length}")
        assert play(agent, clock, Noise(), 12) == 1
        learned.append(weights_of(agent))
    assert torch.equal(learned[0], learned[1])
    assert not torch.equal(learned[0], learned[2])


def test_gradient_is_the_same_for_any_number_of_workers() -> None:
    gradients = []
    small = (
        "agent/network=gru",
        TINY[1],
        "agent.network.torso.torso.cnn.features=8",
        "agent.max_grad_norm=null",
    )
    for threads in (1, 3, 9):
        agent, clock, _ = build("recurrent_ppo", *small, *PPO, observation=IMAGE, compute=cpu(threads))
        assert play(agent, clock, Noise(IMAGE), 12) == 1
        gradients.append(gradient_of(network_of(agent)))
        agent.close()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-5)


def test_ranks_learn_from_whole_sequences() -> None:
    config = config_of("recurrent_dqn", *REPLAY[:2], "agent.batch_size=16").agent.config
    assert DQN.for_rank(config, 4).batch_size == 4
    with refused("range", "agent.batch_size", "16", "agent.batch_size=24"):
        DQN.for_rank(config, 3)


def test_learner_stores_the_recurrent_states_of_the_acting_copy() -> None:
    (actor, clock, _), (learner, _, _) = made("recurrent_dqn"), made("recurrent_dqn")
    world = Noise()
    for _ in range(14):
        observation = Observation(world.observation)
        step = world.step(actor.act(observation))
        learner.adopt(observation, actor.decision())
        for agent in (actor, learner):
            agent.observe(step)
        clock.tick(4)
    states = [agent.experience.memory.sample(16, 0).state for agent in (actor, learner)]
    assert states[0].any()
    np.testing.assert_array_equal(*states)


def test_recurrent_state_is_updated_during_random_actions() -> None:
    agent, clock, _ = made("recurrent_dqn", "agent.learning_starts=300")
    play(agent, clock, Noise(), 6)
    assert agent.state_dict()["state"].any(axis=1).sum() >= 2  # the state of a new episode is zero


@pytest.mark.parametrize(
    "part",
    [
        ("agent/value=quantile",),
        ("agent/value=categorical", "agent.value.v_min=-10", "agent.value.v_max=10"),
        ("agent.network.dueling=true", "agent.network.noisy=0.5", "agent/exploration=noise"),
    ],
)
def test_parts_of_the_dqn_family_learn_with_a_recurrent_network_from_images(part: tuple[str, ...]) -> None:
    small = (TINY[1], "agent.network.torso.torso.cnn.features=8")
    spaces: Any = {"observation": IMAGE, "compute": cpu(1, "bf16")}
    agent, clock, _ = build("recurrent_dqn", *small, *REPLAY, *part, **spaces)
    assert play(agent, clock, Noise(IMAGE), 12) > 0
    assert np.isfinite(list(agent.metrics().values())).all()


class Corridor:
    """A corridor that begins with a cue and pays 1 if the last action equals the cue.

    No other step pays. The length of each corridor is random. All observations between the two ends are
    equal, so an agent without a recurrent state is right half of the time at best.
    """

    SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, seed: int = 0, num_envs: int = 16) -> None:
        self._rng = np.random.default_rng(seed)
        self._cue, self._length, self._at = (np.zeros(num_envs, np.int64) for _ in range(3))
        self._begin(np.ones(num_envs, np.bool_))
        self.paid: list[float] = []
        """The return of each episode that has ended."""

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        self._cue[envs] = self._rng.integers(0, 2, envs.sum())
        self._length[envs] = self._rng.integers(4, 8, envs.sum())
        self._at[envs] = 0

    @property
    def observation(self) -> NDArray:
        """The cue (-1 or 1, then 0), whether this is the last step, and the constant 1. [num_envs, 3]"""
        cue = np.where(self._at == 0, 2 * self._cue - 1, 0)
        return np.stack([cue, self._at == self._length - 1, np.ones_like(cue)], axis=1).astype(np.float32)

    def step(self, action: NDArray) -> Step:
        over = self._at == self._length - 1
        reward = (over & (action == self._cue)).astype(np.float32)
        self.paid += reward[over].tolist()
        self._at += ~over
        following = self.observation
        self._begin(over)
        episodes = [Episode(int(i), 0, 0, float(reward[i]), 1, False) for i in np.flatnonzero(over)]
        no = np.zeros(len(action), np.bool_)
        observation = self.observation if episodes else following
        return Step(observation, following, reward, over, no, over, episodes)


QUICK = ("agent.horizon=32", "agent.batch_size=128", "agent.lr=3e-3")
SEQUENCES = ("agent.learning_starts=500", "agent.lr=3e-3", "agent.updates_per_frame=0.1")
SEQUENCES += ("agent.memory.sequence_length=16", "agent.memory.burn_in=8", "agent.batch_size=128")
SEQUENCES += ("agent.target.every=200", "agent.exploration.epsilon=0.2")


@pytest.mark.parametrize(
    ("agent", "overrides", "steps"),
    [
        ("recurrent_ppo", QUICK, 200),
        ("recurrent_dqn", SEQUENCES, 160),
        pytest.param("recurrent_ppo", (*QUICK, "agent/network=lstm"), 300, marks=pytest.mark.slow),
        pytest.param(
            "recurrent_a2c", ("agent/optimizer=adam", "agent.lr=3e-3"), 1500, marks=pytest.mark.slow
        ),
    ],
)
def test_cue_of_the_first_step_is_remembered_until_the_last(
    agent: str, overrides: tuple[str, ...], steps: int
) -> None:
    small = ("agent.network.torso.torso.mlp.hidden=[16]", "agent.network.torso.hidden_size=16")
    spaces: Any = {"observation": Corridor.SPACE, "action": gym.spaces.Discrete(2), "num_envs": 16}
    player, clock, _ = build(agent, *overrides, *small, **spaces)
    play(player, clock, Corridor(), steps)
    world, start = Corridor(seed=7), np.ones(16, np.bool_)
    for _ in range(60):
        start = world.step(player.greedy_action(Observation(world.observation, start=start))).episode_over
    assert np.mean(world.paid) > 0.95
