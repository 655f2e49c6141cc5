"""What a rollout is made into before it is learned from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.networks.ranks import ALONE, Ranks


class Sequences(NamedTuple):
    """Rows that are learned from together: so many at a time are steps of one environment, in their order."""

    length: int
    """How many."""
    state: Tensor
    """Before the first step of each sequence, [n / length, state_size]."""
    start: NDArray[np.bool_]
    """Whether a row that is not the first of its sequence is that of its episode, [n / length, length]."""


class Batch(NamedTuple):
    """The steps of a rollout that are learned from, as one flat batch of n rows."""

    observation: Tensor
    """[n, *obs]"""
    action: Tensor
    """[n, *action]"""
    columns: Tensor
    """Advantage, value target, value and log-probability when acting, [n, 4]: one look-up for all."""
    mask: Tensor | None
    """Which actions were valid, [n, actions]; None where all always are."""
    sequences: Sequences | None = None
    """How the rows follow each other, where the network remembers."""

    def seen(self, rows: Tensor | slice) -> Tensor:
        """The observations of some rows. [len(rows), *obs]"""
        if isinstance(rows, slice):
            return self.observation[rows]
        # The same as by brackets, which look up each element: of images in a seventh of the time.
        return self.observation.index_select(0, rows)


def normalized(advantage: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """With mean 0 and deviation 1 over all ranks, as far as there are two. [n]"""
    if len(advantage) * ranks.size < 2:
        return advantage
    std, mean = torch.std_mean(advantage) if ranks.alone else ranks.std_mean(advantage.unsqueeze(0))
    return (advantage - mean) / (std + 1e-8)
