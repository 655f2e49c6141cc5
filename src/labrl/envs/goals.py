"""Rewards and terminations of goal environments for goals other than the one pursued."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space
from numpy.typing import NDArray

from labrl.envs.masks import observation_of, replace_invalid
from labrl.errors import InputError
from labrl.spaces import ACHIEVED, DESIRED, alike

_log = logging.getLogger(__name__)

STEPS = 50
"""Number of steps with which the methods of an environment are compared."""

TOLERANCE = 1e-3
"""Difference of rewards, relative to the largest, that rounding may cause."""


def has_goals(space: Space[Any]) -> bool:
    """Return whether observations contain a desired and an achieved goal."""
    return isinstance(space, Dict) and {ACHIEVED, DESIRED} <= space.spaces.keys()


class Recorded(NamedTuple):
    """Steps of an environment."""

    achieved: NDArray
    """[steps, *goal]"""
    desired: NDArray
    """[steps, *goal]"""
    given: dict[str, NDArray[np.float64]]
    """What `step` returned for each, by the method that must return the same. [steps] each"""


class GoalEnv:
    """Compute the rewards of goals with an environment that is lent, or with one made at the first use.

    The environment needs `compute_reward(achieved_goal, desired_goal, info)` and may have
    `compute_terminated(achieved_goal, desired_goal, info)`, as in Gymnasium-Robotics' `GoalEnv`. Both must
    depend only on the goals. They are called with batches if these give the same values as single goals.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        space: Space[Any],
        name: str,
        lend: Callable[[], gymnasium.Env[Any, Any] | None] = lambda: None,
    ) -> None:
        """make: makes an environment; space, name: its observation space and name; lend: returns an
        environment to use instead, which its owner closes, or None."""
        self._make, self._space, self._name, self._lend = make, space, name, lend
        self._env: gymnasium.Env[Any, Any] | None = None
        self._is_lent = False
        self._steps: Recorded | None = None
        self._in_batches: dict[str, bool] = {}

    def check(self) -> None:
        """Raise InputError unless the environment computes the rewards that its steps return.

        If only some of them differ, log a warning, because a reward may have a rare part without a goal.
        """
        if self._method("compute_reward") is None:
            raise self._refused(
                "needs a method compute_reward(achieved_goal, desired_goal, info)", "add the method"
            )
        achieved, desired = self._space[ACHIEVED], self._space[DESIRED]  # type: ignore[index]
        if not alike(achieved, desired):
            raise self._refused(
                f"needs goals of one kind, but {ACHIEVED} is {achieved} and {DESIRED} is {desired}",
                "make them alike in a wrapper",
            )
        steps = self._recorded()
        for method, given in steps.given.items():
            if self._method(method) is None:
                continue
            computed = self._asked(method, steps.achieved, steps.desired)
            differ = ~_close(computed, given)
            if not differ.any():
                continue
            row = int(differ.argmax())
            what = (
                f"needs {method} to return what step() returns, but in {np.count_nonzero(differ)} of "
                f"{len(given)} steps they differ ({computed[row]:g} and {given[row]:g} in step {row + 1})"
            )
            remedy = f"let both, through all wrappers, return the same (labrl calls {method} with info={{}})"
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
        """Close the environment if it was made here."""
        if self._env is not None and not self._is_lent:
            self._env.close()
        self._env = None

    def _refused(self, why: str, remedy: str) -> InputError:
        return InputError(
            f"agent.memory: hindsight in env.name={self._name} {why}. Set agent/memory=uniform, or {remedy}.",
            code="unsupported",
            key="agent.memory",
        )

    def _own(self) -> gymnasium.Env[Any, Any]:
        if self._env is None:
            lent = self._lend()
            self._env, self._is_lent = self._make() if lent is None else lent, lent is not None
        return self._env

    def _method(self, name: str) -> Any:
        """Return a method of the environment or of one of its wrappers, None if there is none."""
        env = self._own()
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None

    def _asked(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray[np.float64]:
        """Call a method with goals, [n, *goal] each. Returns [n]."""
        if method not in self._in_batches:
            self._in_batches[method] = self._takes_batches(method)
        ask = self._batch if self._in_batches[method] else self._singly
        return ask(method, achieved, desired)

    def _takes_batches(self, method: str) -> bool:
        """Return whether a batch of goals gives the same as each goal alone. Raises InputError if both fail.

        The number of goals differs from their sizes, because a function of a single goal would accept a batch
        of two goals as one of size two.
        """
        steps = self._recorded()
        alone = batch = error = None
        try:
            alone = self._singly(method, steps.achieved, steps.desired)
        except Exception as problem:  # a function of batches may fail in any way
            error = problem
        try:
            batch = self._batch(method, steps.achieved, steps.desired)
        except Exception:
            batch = None
        if batch is not None and batch.shape == (len(steps.achieved),):
            return alone is None or bool(_close(batch, alone).all())
        if error is not None:
            raise self._refused(
                f"calls {method}(achieved_goal, desired_goal, info) with info={{}}, and it fails: "
                f"{type(error).__name__}: {error}",
                "let it depend only on the goals and return one number",
            ) from error
        return False

    def _batch(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray[np.float64]:
        # Copies, because the environment may modify its arguments and return the same array again.
        return np.array(self._method(method)(achieved.copy(), desired.copy(), {}), np.float64)

    def _singly(self, method: str, achieved: NDArray, desired: NDArray) -> NDArray[np.float64]:
        function, pairs = self._method(method), zip(achieved.copy(), desired.copy(), strict=True)
        return np.array([np.asarray(function(*pair, {})).item() for pair in pairs], np.float64)

    def _recorded(self) -> Recorded:
        """Return random steps. Raises InputError if the environment fails."""
        if self._steps is None:
            try:
                self._steps = self._play()
            except Exception as error:
                raise InputError(
                    f"env.name={self._name} failed before the run: {type(error).__name__}: {error}",
                    code="environment",
                    key="env",
                ) from error
        return self._steps

    def _play(self) -> Recorded:
        goal = self._space[ACHIEVED]  # type: ignore[index]
        env: Any = self._own()
        env.action_space.seed(0)
        sizes, over = goal.shape or (), True
        steps = next(number for number in range(STEPS, 0, -1) if number not in sizes)
        goals: dict[str, list[NDArray]] = {ACHIEVED: [], DESIRED: []}
        rewards, ends = np.zeros(steps), np.zeros(steps)
        for step in range(steps):
            if over:
                seen, info = env.reset(seed=step)
            action = replace_invalid(env.action_space.sample(), env.action_space, seen, info)
            seen, reward, terminated, truncated, info = env.step(action)
            for name, values in goals.items():
                values.append(np.array(observation_of(seen)[name], goal.dtype).reshape(sizes))
            rewards[step], ends[step] = np.asarray(reward).item(), np.asarray(terminated).item()
            over = bool(np.any(terminated) or np.any(truncated))
        return Recorded(
            np.array(goals[ACHIEVED]),
            np.array(goals[DESIRED]),
            {"compute_reward": rewards, "compute_terminated": ends},
        )


def _close(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each pair whether it is equal up to rounding."""
    return np.isclose(values, others, rtol=0, atol=TOLERANCE * (np.abs(others).max() + TOLERANCE))
