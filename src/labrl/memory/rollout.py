"""Rollouts: what one policy has just played, the advantages over it, and minibatches of it.

A `Rollout` is `horizon` steps of every environment, `Episodes` are a number of whole episodes. Agents use
both alike: `add_choice` and `add_outcome` in each step; once it is `full`, `set_values`,
`advantages`, `batch` and `clear`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.errors import InputError, LabrlError
from labrl.spaces import array_dtype
from labrl.workspace import gigabytes, memory_available

if TYPE_CHECKING:
    from labrl.step import Masks, States, Step

STACK = 4
"""Frames of a stack that is packed: four bytes of a pixel are compared and shifted as one integer."""


def generalized_advantages(
    reward: NDArray,
    value: NDArray,
    next_value: NDArray,
    terminated: NDArray,
    episode_over: NDArray,
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float32]:
    """Generalized advantage estimation (Schulman et al., 2016, arXiv:1506.02438, eq. 16).

    All arrays are [horizon, num_envs]. `next_value` is the value of the state that the step led to: for
    an episode cut by a time limit that is its true final observation. The bootstrap stops at
    termination only; the sum of errors stops wherever the next row is not the successor state, and at
    a lost life, which ends the problem the learner sees.
    """
    advantage = (reward + gamma * next_value * ~terminated - value).astype(np.float32, copy=False)
    decay = np.float32(gamma * gae_lambda) * ~(terminated | episode_over)
    for t in range(len(advantage) - 2, -1, -1):  # A_t = error_t + decay_t A_{t+1}
        advantage[t] += decay[t] * advantage[t + 1]
    return advantage


def check_room(horizon: int, space: gym.Space[Any], num_envs: int) -> None:
    """Raise InputError where memory has no room for the observations of a rollout; space: of one."""
    needed = horizon * num_envs * math.prod(space.shape or ()) * array_dtype(space).itemsize
    available = memory_available()
    if available is not None and needed > available:
        raise InputError(
            f"agent.horizon={horizon} x env.num_envs={num_envs}: the observations of a rollout need "
            f"{gigabytes(needed)} GB of memory, {gigabytes(available)} GB are available. Set "
            f"agent.horizon to {max(horizon * available // needed, 1)} or less, or env.num_envs lower.",
            code="resources",
            key="agent.horizon",
        )


def nearest_divisor(number: int, wanted: int, unit: int) -> int:
    """Return the divisor of `number`, a multiple of `unit`, that is nearest to `wanted`; the smaller of
    two."""
    number //= unit
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    divisors = small + [number // divisor for divisor in reversed(small)]
    return unit * min(divisors, key=lambda divisor: abs(unit * divisor - wanted))


def check_minibatches(horizon: int, batch_size: int, env: Any, unit: int = 1) -> None:
    """Raise InputError unless minibatches divide the rollout.

    env: the `env` group; unit: steps that a minibatch holds a multiple of.
    """
    rollout = horizon * env.num_envs
    if rollout % batch_size:
        raise InputError(
            f"agent.batch_size must divide the rollout of {rollout} steps (agent.horizon="
            f"{horizon} x env.num_envs={env.num_envs}), got {batch_size}. The nearest "
            f"value that does is agent.batch_size={nearest_divisor(rollout, batch_size, unit)}.",
            code="contradiction",
            key="agent.batch_size",
        )


def check_budget(horizon: int, env: Any) -> None:
    """Raise InputError if training would end before the first update. env: the `env` group."""
    rollout = horizon * env.num_envs
    if env.max_frame < rollout:
        raise InputError(
            f"env.max_frame must be at least one rollout of {rollout} frames (agent.horizon={horizon} x "
            f"env.num_envs={env.num_envs}), got {env.max_frame}. Set env.max_frame={rollout} or a smaller "
            "agent.horizon.",
            code="contradiction",
            key="env.max_frame",
        )


class Pieces(NamedTuple):
    """Sequences of steps, cut where an episode ends inside them: rows of a batch, piece after piece."""

    lengths: NDArray[np.int64]
    """Steps of each piece, >= 1. [pieces]"""
    first: NDArray[np.int64]
    """The piece that each sequence begins with. [sequences]"""
    carried: NDArray[np.bool_]
    """Whether a sequence begins in the middle of an episode. [sequences]"""

    @classmethod
    def of(cls, start: NDArray[np.bool_]) -> Pieces:
        """start: whether a step is the first of its episode. [sequences, length]"""
        return cls.of_rows(start.ravel(), np.arange(len(start) + 1) * start.shape[1])

    @classmethod
    def of_rows(cls, start: NDArray[np.bool_], begin: NDArray[np.int64]) -> Pieces:
        """Sequences of any lengths, one after the other.

        start: whether a row is the first of its episode [rows]; begin: the row that each sequence begins
        with, and the number of rows [sequences + 1].
        """
        begins = start.copy()
        begins[begin[:-1]] = True
        rows = np.flatnonzero(begins)
        return cls(np.diff(rows, append=len(start)), np.searchsorted(rows, begin[:-1]), ~start[begin[:-1]])

    @property
    def last(self) -> NDArray[np.int64]:
        """The piece that each sequence ends with. [sequences]"""
        return np.append(self.first[1:], len(self.lengths)) - 1

    def states(self, state: Tensor) -> Tensor:
        """The state before each piece: that before its sequence, or a fresh one, which is 0.

        state: [sequences, state_size]. Returns [pieces, state_size].
        """
        states = state.new_zeros((len(self.lengths), state.shape[1]))
        carried = torch.from_numpy(self.carried).to(state.device)
        states[torch.from_numpy(self.first).to(state.device)] = state * carried.unsqueeze(1)
        return states


def forgotten(state: NDArray | None, start: NDArray[np.bool_], state_size: int) -> NDArray:
    """Return the recurrent state where episodes continue, and 0 where they begin. [num_envs, state_size]

    state: None before there is any; of another number of environments it is none either.
    """
    if state is None or len(state) != len(start):
        return np.zeros((len(start), state_size), np.float32)
    return np.where(start[:, None], np.float32(0), state)


@dataclass(slots=True)
class Minibatch:
    """Rows of a rollout to learn from, or whole sequences of them, one after the other.

    Its length counts what is independent of each other: the sequences, which are single rows unless the
    network is recurrent. Slices are taken by the same count.
    """

    observations: Tensor
    """Observations of which `observation` is a part. [n, *obs]"""
    rows: Tensor | None
    """Rows of `observations` in the minibatch, [batch]; None: all."""
    action: Tensor
    """[batch, *action]"""
    advantage: Tensor
    """[batch]"""
    value_target: Tensor
    """[batch]"""
    value: Tensor
    """Value of the network that acted. [batch]"""
    log_prob: Tensor
    """Log-probability of the action when it was drawn; 0 where nobody wants it. [batch]"""
    mask: Tensor | None
    """Valid actions; None where all always are. [batch, actions]"""
    sequence_length: int
    """Rows of a sequence."""
    state: Tensor
    """Recurrent state before each sequence, of size 0 without one. [sequences, state_size]"""
    start: NDArray[np.bool_]
    """Whether a row that is not the first of its sequence is the first of its episode. [sequences, length]"""

    @property
    def observation(self) -> Tensor:
        """Observations that were acted on, [batch, *obs], gathered on access: each worker gathers its own."""
        if self.rows is None:
            return self.observations
        # The same as by brackets, which look up each element: of images in a seventh of the time.
        return self.observations.index_select(0, self.rows)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.state)

    def __getitem__(self, which: slice) -> Minibatch:
        """Return some sequences."""
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
        """Yield one epoch: the sequences in the order given, `size` rows at a time.

        order: a permutation [sequences], on the processor; size: a multiple of `sequence_length` that divides
        the rows; std_mean: where given, advantages are normalized within each minibatch by the deviation and
        mean, [minibatches, 1] each, that it returns for [minibatches, size].

        All but the observations is gathered at once, which is cheaper than many small look-ups.
        """
        device, length = self.action.device, self.sequence_length
        rows = order if length == 1 else (order.unsqueeze(1) * length + torch.arange(length)).flatten()
        rows, count = rows.to(device), size // length
        small = torch.stack((self.advantage, self.value_target, self.value, self.log_prob))
        columns = small.index_select(1, rows)
        if std_mean is not None:
            advantage = columns[0].view(-1, size)
            std, mean = std_mean(advantage)
            advantage.sub_(mean).div_(std + 1e-8)
        seen = (rows if self.rows is None else self.rows[rows]).split(size)
        action = self.action.index_select(0, rows).split(size)
        mask = None if self.mask is None else self.mask.index_select(0, rows).split(size)
        state, start = self.state[order.to(device)].split(count), self.start[order.numpy()]
        for part, of_part in enumerate(columns.split(size, dim=1)):
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


class Cut(NamedTuple):
    """The last state of a truncated episode: whose value is needed, and which is in no row."""

    t: int
    """Step of the rollout that led to it."""
    env: int
    observation: NDArray
    """Observation as the network reads it. [*obs]"""
    mask: Masks
    """Valid actions in it; None where all always are. [actions]"""
    state: States
    """Recurrent state before the observation, of size 0 without one. [state_size]"""


class Rollout:
    """Fixed arrays `[horizon, num_envs, ...]` that are filled step by step and then read as one batch.

    They are read sequence after sequence: `sequence_length` steps of one environment in their order. All
    environments' first sequences come before all their second ones.
    """

    def __init__(self, horizon: int, num_envs: int, *, sequence_length: int = 1, state_size: int = 0) -> None:
        """sequence_length: divides the horizon; state_size: of a recurrent network, 0 without one. The shapes
        and types of all else are those of the first choice that is stored."""
        self.horizon, self.num_envs, self.sequence_length = horizon, num_envs, sequence_length
        shape = (horizon, num_envs)
        self._arrays: dict[str, NDArray] = {
            "value": np.zeros(shape, np.float32),
            "reward": np.zeros(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "episode_over": np.zeros(shape, np.bool_),
        }
        self._state = np.zeros((horizon // sequence_length, num_envs, state_size), np.float32)
        self.cuts: list[Cut] = []
        self.t = 0
        """Steps stored so far."""

    def __getitem__(self, name: str) -> NDArray:
        """Return one of the arrays, [horizon, num_envs, ...]."""
        return self._arrays[name]

    @property
    def full(self) -> bool:
        """Whether there is enough to learn from: all rows are filled."""
        return self.t == self.horizon

    def add_choice(
        self,
        observation: NDArray,
        action: NDArray,
        parameters: NDArray | None = None,
        value: NDArray | float = 0.0,
        mask: Masks = None,
        state: States = None,
    ) -> None:
        """Store what the agent saw and did at step t; the outcome follows by `add_outcome`.

        observation: as the network reads it; parameters, value: what it gave, where that is of use; mask:
        which actions were valid, where there are masks; state: before the observation, where the network is
        recurrent. [num_envs, ...] each
        """
        arrays, t = self._arrays, self.t
        if "observation" not in arrays:
            self._make_arrays(observation=observation, action=action, parameters=parameters, mask=mask)
        arrays["observation"][t] = observation
        arrays["action"][t] = action
        arrays["value"][t] = value
        if parameters is not None:
            arrays["parameters"][t] = parameters
        if mask is not None:
            arrays["mask"][t] = mask
        if state is not None and self._state.size and t % self.sequence_length == 0:
            self._state[t // self.sequence_length] = state

    def _make_arrays(self, **rows: NDArray | None) -> None:
        """Allocate the arrays of which these are rows, [num_envs, ...] each; None: there is none of them."""
        for name, row in rows.items():
            if row is not None:
                dtype = np.dtype(np.float32) if row.dtype == np.float64 else row.dtype
                self._arrays[name] = np.zeros((self.horizon, *row.shape), dtype)

    def add_outcome(
        self, step: Step, layout: Callable[[NDArray], NDArray] = np.asarray, state: States = None
    ) -> None:
        """Store the outcome of step t; the rollout moves on to t + 1.

        layout: of the network, for the last observations of truncated episodes; state: recurrent state after
        step t, where the network is recurrent. [num_envs, state_size]
        """
        if step.truncated.any():
            final, masks = layout(step.next_observation), step.next_mask
            for env in map(int, np.flatnonzero(step.truncated & ~step.terminated)):
                mask = None if masks is None else masks[env].copy()
                after = None if state is None else state[env].copy()
                self.cuts.append(Cut(self.t, env, final[env].copy(), mask, after))
        self._arrays["reward"][self.t] = step.reward
        self._arrays["terminated"][self.t] = step.terminated
        self._arrays["episode_over"][self.t] = step.episode_over
        self.t += 1

    def beyond(self, observation: NDArray, state: NDArray) -> tuple[NDArray, NDArray]:
        """Return the states whose values `advantages` needs: those after the last row, then those of `cuts`.

        observation, state: what the last row led to, as the network reads it, and the recurrent state there,
        of size 0 without one [num_envs, ...]. Returns observations and recurrent states, [n, ...] each.
        """
        if not self.cuts:
            return observation, state
        finals = [cut.observation for cut in self.cuts]
        states = [cut.state for cut in self.cuts if cut.state is not None]
        return np.concatenate([observation, finals]), np.concatenate([state, states])

    def set_values(self, value: NDArray) -> None:
        """Fill in the values of all rows that are learned from, in the order of `rows`. [n]"""
        shape = (-1, self.num_envs, self.sequence_length)
        self._arrays["value"][:] = value.reshape(shape).swapaxes(1, 2).reshape(self.horizon, self.num_envs)

    def advantages(self, beyond: NDArray, gamma: float, gae_lambda: float) -> NDArray[np.float32]:
        """Return advantages of a full rollout whose values are filled in, in the order of `rows`. [n]

        beyond: values of the states of `beyond`.
        """
        arrays, t = self._arrays, self.t
        reward, value = arrays["reward"][:t], arrays["value"][:t]
        terminated, episode_over = arrays["terminated"][:t], arrays["episode_over"][:t]
        next_value = np.empty_like(value)
        next_value[:-1], next_value[-1] = value[1:], beyond[: self.num_envs]
        for cut, final in zip(self.cuts, beyond[self.num_envs :], strict=True):
            next_value[cut.t, cut.env] = final
        return self.rows(
            generalized_advantages(reward, value, next_value, terminated, episode_over, gamma, gae_lambda)
        )

    def batch(
        self, advantage: NDArray, log_prob: Tensor | None, device: torch.device | str = "cpu"
    ) -> Minibatch:
        """Return all rows of a full rollout that are learned from, as one minibatch on a device.

        advantage: as `advantages` returns them; log_prob: of the actions, in the order of `rows`, None where
        nobody wants them. [n] each
        """
        value, length = self.rows("value"), self.sequence_length
        mask = self.rows("mask") if "mask" in self._arrays else None
        # One array for all: what is read of them later is read together.
        small = np.zeros((4, len(value)), np.float32)
        small[0], small[2] = advantage, value
        np.add(advantage, value, out=small[1])
        if log_prob is not None:
            small[3] = log_prob.numpy()
        columns = torch.from_numpy(small).to(device).unbind()
        over = self.rows("episode_over").reshape(-1, length)
        start = np.zeros_like(over)
        start[:, 1:] = over[:, :-1]
        return Minibatch(
            observations=torch.from_numpy(self.rows("observation")).to(device),
            rows=None,
            action=torch.from_numpy(self.rows("action")).to(device),
            advantage=columns[0],
            value_target=columns[1],
            value=columns[2],
            log_prob=columns[3],
            mask=None if mask is None else torch.from_numpy(mask).to(device),
            sequence_length=length,
            state=torch.from_numpy(self._state.reshape(len(over), self._state.shape[2])).to(device),
            # At the first row of a sequence the state is 0 where an episode begins.
            start=start,
        )

    @property
    def masks(self) -> Masks:
        """Return the valid actions in the rows that are learned from; None where all always are. [n, ...]"""
        return self.rows("mask") if "mask" in self._arrays else None

    def clear(self) -> None:
        """Begin the next rollout."""
        self.t = 0
        self.cuts.clear()

    def rows(self, which: str | NDArray) -> NDArray:
        """Return the rows that are learned from, sequence after sequence. [n, ...]

        which: name of an array, or another one, [horizon, num_envs, ...].
        """
        array = self._arrays[which] if isinstance(which, str) else which
        if self.sequence_length == 1:
            return array.reshape(-1, *array.shape[2:])
        parts = array.reshape(-1, self.sequence_length, *array.shape[1:])  # sequences of each, length, ...
        return parts.swapaxes(1, 2).reshape(-1, *array.shape[2:])

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the rows that are filled; of stacked frames each frame once."""
        arrays = {name: array[: self.t] for name, array in self._arrays.items()}
        begun = -(-self.t // self.sequence_length) if self._state.size else 0
        return {
            "t": self.t,
            "observation": pack_stacks(arrays.pop("observation")) if "observation" in arrays else None,
            "arrays": {name: array.copy() for name, array in arrays.items()},
            "cuts": [list(cut) for cut in self.cuts],
            "state": self._state[:begun].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the middle of a rollout."""
        self.t = int(state["t"])
        packed = state["observation"]
        saved = {} if packed is None else {"observation": unpack_stacks(packed)}
        for name, rows in {**saved, **state["arrays"]}.items():
            if name not in self._arrays:
                self._arrays[name] = np.zeros((self.horizon, *rows.shape[1:]), rows.dtype)
            self._arrays[name][: self.t] = rows
        self.cuts = [Cut(*cut) for cut in state["cuts"]]
        self._state[: len(state["state"])] = state["state"]


class Episodes(Rollout):
    """Whole episodes: collects until `count` have ended; what is still under way stays for the next time.

    A lost life ends an episode as the learner sees it. Memory grows with the longest episode. Rows are read
    environment after environment.
    """

    FIRST_ROWS = 128
    """Vector steps for which there is room at first."""

    def __init__(self, count: int, num_envs: int) -> None:
        """count: of episodes over all environments."""
        super().__init__(self.FIRST_ROWS, num_envs)
        self._count, self._ended = count, 0
        self._first = np.zeros(self.num_envs, np.int64)  # rows that no update has used begin here [num_envs]
        self._end = np.zeros(self.num_envs, np.int64)  # the last episode that has ended, ends here [num_envs]

    @property
    def full(self) -> bool:
        """Whether there is enough to learn from: so many episodes have ended."""
        return self._ended >= self._count

    def add_choice(self, observation: NDArray, *choice: Any, **state: Any) -> None:
        """Store what the agent saw and did, as a Rollout, after making room."""
        self._make_room(self.t + 1)
        super().add_choice(observation, *choice, **state)

    def add_outcome(
        self, step: Step, layout: Callable[[NDArray], NDArray] = np.asarray, state: States = None
    ) -> None:
        """Store the outcome of step t, as a Rollout, and count the episodes that it ends."""
        super().add_outcome(step, layout, state)
        ended = step.terminated | step.episode_over
        self._end[ended] = self.t
        self._ended += int(ended.sum())

    def set_values(self, value: NDArray) -> None:
        """Fill in the values of all rows that are learned from, in the order of `rows`. [n]"""
        self._arrays["value"][: self.t].swapaxes(0, 1)[self._whole().T] = value

    def clear(self) -> None:
        """Forget the episodes that have ended, and keep the beginnings of the others."""
        self._first[:] = self._end
        gone = int(self._first.min())
        if gone:
            for array in self._arrays.values():
                array[: self.t - gone] = array[gone : self.t].copy()
        left = self.t - gone
        super().clear()  # a cut ends an episode, so all have been used
        self.t = left
        self._first -= gone
        self._end -= gone
        self._ended = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the rows that are there, and which of them are whole episodes."""
        own = {"ended": self._ended, "first": self._first.copy(), "end": self._end.copy()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the middle of episodes."""
        self._make_room(int(state["t"]))
        super().load_state_dict(state)
        self._ended = int(state["ended"])
        self._first[:] = state["first"]
        self._end[:] = state["end"]

    def _whole(self) -> NDArray[np.bool_]:
        """Return which rows are of episodes that have ended. [t, num_envs]"""
        row = np.arange(self.t)[:, None]
        return (row >= self._first) & (row < self._end)

    def rows(self, which: str | NDArray) -> NDArray:
        """Return the rows that are learned from, one environment's steps in order, then the next one's."""
        array = self._arrays[which] if isinstance(which, str) else which
        return array[: self.t].swapaxes(0, 1)[self._whole().T]

    def _make_room(self, rows: int) -> None:
        """Raise LabrlError before the system would end the process."""
        while self.horizon < rows:
            more, free = sum(array.nbytes for array in self._arrays.values()), memory_available()
            if free is not None and more > free:
                raise LabrlError(
                    f"agent.episodes: storing {self.num_envs} episodes of up to {self.t:,} steps needs "
                    f"{more / 2**30:.1f} GB more, and {free / 2**30:.1f} GB are free: learn from a fixed "
                    "number of steps (agent.horizon) instead of whole episodes, or set env.num_envs lower",
                    code="resources",
                    key="agent.episodes",
                )
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate([array, np.zeros_like(array)])
            self.horizon *= 2


def pack_stacks(rows: NDArray) -> dict[str, NDArray]:
    """Pack consecutive observations of several environments, frames stored once where they are stacks.

    rows: [steps, num_envs, *obs]. Stacks of four frames of bytes, the newest last and along the last axis,
    shrink to nearly a quarter; what is no stack, or begins a new one, is kept whole. `unpack_stacks` gives
    back the same rows, whatever they held.
    """
    is_stack = rows.dtype == np.uint8 and rows.ndim == 5 and rows.shape[-1] == STACK
    if not is_stack or len(rows) == 0 or sys.byteorder != "little":
        return {"whole": rows.copy()}
    pixels = rows.view(np.uint32)[..., 0]  # [steps, num_envs, height, width]
    follows = np.zeros(rows.shape[:2], np.bool_)
    kept, shifted = np.empty_like(pixels[0]), np.empty_like(pixels[0])
    same = np.empty(kept.shape, np.bool_)
    for t in range(1, len(rows)):
        # The three older frames of this stack against the three newer ones of the stack before.
        np.bitwise_and(pixels[t], 0x00FFFFFF, out=kept)
        np.right_shift(pixels[t - 1], 8, out=shifted)
        np.equal(kept, shifted, out=same)
        follows[t] = same.all(axis=(1, 2))
    return {"newest": rows[follows][..., -1].copy(), "whole": rows[~follows], "follows": follows}


def unpack_stacks(packed: Mapping[str, Any]) -> NDArray:
    """Return the rows that `pack_stacks` was given, [steps, num_envs, *obs]."""
    whole = np.asarray(packed["whole"])
    if "follows" not in packed:
        return whole
    follows = np.asarray(packed["follows"])
    rows = np.empty((*follows.shape, *whole.shape[1:]), np.uint8)
    rows[~follows] = whole
    rows[follows, ..., -1] = packed["newest"]
    for t in range(1, len(rows)):
        rows[t, follows[t], ..., :-1] = rows[t - 1, follows[t], ..., 1:]
    return rows
