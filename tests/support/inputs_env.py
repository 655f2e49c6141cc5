"""Small environments with several inputs, or with large numbers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Lamp(gym.Env):
    """Report whether the image is bright or dark and whether the mark is 1 or -1: one of four answers.

    The seed determines the length of an episode; even lengths terminate, odd ones are truncated.
    """

    def __init__(self, continuous: bool = False, style: str = "dict", render_mode: str | None = None) -> None:
        """continuous: the answer is the signs of two numbers. style: dict, nested, tuple, masked or picture.

        Only the image is observed with the style picture.
        """
        self.action_space: Any = spaces.Box(-1, 1, (2,)) if continuous else spaces.Discrete(4)
        self._continuous, self._style = continuous, style
        picture = spaces.Box(0, 255, (36, 36, 3), np.uint8)
        mark = spaces.Box(-1, 1, (2,), np.float64)
        self.observation_space: Any = {
            "dict": lambda: spaces.Dict(
                {"picture": picture, "mark": mark, "turn": spaces.Discrete(3, start=1)}
            ),
            "nested": lambda: spaces.Dict({"eye": spaces.Dict({"picture": picture}), "mark": mark}),
            "tuple": lambda: spaces.Tuple((picture, mark)),
            "picture": lambda: picture,
            "masked": lambda: spaces.Dict(
                {"picture": picture, "mark": mark, "action_mask": spaces.MultiBinary(4)}
            ),
        }[style]()
        self._picture_shape, self.render_mode = picture.shape, render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._length = 0, int(self.np_random.integers(3, 9))
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answer = 2 * int(action[0] > 0) + int(action[1] > 0) if self._continuous else int(action)
        reward = 1.0 if answer == self.wanted else 0.0
        if self._style == "masked":
            assert answer // 2 == self.wanted // 2, "the agent took an invalid action"
        self._steps += 1
        over = self._steps >= self._length
        ended = over and self._length % 2 == 0
        return self._shown(), reward, ended, over and not ended, {}

    def render(self) -> Any:
        return self._picture

    def _shown(self) -> Any:
        bright, straight = (bool(flag) for flag in self.np_random.integers(0, 2, 2))
        self.wanted = 2 * bright + straight
        level = self.np_random.integers(0, 60, self._picture_shape)
        picture = (level + (190 if bright else 0)).astype(np.uint8)
        self._picture = picture
        mark = np.array([1.0 if straight else -1.0, self.np_random.random()])
        if self._style == "nested":
            return {"eye": {"picture": picture}, "mark": mark}
        if self._style == "picture":
            return picture
        if self._style == "tuple":
            return picture, mark
        both = {"picture": picture, "mark": mark}
        if self._style == "masked":
            return {**both, "action_mask": (np.arange(4) // 2 == self.wanted // 2).astype(np.int8)}
        return {**both, "turn": 1 + self._steps % 3}


class Clock(gym.Env):
    """Show a large number; the right action is whether it is past the middle. Episodes have ten steps."""

    def __init__(self, kind: str, middle: float = 1.7e9, several: bool = True) -> None:
        """kind: type of the number; several: whether the number is one of two inputs."""
        self.action_space: Any = spaces.Discrete(2)
        number = spaces.Box(
            0, 2 * middle if kind.startswith("float") else 2 * int(middle), (1,), np.dtype(kind).type
        )
        flags = spaces.Box(0, 1, (2,), np.bool_)
        self.observation_space: Any = spaces.Dict({"flags": flags, "number": number}) if several else number
        self._several, self._kind, self._middle = several, kind, middle

    def _shown(self) -> Any:
        self._past = int(self.np_random.integers(-30, 31))
        number = np.array([self._middle + self._past]).astype(self._kind)
        return {"flags": np.array([True, False]), "number": number} if self._several else number

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == (self._past > 0))
        self._steps += 1
        return self._shown(), reward, self._steps >= 10, False, {}
