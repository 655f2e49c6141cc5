"""Kinds of action spaces by agent, and the errors that name the agents that fit."""

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
"""The kinds of action spaces that each `agent=` acts in, by the names of Gymnasium's classes."""

_RESCALE = ("sac", "crossq", "tqc", "td3", "ddpg", "td3_bc", "iql")
"""Agents whose actions lie in (-1, 1) and are stretched to the bounds of a box of real numbers."""

MASKLESS = ("sac", "crossq", "iql")
"""Agents that choose among actions and support no masks of the valid ones."""

_SAID_FIRST = ("ppo", "dqn", "sac", "td3")
"""The agents that are named first, where many fit."""


def fitting_agents(space: gym.Space[Any]) -> list[str]:
    """Return the agents that act in `space`, those that one would try first before the others."""
    fitting = [agent for agent in ACTS_IN if _fits(agent, space) and _reaches(agent, space)]
    return sorted(
        fitting, key=lambda agent: _SAID_FIRST.index(agent) if agent in _SAID_FIRST else len(fitting)
    )


def check_actions(agent: str, space: gym.Space[Any]) -> None:
    """Raise InputError, with the agents that fit, if `agent` (as in `agent=`) cannot act in `space`.

    An agent that is not in the list is a user's own, and knows itself where it can act.
    """
    if agent not in ACTS_IN or _fits(agent, space):
        return
    kinds = ACTS_IN[agent]
    listed = " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)
    others = ", ".join(f"agent={name}" for name in fitting_agents(space))
    raise InputError(
        f"agent={agent} acts in {listed} spaces, and this environment's actions are {space}. "
        + (f"Agents that can act there: {others}." if others else "None of labrl's agents can act there."),
        code="unsupported",
        key="agent",
    )


def refuse_masks(agent: str, space: gym.Space[Any], env: str) -> Never:
    """Raise InputError, with the agents that support the action masks of the environment called `env`."""
    others = ", ".join(f"agent={name}" for name in fitting_agents(space) if name not in MASKLESS)
    raise InputError(
        f"env.name={env} provides action masks, which agent={agent} does not support. Agents that do: "
        f"{others}. To play without masks, set env.action_mask=false.",
        code="unsupported",
        key="agent",
    )


def _fits(agent: str, space: gym.Space[Any]) -> bool:
    """Compare the names of the classes that `space` is derived from, so that a user's own Box is a Box."""
    return any(kind.__name__ in ACTS_IN[agent] for kind in type(space).__mro__)


def _reaches(agent: str, space: gym.Space[Any]) -> bool:
    """Return whether `agent` needs nothing that a box may lack: bounds, and room between whole numbers."""
    if not isinstance(space, gym.spaces.Box) or agent not in (*_RESCALE, "random"):
        return True
    return has_bounds(space) and (agent == "random" or bool(np.issubdtype(space.dtype, np.floating)))
