"""An environment that fails in one of several ways, for the tests of failing environments."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch


class Broken(gym.Env):
    """An environment with episodes of ten steps that fails as `how` says.

    Depending on `how` it fails when it is created, in step 5, 17 or 20 of its life, or when it is closed.
    """

    observation_space: gym.Space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2)

    def __init__(self, how: str) -> None:
        if how == "make":
            raise OSError("no licence")
        if how == "empty":
            self.observation_space = gym.spaces.Box(-1, 1, (0,), np.float32)
        self._how, self._steps = how, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward: Any = 1.0
        if self._steps == 5 and self._how == "unreadable":
            json.loads("battery empty")
        if self._steps == 20 and self._how == "exit":
            sys.exit(4)
        if self._how == "asserts":
            assert self._steps < 20
        if self._steps == 20 and self._how == "gives_up":
            raise ArithmeticError("the simulator gave up\n  after all\n")
        if self._steps == 20 and self._how == "varies":
            torch.set_deterministic_debug_mode("error")  # as on a GPU
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
        if self._steps == 20 and self._how == "not_a_number":
            reward = np.nan
        observation = np.zeros(2, np.float32)
        if self._steps == 17 and self._how == "blind":
            observation[1] = np.nan
        return observation, reward, self._steps % 10 == 0, False, {}

    def close(self) -> None:
        if self._how == "close":
            raise OSError("already closed")
