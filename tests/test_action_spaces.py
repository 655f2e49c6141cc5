"""The list of which agent fits which action space is true, complete, and told in every refusal."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import labrl.configs
from labrl.agents.action_spaces import ACTS_IN, check_actions, fitting_agents
from labrl.config.compose import compose, resolve
from labrl.config.errors import ConfigError
from labrl.networks.spaces import Spaces

AGENTS = sorted(path.stem for path in (Path(labrl.configs.__file__).parent / "agent").glob("*.yaml"))
SPACES = {
    "Discrete": gym.spaces.Discrete(3),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gym.spaces.MultiBinary(3),
    "Box": gym.spaces.Box(-1, 1, (2,), np.float32),
}
OBSERVATION = gym.spaces.Box(-1, 1, (3,), np.float32)


def test_every_agent_is_in_the_list() -> None:
    assert sorted(ACTS_IN) == AGENTS


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_accepts_the_spaces_that_the_list_says_and_no_others(agent: str, kind: str) -> None:
    words = ["agent.value.v_min=-1", "agent.value.v_max=1"] if agent in ("c51", "rainbow") else []
    config = resolve(compose([f"agent={agent}", "env=acrobot", *words])).agent
    spaces = Spaces(OBSERVATION, SPACES[kind], 1)
    if kind in ACTS_IN[agent]:
        config.load().check(config.config, spaces)
    else:
        with pytest.raises(ConfigError) as refused:
            config.load().check(config.config, spaces)
        for other in fitting_agents(SPACES[kind]):
            assert f"agent={other}" in str(refused.value)


def test_a_space_of_ones_own_counts_as_what_it_is_derived_from() -> None:
    class Torques(gym.spaces.Box):
        pass

    check_actions("ppo", Torques(-1, 1, (2,), np.float32))


def test_where_nobody_fits_the_refusal_says_so() -> None:
    with pytest.raises(ConfigError, match=r"No agent of labrl's fits"):
        check_actions("ppo", gym.spaces.Text(3))
