"""Refusal of action spaces and action masks that an agent does not support, with the agents that fit."""

from __future__ import annotations

from typing import Any, Never

import gymnasium as gym

from labrl.agents.agent import named_agents
from labrl.errors import InputError


def fitting_agents(space: gym.Space[Any]) -> list[str]:
    """Return the names of labrl's agents that support an action space, the most common ones first."""
    return [name for name, kind in named_agents().items() if kind.fits(space)]


def check_actions(agent: str, space: gym.Space[Any]) -> None:
    """Raise InputError, with the agents that fit, if `agent` (as in `agent=`) does not support `space`.

    Agents of users, which have no such name, check the space themselves.
    """
    kind = named_agents().get(agent)
    if kind is None or isinstance(space, kind.TRAITS.actions):
        return
    *first, last = [each.__name__ for each in kind.TRAITS.actions]
    listed = f"{', '.join(first)} and {last}" if first else last
    others = ", ".join(f"agent={name}" for name in fitting_agents(space))
    raise InputError.unsupported(
        f"agent={agent}",
        f"it supports {listed} action spaces, but this environment's is {space}",
        f"Agents that support it: {others}." if others else "None of labrl's agents supports it.",
    )


def refuse_masks(agent: str, space: gym.Space[Any], env: str) -> Never:
    """Raise InputError, with the agents that support the action masks of environment `env`."""
    fitting = [name for name in fitting_agents(space) if named_agents()[name].TRAITS.masks]
    others = ", ".join(f"agent={name}" for name in fitting)
    raise InputError.unsupported(
        f"agent={agent}",
        f"it does not support action masks, which env.name={env} provides",
        f"Agents that do: {others}. To play without masks, set env.action_mask=false.",
    )
