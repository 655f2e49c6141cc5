"""Parts of a user's own package that fail, each in a different way."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym

from labrl.agents.agent import Agent
from labrl.agents.random import RandomAgent


class Raises:
    """A part of any kind that raises an error when it is created."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("no licence")


class Exits(gym.Env[Any, Any]):
    """An environment that exits the program when it is created."""

    def __init__(self) -> None:
        sys.exit("no display")


class NoSpaces(gym.Env[Any, Any]):
    """An environment without observation and action spaces."""


class Empty(Agent):
    """An agent that implements none of the abstract methods."""

    def __init__(self, spaces: Any, clock: Any, streams: Any, compute: Any) -> None:
        pass


class NoAgent:
    """A class that accepts the arguments of an agent but is not an `Agent`."""

    def __init__(self, spaces: Any, clock: Any, streams: Any, compute: Any) -> None:
        pass


def no_agent(spaces: Any, clock: Any, streams: Any, compute: Any) -> NoAgent:
    """Return an object that is not an `Agent`."""
    return NoAgent(spaces, clock, streams, compute)


class Refuses(RandomAgent):
    """An agent whose own check rejects every configuration."""

    @classmethod
    def check(cls, config: Any, spaces: Any) -> None:
        raise ValueError("only two actions please")


gym.register("own/Raises-v0", entry_point=Raises)
gym.register("own/Exits-v0", entry_point=Exits)
