"""Columns of a training row on how often each discrete action was taken lately."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

WINDOW = 1000
"""Frames over which shares are counted: the latest, rounded up to whole vector steps."""
MOST = 32
"""Actions up to which each has a column of its own."""


def action_shares(latest: NDArray, space: gym.Space[Any]) -> dict[str, float]:
    """Return the share of each action, and that of the most frequent one; nan before the first step.

    latest: the actions that are counted, `ActionRecord.latest`, [steps, num_envs, *action]. A space of some
    choices (MultiDiscrete) or switches (MultiBinary) counts each by itself; real numbers have no columns.
    `action_share/<action>`, or `action_share/<choice>/<value>` of several choices, in spaces of at most MOST
    actions altogether. `action_top_share`: 1 where a policy has collapsed to one action; of several choices,
    that of the choice where it is largest.
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
    """Return the first value and the number of values of each choice that an action consists of.

    Empty for a space of real numbers.
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
