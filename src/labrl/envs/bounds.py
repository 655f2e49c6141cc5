"""Warnings about observations outside the bounds of their space, which nothing else checks.

Bounds matter because networks scale bytes by them, and because a value outside them is often a mistake in the
units. They do not end a run, because many environments exceed theirs slightly and on purpose.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from labrl.spaces import range_of

_log = logging.getLogger(__name__)

OTHERS = ("gymnasium", "ale_py", "labrl")
"""Packages whose environments are not checked. Some of their environments exceed bounds that nobody will
change."""

STEPS = 64
"""Number of vector steps at the start that are all checked. Later, the steps between two checks increase by a
factor of 1 + 1 / STEPS, so that a million steps have 700 checks."""

TOLERANCE = 1e-3
"""Distance from a bound that rounding may cause, relative to the distance between the bounds."""


class BoundsCheck:
    """Compare the observations of some steps with the bounds of their Boxes, and log at most one warning of
    each kind."""

    def __init__(self, space: Space[Any], name: str) -> None:
        """space: flat space of one environment; name: name of the environment in messages."""
        inputs = space.spaces if isinstance(space, Dict) else {"": space}
        boxes = {key: box for key, box in inputs.items() if isinstance(box, Box)}
        self._name, self._boxes, self._checks = name, boxes, 0
        self._limits = {key: limits for key, box in boxes.items() if (limits := _limits(box)) is not None}
        """Least and greatest value that give no warning, [*obs] each, for inputs with a bound."""
        self._dark = {key: 0 for key, box in boxes.items() if range_of(box) == 255.0}
        """Greatest value so far of inputs of bytes that networks divide by 255."""
        self.due = 0.0
        """Vector step of the next check."""
        self._schedule(0)

    def check(self, observation: NDArray, step: int, lengths: NDArray[np.int64]) -> None:
        """Check the observations of a vector step.

        observation: [num_envs, *obs]; step: number of vector steps so far; lengths: number of steps of each
        environment's episode, [num_envs].
        """
        for key, (low, high) in self._limits.items():
            values = observation[key] if key else observation
            beyond = (values < low) | (values > high)
            # VectorEnv warns of infinite values.
            if np.count_nonzero(beyond) and np.count_nonzero(beyond := beyond & np.isfinite(values)):
                self._warn_of_bounds(key, values, np.argwhere(beyond)[0], lengths)
                break
        self._checks += 1
        for key in self._dark:
            self._dark[key] = max(self._dark[key], int((observation[key] if key else observation).max()))
        self._dark = {key: greatest for key, greatest in self._dark.items() if greatest <= 1}
        if self._dark and self._checks > STEPS:
            self._warn_of_darkness(next(iter(self._dark)))
        self._schedule(step)

    def _schedule(self, step: int) -> None:
        self.due = step + max(1, step // STEPS) if self._limits or self._dark else inf

    def _warn_of_bounds(self, key: str, values: NDArray, place: NDArray, lengths: NDArray[np.int64]) -> None:
        """place: index in `values` of a value outside the bounds, [1 + dimensions]."""
        self._limits = {}
        env, *index = map(int, place)
        box = self._boxes[key]
        when = f"after step {lengths[env]} of its episode" if lengths[env] else "after its reset"
        _log.warning(
            "%s: %s%s of environment %d is %g %s, but the bounds of its space are %g and %g. labrl does not "
            "clip it. Correct the values or, if they are intended, the bounds (low and high of the Box). "
            "Further values outside bounds are not reported",
            self._name,
            _called(key),
            index or "",
            env,
            values[tuple(place)],
            when,
            box.low[tuple(index)],
            box.high[tuple(index)],
        )

    def _warn_of_darkness(self, key: str) -> None:
        self._dark = {}
        _log.warning(
            "%s: all values of %s were 0 or 1 in the first %d steps, but the bounds of its space are 0 and "
            "255, so networks divide these bytes by 255. If they come from an image with values from 0 to 1, "
            "multiply it by 255 before it is converted to uint8. If they are flags, declare high=1",
            self._name,
            _called(key),
            STEPS,
        )


def declares_own_bounds(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether the bounds of an environment's observations come from someone's own code, in the
    environment or in a wrapper, and not from Gymnasium or the ALE."""
    while isinstance(env, gymnasium.Wrapper):
        changes = isinstance(env, gymnasium.ObservationWrapper)
        if _is_own(env) and (changes or env.observation_space != env.env.observation_space):
            return True
        env = env.env
    return _is_own(env)


def _is_own(part: object) -> bool:
    return type(part).__module__.partition(".")[0] not in OTHERS


def _called(key: str) -> str:
    return f"observation[{key!r}]" if key else "observation"


def _limits(box: Box) -> tuple[NDArray, NDArray] | None:
    """Return the least and the greatest value that need no warning, [*obs] each; None if none needs one."""
    low, high = box.low, box.high
    dtype: Any = low.dtype
    if dtype.kind in "iu":
        extremes = np.iinfo(dtype)
        return (low, high) if (low > extremes.min).any() or (high < extremes.max).any() else None
    if dtype.kind != "f" or not (np.isfinite(low).any() or np.isfinite(high).any()):
        return None
    with np.errstate(over="ignore"):
        width = np.subtract(high, low, dtype=np.float64)
        slack = [np.where(np.isfinite(width), width, np.maximum(np.abs(one), 1)) for one in (low, high)]
        return (
            (low - TOLERANCE * slack[0]).astype(dtype),
            (high + TOLERANCE * slack[1]).astype(dtype),
        )
