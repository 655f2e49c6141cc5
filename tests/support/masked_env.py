"""A small environment with action masks, in which taking an invalid action is an error."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class Doors(gym.Env):
    """Doors of which only the action mask shows which are open in this step.

    The seed determines the length of an episode; even lengths terminate, odd ones are truncated. No door is
    open in the last mask of a terminated episode, as in some real environments.
    """

    def __init__(self, style: str = "info", several: bool = False, broken: int | None = None) -> None:
        """Choose where the mask is and how many doors an action opens.

        style: where the mask is, `info` or `dict` (the observation). several: an action opens two doors.
        broken: a step in which no door is open.
        """
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
