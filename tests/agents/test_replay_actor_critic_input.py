"""Tests of unsupported options of off-policy actor-critics: each is refused with its key and alternatives."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from refusals import refused

from labrl.config.compose import compose, resolve
from labrl.errors import Code
from labrl.spaces import Spaces

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
CHOICE = gym.spaces.Discrete(4)


def check(agent: str, action: gym.Space, *overrides: str, observation: gym.Space = VECTOR) -> None:
    config = resolve(compose([f"agent={agent}", "env=pendulum", "preset=none", *overrides])).agent
    config.load().check(config.config, Spaces(observation, action, 1))


def critic(torso: str) -> str:
    """Return the override that gives the critics their own torso."""
    rest = "activation: ReLU, initialization: uniform, layer_norm: false"
    return f"agent.network.critic_torso={{_target_: labrl.networks.torso.{torso}, {rest}}}"


@pytest.mark.parametrize("agent", ["td3", "ddpg"])
def test_discrete_actions_are_refused_with_suitable_agents(agent: str) -> None:
    others = [f"agent={other}" for other in ("ppo", "dqn", "sac", "crossq", "iql")]
    with refused("unsupported", "agent", f"agent={agent}", "Box", "Discrete(4)", *others):
        check(agent, CHOICE)


@pytest.mark.parametrize("agent", ["sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql"])
def test_unbounded_and_integer_boxes_are_refused(agent: str) -> None:
    for space in (gym.spaces.Box(-np.inf, 1, (2,), np.float32), gym.spaces.Box(0, 9, (2,), np.int64)):
        with refused("unsupported", "agent", agent, str(space), "agent=ppo"):
            check(agent, space)


def test_crossq_refuses_a_minibatch_of_one() -> None:
    with refused("range", "agent.batch_size", "2"):
        check("crossq", BOX, "agent.batch_size=1")


@pytest.mark.parametrize("agent", ["sac", "crossq"])
@pytest.mark.parametrize(
    ("action", "target", "named"),
    [
        (BOX, "2", ["got 2", "1.39", "-2"]),
        (BOX, "0.5", ["got 0.5", "-2"]),
        (BOX, "{kind: linear, start: -2, end: 1, horizon: 10}", ["got 1"]),
        (CHOICE, "-1", ["got -1", "1.39", "0.832"]),
        (CHOICE, "1.5", ["got 1.5", "1.39", "0.832"]),
    ],
)
def test_unreachable_target_entropy_is_refused(
    agent: str, action: gym.Space, target: str, named: list[str]
) -> None:
    with refused("range", "agent.target_entropy", *named):
        check(agent, action, f"agent.target_entropy={target}")


def test_reachable_target_entropies_are_accepted() -> None:
    check("sac", BOX, "agent.target_entropy=-3")
    check("sac", BOX, "agent.target_entropy={kind: linear, start: -1, end: -4, horizon: 1000}")
    check("sac", CHOICE, "agent.target_entropy=0.2")
    check("sac", gym.spaces.Discrete(1), "agent.target_entropy=0")


def test_target_entropy_with_a_fixed_temperature_is_refused() -> None:
    alternatives = "agent.temperature=null", "agent.target_entropy=null"
    with refused("contradiction", "agent.target_entropy", *alternatives):
        check("sac", BOX, "agent.temperature=0.2", "agent.target_entropy=-1")


def test_mlp_critic_beside_a_cnn_policy_is_refused() -> None:
    alternatives = "agent.network.torso", "agent.network.critic_torso=null"
    with refused("contradiction", "agent.network.critic_torso", *alternatives):
        check("sac", CHOICE, critic("MLP, hidden: [8]"), observation=IMAGE)


def test_network_unsuited_to_the_observations_is_refused() -> None:
    with refused("unsupported", "agent.network.torso"):
        check("sac", BOX, "agent/network=nature_cnn")


def test_critic_unsuited_to_the_observations_is_refused_with_its_key() -> None:
    with refused("unsupported", "agent.network.critic_torso"):
        check("sac", BOX, critic("NatureCNN, features: 8"))


@pytest.mark.parametrize(
    ("overrides", "key", "code", "named"),
    [
        (["agent=td3", "agent.policy_delay=0"], "agent.policy_delay", "range", ["1"]),
        (["agent=td3", "agent.target_noise=-1"], "agent.target_noise", "range", ["0"]),
        (["agent=td3", "agent.noise.std=-0.1"], "agent.noise.std", "range", ["0"]),
        (["agent=td3", "agent/noise=pink"], "agent/noise", "unknown-option", ["ornstein_uhlenbeck"]),
        (["agent=sac", "agent.temperature=-1"], "agent.temperature", "range", ["0"]),
        (["agent=sac", "agent.initial_temperature=0"], "agent.initial_temperature", "range", ["0"]),
        (["agent=sac", "agent.target.tau=2"], "agent.target.tau", "range", ["1", "2"]),
        (["agent=sac", "agent.policy_delay=2"], "agent.policy_delay", "unknown-key", []),
        (["agent=crossq", "agent.optimizer.beta1=1.0"], "agent.optimizer.beta1", "range", ["1"]),
        (
            ["agent=sac", "agent.memory.capacity=100"],
            "agent.memory.capacity",
            "contradiction",
            ["agent.memory.capacity=256"],
        ),
        (["agent=sac", "env.max_frame=500"], "agent.learning_starts", "contradiction", ["env.max_frame="]),
    ],
)
def test_invalid_values_are_refused_with_the_allowed_ones(
    overrides: list[str], key: str, code: Code | None, named: list[str]
) -> None:
    with refused(code, key, *named):
        resolve(compose(["env=pendulum", "preset=none", *overrides]))
