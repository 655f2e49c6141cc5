"""Columns of a training row with the shares of the discrete actions taken recently."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

WINDOW = 1000
"""Number of latest frames over which shares are counted, rounded up to whole vector steps."""
MOST = 32
"""Largest number of actions for which each has a column of its own."""


def action_shares(latest: NDArray, space: gym.Space[Any]) -> dict[str, float]:
    """Return the share of each action and the largest share; nan before the first step.

    latest: the actions to count, `ActionRecord.latest`, [steps, num_envs, *action]. Each component of a
    MultiDiscrete or MultiBinary action is counted separately; real-valued actions have no columns.
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
    return columns if len(latest) else dict.fromkeys(columns, math.nan)


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
