"""What off-policy actor-critics cannot do is refused early, with the key and the way out."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.networks.spaces import Spaces

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
CHOICE = gym.spaces.Discrete(4)


def refused(agent: str, action: gym.Space, *words: str, observation: gym.Space = VECTOR) -> str:
    config = resolve(compose([f"agent={agent}", "env=pendulum", "preset=none", *words])).agent
    with pytest.raises(InputError) as error:
        config.load().check(config.config, Spaces(observation, action, 1))
    return str(error.value)


def accepted(agent: str, action: gym.Space, *words: str) -> None:
    config = resolve(compose([f"agent={agent}", "env=pendulum", "preset=none", *words])).agent
    config.load().check(config.config, Spaces(VECTOR, action, 1))


@pytest.mark.parametrize("agent", ["td3", "ddpg"])
def test_continuous_agents_name_those_for_choices(agent: str) -> None:
    told = refused(agent, CHOICE)
    assert f"agent: {agent} acts in Box spaces; this environment's actions are Discrete(4)" in told
    assert all(f"agent={other}" in told for other in ("ppo", "dqn", "sac", "crossq"))


@pytest.mark.parametrize("agent", ["sac", "crossq", "td3", "ddpg"])
def test_a_box_without_bounds_or_of_whole_numbers_is_refused(agent: str) -> None:
    for space in (gym.spaces.Box(-np.inf, 1, (2,), np.float32), gym.spaces.Box(0, 9, (2,), np.int64)):
        told = refused(agent, space)
        assert f"agent: {agent} rescales its actions from (-1, 1) to the bounds" in told
        assert "agent=ppo" in told


def test_a_minibatch_of_one_transition_has_no_variance_to_normalize_by() -> None:
    assert "agent.batch_size must be at least 2, got 1" in refused("crossq", BOX, "agent.batch_size=1")


@pytest.mark.parametrize("agent", ["sac", "crossq"])
@pytest.mark.parametrize(
    ("action", "target", "message"),
    [
        (BOX, "2", "must not be positive for continuous actions, got 2: it is the entropy"),
        (BOX, "0.5", "(usual: agent.target_entropy=-2)"),
        (BOX, "{kind: linear, start: -2, end: 1, horizon: 10}", "must not be positive"),
        (
            CHOICE,
            "-1",
            "must lie between 0 and 1.39, the entropy of 4 actions that are all as likely, got -1",
        ),
        (CHOICE, "1.5", "got 1.5 (usual: agent.target_entropy=0.832)"),
    ],
)
def test_a_target_entropy_of_the_wrong_sign_is_refused(
    agent: str, action: gym.Space, target: str, message: str
) -> None:
    assert message in refused(agent, action, f"agent.target_entropy={target}")


def test_entropies_that_can_be_met_are_accepted() -> None:
    accepted("sac", BOX, "agent.target_entropy=-3")
    accepted("sac", BOX, "agent.target_entropy={kind: linear, start: -1, end: -4, horizon: 1000}")
    accepted("sac", CHOICE, "agent.target_entropy=0.2")
    accepted("sac", gym.spaces.Discrete(1), "agent.target_entropy=0")


def test_a_target_for_a_fixed_temperature_is_refused() -> None:
    told = refused("sac", BOX, "agent.temperature=0.2", "agent.target_entropy=-1")
    assert "Set agent.temperature=null or agent.target_entropy=null" in told


def test_a_critic_that_reads_images_in_another_way_is_refused() -> None:
    own = "agent.network.critic_torso={_target_: labrl.networks.torso.MLP}"
    told = refused("sac", CHOICE, own, observation=IMAGE)
    assert "agent.network.critic_torso must be of the kind of agent.network.torso" in told
    assert "agent.network.critic_torso=null" in told


def test_a_network_that_cannot_read_the_observations_is_refused() -> None:
    assert "NatureCNN needs images" in refused("sac", BOX, "agent/network=nature_cnn")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agent=td3", "agent.policy_delay=0"], "agent.policy_delay must be at least 1, got 0"),
        (["agent=td3", "agent.target_noise=-1"], "agent.target_noise must be at least 0"),
        (["agent=td3", "agent.noise.std=-0.1"], "agent.noise.std must be at least 0 at every frame"),
        (
            ["agent=td3", "agent/noise=pink"],
            "agent/noise=pink: no such option. Known: gaussian, ornstein_uhlenb",
        ),
        (["agent=sac", "agent.temperature=-1"], "agent.temperature must be at least 0 at every frame"),
        (["agent=sac", "agent.initial_temperature=0"], "agent.initial_temperature must be greater than 0"),
        (["agent=sac", "agent.target.tau=2"], "agent.target.tau must be at most 1, got 2"),
        (["agent=sac", "agent.policy_delay=2"], "agent.policy_delay: no such key"),
        (["agent=crossq", "agent.optimizer.beta1=1.0"], "agent.optimizer.beta1 must be less than 1, got 1"),
        (
            ["agent=sac", "agent.memory.capacity=100"],
            "agent.memory.capacity must be at least agent.batch_size 256",
        ),
        (["agent=sac", "env.max_frame=500"], "agent.learning_starts must be less than env.max_frame 500"),
    ],
)
def test_wrong_values_name_what_is_allowed(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(compose(["env=pendulum", "preset=none", *words]))
    assert message in str(error.value)
