"""Action spaces that each agent supports, and errors that name the agents that fit."""

from __future__ import annotations

from typing import Any, Never

import gymnasium as gym
import numpy as np

from labrl.errors import InputError
from labrl.spaces import has_bounds

DQN_FAMILY = ("dqn", "double_dqn", "dueling_dqn", "c51", "qr_dqn", "rainbow", "rainbow_lite")

ANY = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")

ACTS_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ppo", "a2c", "reinforce", "sil_ppo", "sil_a2c", "recurrent_ppo", "recurrent_a2c"), ANY),
    **dict.fromkeys(("sarsa", "pqn"), ("Discrete",)),
    **dict.fromkeys((*DQN_FAMILY, "recurrent_dqn"), ("Discrete",)),
    "sac": ("Discrete", "Box"),
    "crossq": ("Discrete", "Box"),
    "tqc": ("Box",),
    "td3": ("Box",),
    "ddpg": ("Box",),
    "td3_bc": ("Box",),
    "iql": ("Discrete", "Box"),
    "random": ANY,
}
"""Action spaces that each agent supports, by the names of Gymnasium's classes."""

_RESCALE = ("sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql")
"""Agents whose actions are scaled from (-1, 1) to the bounds of a box of real numbers."""

MASKLESS = ("iql",)
"""Agents with discrete actions that do not support action masks."""

_SAID_FIRST = ("ppo", "dqn", "sac", "td3")
"""Agents that are named first if many fit."""


def fitting_agents(space: gym.Space[Any]) -> list[str]:
    """Return the agents that support `space`, with the most common ones first."""
    fitting = [agent for agent in ACTS_IN if _fits(agent, space) and _reaches(agent, space)]
    return sorted(
        fitting, key=lambda agent: _SAID_FIRST.index(agent) if agent in _SAID_FIRST else len(fitting)
    )


def check_actions(agent: str, space: gym.Space[Any]) -> None:
    """Raise InputError, with the agents that fit, if `agent` (as in `agent=`) does not support `space`.

    Agents of users, which are not in the list, check the space themselves.
    """
    if agent not in ACTS_IN or _fits(agent, space):
        return
    kinds = ACTS_IN[agent]
    listed = " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)
    others = ", ".join(f"agent={name}" for name in fitting_agents(space))
    raise InputError(
        f"agent={agent} supports {listed} action spaces, but this environment's is {space}. "
        + (f"Agents that support it: {others}." if others else "None of labrl's agents supports it."),
        code="unsupported",
        key="agent",
    )


def refuse_masks(agent: str, space: gym.Space[Any], env: str) -> Never:
    """Raise InputError, with the agents that support the action masks of environment `env`."""
    others = ", ".join(f"agent={name}" for name in fitting_agents(space) if name not in MASKLESS)
    raise InputError(
        f"env.name={env} provides action masks, which agent={agent} does not support. Agents that do: "
        f"{others}. To play without masks, set env.action_mask=false.",
        code="unsupported",
        key="agent",
    )


def _fits(agent: str, space: gym.Space[Any]) -> bool:
    """Return whether `agent` supports the class of `space`, by the names of its base classes."""
    return any(kind.__name__ in ACTS_IN[agent] for kind in type(space).__mro__)


def _reaches(agent: str, space: gym.Space[Any]) -> bool:
    """Return whether a box has what `agent` needs: bounds and real numbers."""
    if not isinstance(space, gym.spaces.Box) or agent not in (*_RESCALE, "random"):
        return True
    return has_bounds(space) and (agent == "random" or bool(np.issubdtype(space.dtype, np.floating)))
