"""Small goal environments: bits to be flipped, and a point to be moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class GoalTask(gym.Env, ABC):
    """-1 for each step until the goal is reached, which ends the episode; a time limit cuts it."""

    def __init__(self, steps: int, box: spaces.Box, one_by_one: bool) -> None:
        """box: of goals; one_by_one: rewards are computed of one pair of goals at a time."""
        self._limit, self._one_by_one = steps, one_by_one
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})

    def compute_reward(self, achieved_goal: NDArray, desired_goal: NDArray, info: Any) -> Any:
        assert not (self._one_by_one and achieved_goal.ndim > 1), "one by one, please"
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: NDArray, desired_goal: NDArray, info: Any) -> Any:
        assert not (self._one_by_one and achieved_goal.ndim > 1), "one by one, please"
        return self.distance(achieved_goal, desired_goal) < 0.15

    def distance(self, achieved: NDArray, desired: NDArray) -> Any:
        return np.abs(achieved - desired).max(-1)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._place, self._goal = self.drawn(), self.drawn()
        while self.compute_terminated(self._place, self._goal, {}):
            self._goal = self.drawn()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.move(action)
        self._steps += 1
        reward = float(self.compute_reward(self._place, self._goal, {}))
        over = bool(self.compute_terminated(self._place, self._goal, {}))
        return self._seen(), reward, over, self._steps >= self._limit and not over, {}

    @abstractmethod
    def drawn(self) -> NDArray[np.float32]:
        """A place."""

    @abstractmethod
    def move(self, action: Any) -> None:
        """Change the place that was reached."""

    def _seen(self) -> dict[str, NDArray]:
        place = self._place.copy()
        return {"observation": place, "achieved_goal": place.copy(), "desired_goal": self._goal.copy()}


class BitFlip(GoalTask):
    """An action flips one of n bits; all are to be as in the goal (section 3.1 of the paper)."""

    def __init__(self, n: int = 6, one_by_one: bool = False) -> None:
        super().__init__(n, spaces.Box(0, 1, (n,), np.float32), one_by_one)
        self.action_space = spaces.Discrete(n)

    def drawn(self) -> NDArray[np.float32]:
        assert self.action_space.n is not None
        return self.np_random.integers(0, 2, int(self.action_space.n)).astype(np.float32)

    def move(self, action: Any) -> None:
        self._place[int(action)] = 1 - self._place[int(action)]


class Reach(GoalTask):
    """An action moves a point in a square, at most so far that it crosses it in ten steps."""

    def __init__(self, steps: int = 20, one_by_one: bool = False) -> None:
        super().__init__(steps, spaces.Box(-1, 1, (2,), np.float32), one_by_one)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def drawn(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def move(self, action: Any) -> None:
        self._place = np.clip(self._place + 0.2 * np.asarray(action), -1, 1).astype(np.float32)


class Mute(gym.Wrapper):
    """It does not say what another goal would have given."""

    def __init__(self) -> None:
        super().__init__(BitFlip())

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "compute_reward" and super().has_wrapper_attr(name)
