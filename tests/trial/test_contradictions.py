"""Test of contradictions between options: each has a code and a key, before anything is built."""

from __future__ import annotations

import ast
import builtins
import re
import string
from dataclasses import fields, replace

import gymnasium as gym
import numpy as np
import pytest
from refusals import refused

from labrl.agents.make import named_agents
from labrl.agents.ppo import PPO
from labrl.config.compose import compose, resolve
from labrl.errors import Code
from labrl.spaces import Spaces
from labrl.trial.contradictions import FACTS, Facts, check_spaces, rules

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
TINY = gym.spaces.Box(0, 255, (3, 10, 10), np.uint8)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
HALF = gym.spaces.Box(-np.inf, 1, (2,), np.float32)
CHOICE = gym.spaces.Discrete(4)
PICTURES = gym.spaces.Dict({"image": IMAGE, "speed": VECTOR})

REST = "activation:ReLU,initialization:uniform,layer_norm:false"
MLP = f"_target_:labrl.networks.torso.MLP,hidden:[8],{REST}"
SHORT = "agent.horizon=64 agent.batch_size=64"
CRITIC, NORMALIZE = "agent.network.critic_torso", "agent.normalize_observations"


SPACES: list[tuple[str, gym.Space, gym.Space, Code, str]] = [
    ("agent=sac", VECTOR, HALF, "unsupported", "agent"),
    ("agent=random", VECTOR, HALF, "unsupported", "agent"),
    ("agent=sac", VECTOR, gym.spaces.Box(0, 9, (2,), np.int64), "unsupported", "agent"),
    ("agent=ppo agent.action_bounds=rescale", VECTOR, HALF, "unsupported", "agent.action_bounds"),
    (
        "agent=ppo meta.eval_epsilon=0.1 meta.rigorous_eval=1",
        VECTOR,
        HALF,
        "unsupported",
        "meta.eval_epsilon",
    ),
    ("agent=ppo agent/network=nature_cnn", TINY, CHOICE, "unsupported", "agent.network.torso"),
    ("agent=ppo agent/network=mlp", PICTURES, CHOICE, "unsupported", "agent.network.torso"),
    (f"agent=sac {CRITIC}={{{MLP}}}", IMAGE, CHOICE, "contradiction", CRITIC),
    (f"agent=td3_bc {NORMALIZE}=true", IMAGE, BOX, "unsupported", NORMALIZE),
]
"""Overrides, observation space, action space, code and key of contradictions with spaces or sessions."""

ALLOWED: list[tuple[str, gym.Space, gym.Space]] = [
    ("agent=dqn agent.network.noisy=0.5", VECTOR, CHOICE),
    (f"agent=ppo agent/network=lstm agent.sequence_length=16 {SHORT}", VECTOR, CHOICE),
    ("agent=sac agent.target_entropy=-3", VECTOR, BOX),
    ("agent=sac agent.target_entropy=0", VECTOR, gym.spaces.Discrete(1)),
    (f"agent=td3_bc {NORMALIZE}=false", IMAGE, BOX),
]
"""Overrides and spaces without a contradiction."""


class Own(PPO):
    """An agent that ignores action masks."""

    TRAITS = replace(PPO.TRAITS, masks=False)


def check(overrides: str, observation: gym.Space, action: gym.Space, masked: bool = False) -> None:
    config = resolve(compose(["env=cartpole", "preset=none", *overrides.split()]))
    agent = overrides.partition(" ")[0].removeprefix("agent=")
    check_spaces(config, agent, Spaces(observation, action, config.env.config.num_envs), masked)


@pytest.mark.parametrize(
    ("overrides", "observation", "action", "code", "key"), SPACES, ids=[case[0] for case in SPACES]
)
def test_contradiction_with_the_spaces_has_a_code_and_a_key(
    overrides: str, observation: gym.Space, action: gym.Space, code: Code, key: str
) -> None:
    with refused(code, key):
        check(overrides, observation, action)


@pytest.mark.parametrize(("overrides", "observation", "action"), ALLOWED, ids=[case[0] for case in ALLOWED])
def test_options_without_a_contradiction_are_accepted(
    overrides: str, observation: gym.Space, action: gym.Space
) -> None:
    check(overrides, observation, action)


def test_masks_are_refused_by_agents_that_ignore_them() -> None:
    check("agent=ppo", VECTOR, CHOICE, masked=True)
    config = resolve(compose(["env=cartpole", "agent=ppo", "agent._target_=test_contradictions.Own"]))
    with refused("unsupported", "agent", "agent=mine"):
        check_spaces(config, "mine", Spaces(VECTOR, CHOICE, config.env.config.num_envs), masked=True)


def test_table_names_only_facts_and_options_of_agents() -> None:
    """A misspelled name would be None, so that its rule would never apply."""
    options = {option.name for kind in named_agents().values() for option in fields(kind.Config)}
    config = resolve(compose(["env=cartpole", "agent=ppo"]))
    known = {*FACTS, *options, *Facts(config, "ppo", Spaces(VECTOR, CHOICE, 1)), *dir(builtins)}
    unknown = set()
    for rule in (rule for part in rules().values() for rule in part):
        names = [node for node in ast.walk(ast.parse(rule["when"])) if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        texts = (str(rule[name]) for name in ("key", "why", "fix"))
        filled = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
        unknown |= {node.id for node in names} - bound - known
        unknown |= {re.split(r"[.\[]", name)[0] for name in filled} - known
    assert not unknown
