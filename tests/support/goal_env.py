"""Small goal environments: one flips bits, the other moves a point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class GoalTask(gym.Env, ABC):
    """A task that pays -1 for each step until the goal is reached.

    The goal terminates the episode; a time limit truncates it.
    """

    def __init__(self, steps: int, box: spaces.Box) -> None:
        """steps: time limit. box: space of goals."""
        self._limit = steps
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})

    def compute_reward(self, achieved_goal: NDArray, desired_goal: NDArray, info: Any) -> Any:
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: NDArray, desired_goal: NDArray, info: Any) -> Any:
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
        """Draw a random place: a goal, or where an episode begins."""

    @abstractmethod
    def move(self, action: Any) -> None:
        """Change the current place by an action."""

    def _seen(self) -> dict[str, NDArray]:
        place = self._place.copy()
        return {"observation": place, "achieved_goal": place.copy(), "desired_goal": self._goal.copy()}


class BitFlip(GoalTask):
    """Flip one of n bits per action until all equal the goal (Andrychowicz et al., 2017, section 3.1)."""

    def __init__(self, n: int = 6) -> None:
        super().__init__(n, spaces.Box(0, 1, (n,), np.float32))
        self.action_space = spaces.Discrete(n)

    def drawn(self) -> NDArray[np.float32]:
        assert self.action_space.n is not None
        return self.np_random.integers(0, 2, int(self.action_space.n)).astype(np.float32)

    def move(self, action: Any) -> None:
        self._place[int(action)] = 1 - self._place[int(action)]


class Reach(GoalTask):
    """Move a point in a square to the goal; crossing the square takes at least ten steps."""

    def __init__(self) -> None:
        super().__init__(20, spaces.Box(-1, 1, (2,), np.float32))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def drawn(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def move(self, action: Any) -> None:
        self._place = np.clip(self._place + 0.2 * np.asarray(action), -1, 1).astype(np.float32)


class Mute(gym.Wrapper):
    """A goal environment without `compute_reward`."""

    def __init__(self) -> None:
        super().__init__(BitFlip())

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "compute_reward" and super().has_wrapper_attr(name)
