"""Parts of somebody's own that break, each in its way."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym

from labrl.agents.agent import Agent
from labrl.agents.parts.exploration import ExplorationTraits, NetworkNoise
from labrl.agents.random import RandomAgent
from labrl.memory.replay import Replay


class Raises:
    """Whatever it is to be."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("no licence")


class RaisesReplay(Replay):
    """A replay buffer that cannot be made."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("no licence")


class Exits(gym.Env[Any, Any]):
    """A simulator that ends the program."""

    def __init__(self) -> None:
        sys.exit("no display")


class NoSpaces(gym.Env[Any, Any]):
    """Half an environment."""


class RaisingExploration(NetworkNoise):
    """An exploration that cannot be made."""

    TRAITS = ExplorationTraits()

    def __init__(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("no licence")


class RaisingAgent(RandomAgent):
    """An agent that cannot be made."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("no licence")


class Empty(Agent):
    """Half an agent."""

    def __init__(self, spaces: Any, clock: Any, streams: Any, compute: Any) -> None:
        pass


class NoAgent:
    """No agent."""

    def __init__(self, spaces: Any, clock: Any, streams: Any, compute: Any) -> None:
        pass


def no_agent(spaces: Any, clock: Any, streams: Any, compute: Any) -> NoAgent:
    """A function that makes no agent."""
    return NoAgent(spaces, clock, streams, compute)


class Refuses(RandomAgent):
    """An agent that refuses in its own words."""

    @classmethod
    def check(cls, config: Any, spaces: Any) -> None:
        raise ValueError("only two actions please")


gym.register("own/Raises-v0", entry_point=Raises)
gym.register("own/Exits-v0", entry_point=Exits)
