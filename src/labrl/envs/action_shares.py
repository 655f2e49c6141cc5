"""Columns of a training row on how often each discrete action was taken lately."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.envs.protocol import action_dtype

WINDOW = 1000
"""Frames over which shares are counted: the latest, rounded up to whole vector steps."""
MOST = 32
"""Actions up to which each has a column of its own."""


class ActionShares:
    """The latest actions in a space of choices; nothing is kept where actions are real numbers.

    A space of several choices (MultiDiscrete) or switches (MultiBinary) counts each by itself.
    """

    def __init__(self, num_envs: int, space: gym.Space[Any]) -> None:
        self._choices = choices(space)
        steps = -(-WINDOW // num_envs) if self._choices else 0
        self._latest = np.zeros((steps, num_envs, *(space.shape or ())), action_dtype(space))
        self._steps = 0

    def add(self, actions: NDArray) -> None:
        """Take in the actions of a vector step. [num_envs, *action]"""
        if self._choices:
            self._latest[self._steps % len(self._latest)] = actions
            self._steps += 1

    def metrics(self) -> dict[str, float]:
        """Return the share of each action, and that of the most frequent one; nan before the first step.

        `action_share/<action>`, or `action_share/<choice>/<value>` of several choices, in spaces of at most
        MOST actions altogether. `action_top_share`: 1 where a policy has collapsed to one action; of several
        choices, that of the choice where it is largest.
        """
        if not self._choices:
            return {}
        latest = self._latest[: self._steps].reshape(-1, len(self._choices))
        counted = sum(count for _, count in self._choices) <= MOST
        columns: dict[str, float] = {}
        top = 0.0
        for number, (first, count) in enumerate(self._choices):
            share = np.bincount(latest[:, number] - first, minlength=count) / max(len(latest), 1)
            top = max(top, float(share.max()))
            name = "action_share" if len(self._choices) == 1 else f"action_share/{number}"
            if counted:
                columns.update((f"{name}/{first + value}", float(share[value])) for value in range(count))
        columns["action_top_share"] = top
        return columns if self._steps else dict.fromkeys(columns, math.nan)

    @property
    def latest(self) -> NDArray:
        """The actions that are counted, the oldest first: all that is to be saved.

        [steps, num_envs, *action]
        """
        if self._steps <= len(self._latest):
            return self._latest[: self._steps].copy()
        return np.roll(self._latest, -(self._steps % len(self._latest)), axis=0)

    def load(self, latest: NDArray) -> None:
        """Continue with the actions that `latest` gave."""
        self._steps = len(latest)
        self._latest[: self._steps] = latest


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
