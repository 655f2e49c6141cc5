"""Storage of experience in rollouts and replay buffers, and the minibatches that losses read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """A minibatch of arrays or tensors. Derived dataclasses define the columns.

    The first column has one row for each sample; every other column has one or several rows for each sample.
    A column may be None.
    """

    place: ClassVar[int] = 0
    """Address of the data that this minibatch shares with other minibatches; 0 if it shares no data, as
    here."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns that are tensors, by name."""
        return {name: column for name, column in vars(self).items() if isinstance(column, Tensor)}

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(next(iter(vars(self).values())))

    def __getitem__(self, samples: slice) -> Self:
        """Return the minibatch of a slice of the samples."""
        columns, count = dict(vars(self)), len(self)
        begin, end, _ = samples.indices(count)
        for name, column in columns.items():
            if column is not None:
                rows = len(column) // count  # rows of each sample
                columns[name] = column[begin * rows : end * rows]
        return type(self)(**columns)


@dataclass(frozen=True)
class Transitions(Columns):
    """A minibatch of transitions, each n steps long, or shorter if an episode or a life ended earlier.

    A replay buffer samples arrays, and `as_tensors` converts them for a loss. Read only: `observation` and
    `next_observation` may share the frames that both contain.
    """

    observation: Any
    """Observations before the first step of each window. [batch, *obs]"""
    action: Any
    """Actions of the first step of each window. [batch, *action]"""
    reward: Any
    """Discounted sum of the rewards over the window. [batch]"""
    next_observation: Any
    """State at the end of the window; the true final state if an episode was truncated there. [batch, *obs]
    """
    discount: Any
    """Factor that multiplies the value of `next_observation`: gamma^k after k steps, 0 after a termination.
    [batch]"""
    weight: Any
    """Importance weights, at most 1; all 1 if sampling is uniform. [batch]"""
    index: NDArray[np.int64]
    """Indices that identify the transitions for `update_priorities`. [batch]"""
    mask: Any = None
    """Valid actions; None if all are always valid. [batch, actions]"""
    next_mask: Any = None
    """Valid actions in `next_observation`; meaningless where `discount` is 0. [batch, actions]"""
    noise: Any = None
    """Random numbers with which a loss samples actions, [batch, ...]; None if the loss samples no actions."""

    def with_noise(self, noise: Tensor) -> Transitions:
        """Return the same transitions with `noise`."""
        return Transitions(**{**vars(self), "noise": noise})

    def as_tensors(self, learner: Any, layout: Callable[[Any], Any]) -> Transitions:
        """Return the transitions as tensors on the device of a `Learner`, except `index`.

        layout: converts observations to the layout of the learner's network.
        """
        columns, frames = dict(vars(self)), self.observation.base
        if not learner.waits and frames is not None and frames is self.next_observation.base:
            # Move frames that both observations share to the GPU only once.
            moved, stack = learner.tensor(frames), self.observation.shape[1]
            columns["observation"] = moved[:, :stack]
            columns["next_observation"] = moved[:, -stack:]
        for name in ("observation", "next_observation"):
            columns[name] = layout(columns[name])
        arrays = {n: each for n, each in columns.items() if n != "index" and type(each) is np.ndarray}
        return Transitions(**{**columns, **learner.tensors(arrays)})


@dataclass(slots=True)
class Minibatch:
    """Rows of a rollout to learn from, sequence after sequence.

    Its length is the number of sequences, which are single rows unless the network is recurrent. Slices
    select sequences.
    """

    observations: Tensor
    """Observations of the rollout, which include `observation`. [n, *obs]"""
    rows: Tensor | None
    """Indices of the minibatch's rows in `observations`, [batch]; None for all rows."""
    action: Tensor
    """Actions in the rows. [batch, *action]"""
    advantage: Tensor
    """Advantages of the actions. [batch]"""
    value_target: Tensor
    """Targets for the values of the states. [batch]"""
    value: Tensor
    """Value that the network computed when it acted. [batch]"""
    log_prob: Tensor
    """Log-probability of the action when it was sampled; 0 if log-probabilities were not requested. [batch]
    """
    mask: Tensor | None
    """Valid actions; None if all are always valid. [batch, actions]"""
    sequence_length: int
    """Number of rows in each sequence."""
    state: Tensor
    """Recurrent state before each sequence, of size 0 if the network is not recurrent. [sequences,
    state_size]"""
    start: NDArray[np.bool_]
    """Whether each row, except the first of its sequence, is the first of its episode. [sequences, length]"""

    @property
    def observation(self) -> Tensor:
        """Observations of the rows, gathered at each access, by each worker for itself. [batch, *obs]"""
        if self.rows is None:
            return self.observations
        # For images, index_select takes a seventh of the time of indexing with brackets.
        return self.observations.index_select(0, self.rows)

    @property
    def place(self) -> int:
        """Address of `observations`, which all minibatches of all rollouts have in common."""
        return self.observations.data_ptr()

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns that differ between minibatches, by name."""
        columns = {
            "rows": self.rows,
            "action": self.action,
            "advantage": self.advantage,
            "value_target": self.value_target,
            "value": self.value,
            "log_prob": self.log_prob,
            "mask": self.mask,
            "state": self.state,
        }
        return {name: column for name, column in columns.items() if column is not None}

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.state)

    def __getitem__(self, which: slice) -> Minibatch:
        """Return the minibatch of a slice of the sequences."""
        begin, end, _ = which.indices(len(self))
        if end - begin == len(self):
            return self
        rows = slice(begin * self.sequence_length, end * self.sequence_length)
        return Minibatch(
            observations=self.observations[rows] if self.rows is None else self.observations,
            rows=None if self.rows is None else self.rows[rows],
            action=self.action[rows],
            advantage=self.advantage[rows],
            value_target=self.value_target[rows],
            value=self.value[rows],
            log_prob=self.log_prob[rows],
            mask=None if self.mask is None else self.mask[rows],
            sequence_length=self.sequence_length,
            state=self.state[begin:end],
            start=self.start[begin:end],
        )

    def minibatches(
        self, order: Tensor, size: int, std_mean: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    ) -> Iterator[Minibatch]:
        """Yield the minibatches of one epoch, with the sequences in the given order.

        order: permutation of the sequences on the CPU, [sequences]; size: number of rows in a minibatch, a
        multiple of `sequence_length` that divides the number of rows; std_mean: function that maps
        advantages, [minibatches, size], to the standard deviations and means, [minibatches, 1] each, with
        which the advantages of each minibatch are normalized, None for no normalization. Everything except
        the observations is gathered at once, which is faster than many small look-ups.
        """
        device, length = self.action.device, self.sequence_length
        rows = order if length == 1 else (order.unsqueeze(1) * length + torch.arange(length)).flatten()
        rows, count, number = rows.to(device), size // length, len(rows) // size
        small = torch.stack((self.advantage, self.value_target, self.value, self.log_prob))
        columns = small.index_select(1, rows)
        if std_mean is not None:
            advantage = columns[0].view(-1, size)
            std, mean = std_mean(advantage)
            advantage.sub_(mean).div_(std + 1e-8)
        seen = (rows if self.rows is None else self.rows[rows]).chunk(number)
        action = self.action.index_select(0, rows).chunk(number)
        mask = None if self.mask is None else self.mask.index_select(0, rows).chunk(number)
        state, start = self.state[order.to(device)].chunk(number), self.start[order.numpy()]
        for part, of_part in enumerate(columns.chunk(number, dim=1)):
            advantage, value_target, value, log_prob = of_part.unbind()
            yield Minibatch(
                observations=self.observations,
                rows=seen[part],
                action=action[part],
                advantage=advantage,
                value_target=value_target,
                value=value,
                log_prob=log_prob,
                mask=None if mask is None else mask[part],
                sequence_length=length,
                state=state[part],
                start=start[part * count : (part + 1) * count],
            )
