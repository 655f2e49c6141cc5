"""Parts of somebody's own that break, each in its way."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym


class Raises:
    """Whatever it is to be."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("no licence")


class Exits(gym.Env[Any, Any]):
    """A simulator that ends the program."""

    def __init__(self) -> None:
        sys.exit("no display")


class NoSpaces(gym.Env[Any, Any]):
    """Half an environment."""


class Empty:
    """No agent."""

    def __init__(self, spaces: Any, clock: Any, streams: Any, compute: Any) -> None:
        pass


class Refuses(Empty):
    """An agent that refuses in its own words."""

    @classmethod
    def check(cls, config: Any, spaces: Any) -> None:
        raise ValueError("only two actions please")


gym.register("own/Raises-v0", entry_point=Raises)
gym.register("own/Exits-v0", entry_point=Exits)
