"""Columns of a training row with statistics of the actions taken recently."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.spaces import widths

WINDOW = 1000
"""Number of latest frames that the statistics cover, rounded up to whole vector steps."""
MOST = 32
"""Largest number of discrete actions, or of components of a real-valued one, that have columns of their
own."""
NEAR = 0.01
"""Distance from a bound, as a fraction of the range, up to which an action counts as at the bound."""


def action_statistics(latest: NDArray, space: gym.Space[Any]) -> dict[str, float]:
    """Return the shares of discrete actions, or mean and deviation of real-valued ones; nan without actions.

    latest: the actions, `ActionRecord.latest`, [steps, num_envs, *action].
    """
    columns = _moments(latest, space) if isinstance(space, gym.spaces.Box) else _shares(latest, space)
    return columns if len(latest) else dict.fromkeys(columns, math.nan)


def _shares(latest: NDArray, space: gym.Space[Any]) -> dict[str, float]:
    """Return the share of each action and the largest share.

    Each component of a MultiDiscrete or MultiBinary action is counted separately.
    `action_share/<action>`, or `action_share/<component>/<value>` if there are several components, exist in
    spaces with at most MOST values altogether. `action_top_share` is the largest share of any value of any
    component; 1 means that the policy has collapsed to a single action.
    """
    of_choices = choices(space)
    if not of_choices:
        return {}
    rows = latest.reshape(-1, len(of_choices))
    counted = sum(count for _, count in of_choices) <= MOST
    columns: dict[str, float] = {}
    top = 0.0
    for number, (first, count) in enumerate(of_choices):
        share = np.bincount(rows[:, number] - first, minlength=count) / max(len(rows), 1)
        top = max(top, float(share.max()))
        name = "action_share" if len(of_choices) == 1 else f"action_share/{number}"
        if counted:
            columns.update((f"{name}/{first + value}", float(share[value])) for value in range(count))
    columns["action_top_share"] = top
    return columns


def _moments(latest: NDArray, space: gym.spaces.Box) -> dict[str, float]:
    """Return mean and standard deviation of the actions, and the share of their components at a bound.

    `action_mean/<component>` and `action_std/<component>` are without a number if there is only one
    component, and averages over all if there are more than MOST. `action_bound_share` counts the components
    within NEAR of a bound, among those with more than one value; 1 means that all actions are extreme.
    """
    # Double precision, and one order in memory, so that sums are the same after a resume.
    rows = np.array(latest, np.float64, order="C").reshape(-1, math.prod(space.shape))
    if not len(rows):
        rows = np.full((1, rows.shape[1]), math.nan)
    columns: dict[str, float] = {}
    for name, values in (("action_mean", rows.mean(0)), ("action_std", rows.std(0))):
        if 1 < len(values) <= MOST:
            columns.update((f"{name}/{number}", float(value)) for number, value in enumerate(values))
        else:
            columns[name] = float(values.mean())
    width = widths(space).astype(np.float64).reshape(-1)
    near = np.where(np.isfinite(width), NEAR * width, 0)
    at_bound = (rows <= space.low.reshape(-1) + near) | (rows >= space.high.reshape(-1) - near)
    columns["action_bound_share"] = float(at_bound[:, width > 0].mean()) if width.any() else math.nan
    return columns


def choices(space: gym.Space[Any]) -> list[tuple[int, int]]:
    """Return the first value and the number of values of each discrete component of an action.

    Returns an empty list for real-valued actions.
    """
    if isinstance(space, gym.spaces.Discrete):
        return [(int(space.start), int(space.n))]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [
            (int(first), int(count)) for first, count in zip(space.start.flat, space.nvec.flat, strict=True)
        ]
    if isinstance(space, gym.spaces.MultiBinary):
        return [(0, 2)] * math.prod(space.shape)
    return []
