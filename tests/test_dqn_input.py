"""What the DQN family cannot do is refused before anything is built, with the key and the way out."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from labrl.agents.dqn import DQN
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.networks.spaces import Spaces


def refused(*overrides: str) -> str:
    with pytest.raises(InputError) as error:
        resolve(compose(["agent=dqn", *overrides]))
    return str(error.value)


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (
            ["agent.memory.capacity=50"],
            [
                "agent.memory.capacity must be at least agent.batch_size 128, got 50",
                "agent.memory.capacity=128",
            ],
        ),
        (
            ["agent.memory.capacity=900"],
            ["agent.memory.capacity must be at least agent.learning_starts 1000, got 900"],
        ),
        (
            ["agent.memory.capacity=64", "env.num_envs=16", "agent.n_step=5", "agent.learning_starts=0"],
            ["agent.memory.capacity must be at least 96 (env.num_envs 16 x (agent.n_step 5 + 1)), got 64"],
        ),
        (
            ["env.max_frame=1000"],
            ["agent.learning_starts must be less than env.max_frame 1000", "set env.max_frame=2000"],
        ),
        (
            ["agent.learning_starts=0", "agent.batch_size=500", "env.max_frame=400"],
            ["agent.batch_size 500 the first update is after frame 503"],
        ),
        (
            ["agent/exploration=noise"],
            ["agent.network.noisy is null. Set agent.network.noisy=0.5 or agent/exploration=epsilon_greedy"],
        ),
    ],
    ids=["batch", "learning_starts", "n_step", "budget", "budget for a batch", "noise"],
)
def test_contradictions_name_both_sides_and_the_way_out(overrides: list[str], messages: list[str]) -> None:
    told = refused("env=cartpole", *overrides)
    assert all(message in told for message in messages), told


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent/value=categorical"], "agent.value.v_min must be given: set agent.value.v_min=<value>"),
        (["agent/value=categorical"], "agent.value.v_max must be given: set agent.value.v_max=<value>"),
        (
            ["agent/value=categorical", "agent.value.v_min=10", "agent.value.v_max=-10"],
            "agent.value: v_min must be less than v_max, got v_min=10 and v_max=-10",
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=1", "agent.value.v_max=1.00000001"],
            "v_min and v_max must leave 51 atoms apart in float32, got v_min=1 and v_max=1.00000001",
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=-3e38", "agent.value.v_max=3e38"],
            "agent.value: v_min and v_max must leave 51 atoms apart in float32",
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=1", "agent.value.v_max=1"],
            "agent.value: v_min must be less than v_max",
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=0", "agent.value.v_max=1", "agent.value.atoms=1"],
            "agent.value.atoms must be at least 2, got 1",
        ),
        (["agent.value.loss=huge"], "agent.value.loss must be 'huber' or 'squared', got 'huge'"),
        (
            ["agent.updates_per_frame=0"],
            "agent.updates_per_frame must be a number greater than 0, or a quotient",
        ),
        (["agent.updates_per_frame=true"], "agent.updates_per_frame must be a number greater than 0"),
        (["agent.updates_per_frame=1/0"], "agent.updates_per_frame must be a number greater than 0"),
        (["agent.updates_per_frame=often"], "a quotient of two such as \"1/3\", got 'often'"),
        (
            ["agent.exploration.epsilon=1.5"],
            "agent.exploration.epsilon must lie between 0 and 1 at every frame",
        ),
        (["agent.exploration.epsilon.start=2"], "agent.exploration.epsilon must lie between 0 and 1"),
        (["agent.target.every=0"], "agent.target.every must be at least 1, got 0"),
        (["agent/target=polyak", "agent.target.tau=0"], "agent.target.tau must be greater than 0, got 0"),
        (["agent.target.tau=0.1"], "agent.target.tau: no such key. Known there: agent.target._target_"),
        (["agent.network.noisy=0"], "agent.network.noisy must be greater than 0"),
        (["agent.network.head=[0]"], "agent.network.head[0] must be at least 1, got 0"),
        (["agent.n_step=0"], "agent.n_step must be at least 1, got 0"),
        (["agent.warmup_actions=greedy"], "agent.warmup_actions must be 'random' or 'policy', got 'greedy'"),
        (["agent/value=c51"], "agent/value=c51: no such option. Known: categorical, expected, quantile."),
    ],
)
def test_wrong_values_name_what_is_allowed(overrides: list[str], message: str) -> None:
    assert message in refused("env=gymnasium", "env.id=CartPole-v1", *overrides)


def test_epsilon_with_a_noisy_network_is_allowed() -> None:
    resolve(compose(["agent=dqn", "agent.network.noisy=0.5"]))
    resolve(compose(["agent=rainbow", "agent/exploration=epsilon_greedy"]))


@pytest.mark.parametrize(
    ("actions", "fits"),
    [
        (gym.spaces.Box(-1, 1, (2,), np.float32), "agent=ppo"),
        (gym.spaces.MultiDiscrete([2, 3]), "agent=ppo"),
        (gym.spaces.MultiBinary(3), "agent=ppo"),
    ],
    ids=["box", "multi-discrete", "multi-binary"],
)
def test_actions_that_cannot_be_listed_are_refused_with_an_agent_that_fits(
    actions: gym.Space, fits: str
) -> None:
    config = resolve(compose(["agent=dqn"])).agent.config
    observation = gym.spaces.Box(-1, 1, (3,), np.float32)
    DQN.check(config, Spaces(observation, gym.spaces.Discrete(3), 1))
    with pytest.raises(InputError, match=rf"agent: dqn acts in Discrete spaces; .*{fits}"):
        DQN.check(config, Spaces(observation, actions, 1))


def test_a_network_that_cannot_read_the_observations_is_refused_before_it_is_built() -> None:
    config = resolve(compose(["agent=dqn", "agent/network=nature_cnn"])).agent.config
    with pytest.raises(InputError, match="NatureCNN needs images"):
        DQN.check(config, Spaces(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3), 1))
