"""Rewards and terminations of goal environments for goals other than the pursued goal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from labrl.envs.masks import observation_of, replace_invalid
from labrl.errors import TRACEBACK, InputError, described
from labrl.spaces import ACHIEVED, DESIRED, alike, stored_dtype

_log = logging.getLogger(__name__)

STEPS = 50
"""Number of steps on which an environment's methods are compared with its rewards and terminations."""

TOLERANCE = 1e-3
"""Largest difference between two rewards that rounding may cause, relative to the largest reward."""


class GoalEnv:
    """Compute rewards for goals with an environment that is made at the first use.

    The environment needs `compute_reward(achieved_goal, desired_goal, info)` and may have
    `compute_terminated(achieved_goal, desired_goal, info)`, as in Gymnasium-Robotics' `GoalEnv`. Both must
    depend only on the goals. They are called with batches of goals if this gives the same values as single
    goals.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], space: Space[Any], name: str) -> None:
        """make: function that makes an environment; space, name: the environment's observation space and
        name."""
        self._make, self._space, self._name = make, space, name
        self._env: gymnasium.Env[Any, Any] | None = None
        self._ways: dict[str, Callable[[str, NDArray, NDArray], NDArray[np.float64]]] = {}
        """The function that calls each method, `_batch` or `_singly`, by the method's name."""

    def check(self) -> None:
        """Raise InputError unless the environment computes the rewards that its steps return.

        If only some rewards differ, log a warning, because a reward may have a rare part that depends on no
        goal.
        """
        with contextlib.closing(self):
            if self._method("compute_reward") is None:
                why = "needs a method compute_reward(achieved_goal, desired_goal, info)"
                raise self._refused(why, "add the method")
            achieved, desired = self._space[ACHIEVED], self._space[DESIRED]  # type: ignore[index]
            if not alike(achieved, desired):
                why = f"needs goals of one kind, but {ACHIEVED} is {achieved} and {DESIRED} is {desired}"
                raise self._refused(why, "make them alike in a wrapper")
            reached, pursued, rewards, ends = self._steps
            for method, given in (("compute_reward", rewards), ("compute_terminated", ends)):
                if self._method(method) is None:
                    continue
                try:
                    computed = self._asked(method, reached, pursued)
                except Exception as error:
                    why = f"calls {method}(achieved_goal, desired_goal, info) with info={{}}, but it fails: "
                    why += described(error)
                    raise self._refused(why, "make it depend only on the goals") from error
                differ = ~_close(computed, given)
                if not differ.any():
                    continue
                row = int(differ.argmax())
                what = (
                    f"needs {method} to return what step() returns, but in {np.count_nonzero(differ)} of "
                    f"{len(given)} steps they differ ({computed[row]:g} and {given[row]:g} in step {row + 1})"
                )
                remedy = "make both return the same value with all wrappers applied "
                remedy += f"(labrl calls {method} with info={{}})"
                if differ.all():
                    raise self._refused(what, remedy)
                _log.warning("%s", self._refused(what, remedy))

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
        """Close the environment. It is made again if needed."""
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(Exception):  # does not affect the results of the run
                env.close()

    def _refused(self, why: str, remedy: str) -> InputError:
        text = f"hindsight in env.name={self._name} {why}"
        return InputError.unsupported("agent.memory", text, f"agent/memory=uniform, or {remedy}")

    def _own(self) -> gymnasium.Env[Any, Any]:
        if self._env is None:
            self._env = self._make()
        return self._env

    def _method(self, name: str) -> Any:
        """Return a method of the environment or of one of its wrappers; None if there is no such method."""
        env = self._own()
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None

    def _asked(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray[np.float64]:
        """Call a method with achieved and desired goals, [n, *goal] each. Returns [n]."""
        if method not in self._ways:
            self._ways[method] = self._choose_way(method)
        return self._ways[method](method, achieved, desired)

    def _choose_way(self, method: str) -> Callable[[str, NDArray, NDArray], NDArray[np.float64]]:
        """Return `_batch` if the method returns a number for each of several goals, otherwise `_singly`.

        The number of goals must differ from the sizes of a goal: a function of a single goal would accept a
        batch of two goals as one goal of size two.
        """
        achieved, desired, *_ = self._steps
        with contextlib.suppress(Exception):  # a function of single goals may fail in any way
            if self._batch(method, achieved, desired).shape == (len(achieved),):
                return self._batch
        return self._singly

    def _batch(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray[np.float64]:
        # Copies, because the environment may modify its arguments and return the same array again.
        return np.array(self._method(method)(achieved.copy(), desired.copy(), {}), np.float64)

    def _singly(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray[np.float64]:
        function, pairs = self._method(method), zip(achieved.copy(), desired.copy(), strict=True)
        return np.array([np.asarray(function(*pair, {})).item() for pair in pairs], np.float64)

    @cached_property
    def _steps(self) -> tuple[NDArray, NDArray, NDArray[np.float64], NDArray[np.float64]]:
        """Random steps: achieved and desired goals, [steps, *goal] each; rewards and terminations, [steps].

        Raises InputError if the environment fails.
        """
        goal = self._space[ACHIEVED]  # type: ignore[index]
        sizes, over = goal.shape or (), True
        steps = next(number for number in range(STEPS, 0, -1) if number not in sizes)
        dtype = stored_dtype(np.dtype(goal.dtype))
        goals = {name: np.zeros((steps, *sizes), dtype) for name in (ACHIEVED, DESIRED)}
        rewards, ends = np.zeros(steps), np.zeros(steps)
        try:
            env: Any = self._own()
            env.action_space.seed(0)
            for step in range(steps):
                if over:
                    seen, info = env.reset(seed=step)
                action = replace_invalid(env.action_space.sample(), env.action_space, seen, info)
                seen, reward, terminated, truncated, info = env.step(action)
                for name, values in goals.items():
                    values[step] = np.array(observation_of(seen)[name], dtype).reshape(sizes)
                rewards[step], ends[step] = np.asarray(reward).item(), np.asarray(terminated).item()
                over = bool(np.any(terminated) or np.any(truncated))
        except Exception as error:
            why = f"failed before the run: {described(error)}"
            name = f"env.name={self._name}"
            raise InputError.about(name, why, TRACEBACK, code="environment", key="env") from error
        return goals[ACHIEVED], goals[DESIRED], rewards, ends


def _close(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return, for each pair of values, whether they are equal up to rounding."""
    return np.isclose(values, others, rtol=0, atol=TOLERANCE * (np.abs(others).max() + TOLERANCE))
