"""A small environment in which some actions are invalid, and taking one of these is an error."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class Doors(gym.Env):
    """Each step only the mask tells which doors are open.

    Ends after some steps that follow from the seed, half of the time by a time limit. The last mask of an
    episode that ended has no open door at all, as some environments have it.
    """

    def __init__(self, style: str = "info", several: bool = False, broken: int | None = None) -> None:
        """style: info, or dict; several: two doors are taken at once; broken: step without an open door."""
        self._style, self._broken = style, broken
        self.action_space = gym.spaces.MultiDiscrete([4, 3]) if several else gym.spaces.Discrete(4, start=2)
        self._sizes = [4, 3] if several else [4]
        plain = gym.spaces.Box(0, 1, (2,), np.float32)
        flags = gym.spaces.MultiBinary(sum(self._sizes))
        both = {"observation": plain, "action_mask": flags}
        self.observation_space = gym.spaces.Dict(both) if style == "dict" else plain

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._length = 0, int(self.np_random.integers(2, 9))
        return self._shown(over=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.atleast_1d(action) - (2 if len(self._sizes) == 1 else 0)
        for door, flags in zip(chosen, np.split(self._mask, np.cumsum(self._sizes)[:-1]), strict=True):
            assert flags[door], f"door {door} is closed: {flags}"
        self._steps += 1
        over = self._steps >= self._length
        ended = over and self._length % 2 == 0
        return *self._step_shown(ended, over), {**self._info}

    def _step_shown(self, ended: bool, over: bool) -> tuple[Any, float, bool, bool]:
        observation, self._info = self._shown(over=ended)
        return observation, float(self._steps % 2), ended, over and not ended

    def _shown(self, over: bool) -> tuple[Any, dict[str, Any]]:
        flags = self.np_random.random(sum(self._sizes)) < 0.4
        starts = np.cumsum([0, *self._sizes[:-1]])
        flags[starts + self.np_random.integers(self._sizes)] = True
        if over or self._steps == self._broken:
            flags[:] = False
        self._mask: NDArray[np.bool_] = flags
        plain = self.np_random.random(2).astype(np.float32)
        given = flags.astype(np.int8)
        if self._style == "dict":
            return {"observation": plain, "action_mask": given}, {}
        return plain, {"action_mask": given}
