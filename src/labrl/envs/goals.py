"""Rewards and terminations of goal environments for goals other than the one pursued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from labrl.errors import InputError
from labrl.spaces import ACHIEVED, DESIRED, example

AnyEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


def has_goals(space: Space[Any]) -> bool:
    """Return whether observations contain a desired and an achieved goal."""
    return isinstance(space, Dict) and {ACHIEVED, DESIRED} <= space.spaces.keys()


class GoalEnv:
    """Compute the rewards of goals with an environment that is lent, or with one made at the first use.

    The environment needs `compute_reward(achieved_goal, desired_goal, info)` and may have
    `compute_terminated(achieved_goal, desired_goal, info)`, as in Gymnasium-Robotics' `GoalEnv`. Both must
    depend only on the goals. They are called with batches if they accept them, otherwise once per goal.
    """

    def __init__(
        self, make: Callable[[], AnyEnv], space: Space[Any], name: str, lent: AnyEnv | None = None
    ) -> None:
        """make: makes an environment; space, name: its observation space and name; lent: an environment to
        use instead, which its owner closes."""
        self._make, self._space, self._name = make, space, name
        self._lent, self._env = lent, lent
        self._in_batches: dict[str, bool] = {}

    def check(self) -> None:
        """Raise InputError if the environment has no method `compute_reward`."""
        if self._method("compute_reward") is None:
            raise InputError(
                f"agent.memory: hindsight needs a method compute_reward(achieved_goal, desired_goal, info), "
                f"which env.name={self._name} does not have. Set agent/memory=uniform, or add the method.",
                code="unsupported",
                key="agent.memory",
            )

    def reward(self, achieved: NDArray, desired: NDArray) -> NDArray[np.float32]:
        """Return the reward of achieving `achieved` when the goal is `desired`. [n, *goal] each -> [n]"""
        return self._asked("compute_reward", achieved, desired).astype(np.float32)

    def terminated(self, achieved: NDArray, desired: NDArray) -> NDArray[np.bool_] | None:
        """Return whether achieving `achieved` when the goal is `desired` ends the episode. [n]

        Returns None if the environment has no method `compute_terminated`.
        """
        if self._method("compute_terminated") is None:
            return None
        return self._asked("compute_terminated", achieved, desired).astype(np.bool_)

    def close(self) -> None:
        """Close the environment if it was made here."""
        if self._env is not None and self._env is not self._lent:
            self._env.close()
        self._env = None

    def _own(self) -> AnyEnv:
        if self._env is None:
            self._env = self._make()
        return self._env

    def _method(self, name: str) -> Any:
        """Return a method of the environment or of one of its wrappers, None if there is none."""
        env = self._own()
        if isinstance(env, VectorEnv):
            return getattr(env, name, None)
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None

    def _asked(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray:
        function = self._method(method)
        if method not in self._in_batches:
            self._in_batches[method] = self._takes_batches(function)
        achieved, desired = achieved.copy(), desired.copy()  # the environment may modify them
        if self._in_batches[method]:
            return np.array(function(achieved, desired, {}))
        pairs = zip(achieved, desired, strict=True)
        return np.array([np.array(function(*pair, {})) for pair in pairs])

    def _takes_batches(self, function: Any) -> bool:
        two = np.concatenate([example(self._space), example(self._space)])
        try:
            return np.shape(function(two[ACHIEVED], two[DESIRED], {})) == (2,)
        except Exception:  # a function of a single goal may fail in any way
            return False
