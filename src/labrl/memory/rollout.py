"""Rollouts: the latest steps of one policy, their advantages, and minibatches of them.

A `Rollout` contains `horizon` steps of every environment; `Episodes` contains a set number of complete
episodes. Agents use both in the same way: they call `add_action` and `add_result` in each step, and once the
rollout is `full`, they call `set_values`, `advantages`, `batch` and `clear`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.errors import LabrlError
from labrl.memory import Minibatch
from labrl.spaces import stored_dtype

if TYPE_CHECKING:
    from labrl.step import Masks, States, Step

STACK = 4
"""Number of frames in a stack that can be packed. Each pixel's four bytes are processed as one integer."""


def generalized_advantages(
    reward: NDArray,
    value: NDArray,
    next_value: NDArray,
    terminated: NDArray,
    episode_over: NDArray,
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float32]:
    """Compute generalized advantage estimates (Schulman et al., 2016, arXiv:1506.02438, eq. 16).

    All arrays are [horizon, num_envs]. `next_value` is the value of the state that the step led to, which is
    the true final observation if a time limit truncated the episode. Only a termination stops bootstrapping.
    The sum of errors stops wherever the next row is not the successor state, and at a lost life, which ends
    the episode for the learner.
    """
    advantage = (reward + gamma * next_value * ~terminated - value).astype(np.float32, copy=False)
    decay = np.float32(gamma * gae_lambda) * ~(terminated | episode_over)
    for t in range(len(advantage) - 2, -1, -1):  # A_t = error_t + decay_t A_{t+1}
        advantage[t] += decay[t] * advantage[t + 1]
    return advantage


def nearest_divisor(number: int, wanted: int, unit: int) -> int:
    """Return the divisor of `number` that is a multiple of `unit` and nearest to `wanted`.

    Of two equally near divisors, returns the smaller one."""
    number //= unit
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    divisors = small + [number // divisor for divisor in reversed(small)]
    return unit * min(divisors, key=lambda divisor: abs(unit * divisor - wanted))


class Segments(NamedTuple):
    """Segments that result from cutting sequences of steps where episodes end, in the order of the batch."""

    lengths: NDArray[np.int64]
    """Number of steps of each segment, >= 1. [segments]"""
    first: NDArray[np.int64]
    """Index of the first segment of each sequence. [sequences]"""
    carried: NDArray[np.bool_]
    """Whether a sequence begins in the middle of an episode. [sequences]"""

    @classmethod
    def of(cls, start: NDArray[np.bool_]) -> Segments:
        """Return the segments of sequences of equal length.

        start: whether each step is the first of its episode, [sequences, length].
        """
        return cls.of_rows(start.ravel(), np.arange(len(start) + 1) * start.shape[1])

    @classmethod
    def of_rows(cls, start: NDArray[np.bool_], begin: NDArray[np.int64]) -> Segments:
        """Return the segments of consecutive sequences of any lengths.

        start: whether each row is the first of its episode, [rows]; begin: index of the first row of each
        sequence, followed by the number of rows, [sequences + 1].
        """
        begins = start.copy()
        begins[begin[:-1]] = True
        rows = np.flatnonzero(begins)
        return cls(np.diff(rows, append=len(start)), np.searchsorted(rows, begin[:-1]), ~start[begin[:-1]])

    @property
    def last(self) -> NDArray[np.int64]:
        """Index of the last segment of each sequence. [sequences]"""
        return np.append(self.first[1:], len(self.lengths)) - 1

    def states(self, state: Tensor) -> Tensor:
        """Return the state before each segment: the sequence's state, or 0 at the start of an episode.

        state: state before each sequence, [sequences, state_size]. Returns [segments, state_size].
        """
        states = state.new_zeros((len(self.lengths), state.shape[1]))
        carried = torch.from_numpy(self.carried).to(state.device)
        states[torch.from_numpy(self.first).to(state.device)] = state * carried.unsqueeze(1)
        return states


def reset_states(state: NDArray, start: NDArray[np.bool_] | None, num_envs: int) -> NDArray:
    """Return the recurrent state where episodes continue, and 0 where they begin. [num_envs, state_size]

    start: whether an episode begins in each environment, [num_envs], None if episodes begin in all of them. A
    state for a different number of environments is ignored.
    """
    if start is None or len(state) != num_envs:
        return np.zeros((num_envs, state.shape[1]), np.float32)
    return np.where(start[:, None], np.float32(0), state)


class TruncatedState(NamedTuple):
    """The last state of a truncated episode. Its value is needed, but no row contains the state."""

    t: int
    """Index of the rollout's step that led to the state."""
    env: int
    observation: NDArray
    """Observation in the network's layout. [*obs]"""
    mask: Masks
    """Valid actions in the state; None if all are always valid. [actions]"""
    state: States
    """Recurrent state before the observation, of size 0 if the network is not recurrent. [state_size]"""


class Rollout:
    """Fixed arrays `[horizon, num_envs, ...]` that are filled step by step and then read as one batch.

    The batch contains sequence after sequence, each with `sequence_length` consecutive steps of one
    environment. The first sequences of all environments come first, then all second sequences, and so on.
    """

    def __init__(self, horizon: int, num_envs: int, *, sequence_length: int = 1, state_size: int = 0) -> None:
        """sequence_length: number of steps in a sequence, a divisor of the horizon; state_size: size of the
        recurrent state, 0 if there is none.

        The first call of `add_action` determines the shapes and types of all arrays that it fills.
        """
        self.horizon, self.num_envs, self.sequence_length = horizon, num_envs, sequence_length
        shape = (horizon, num_envs)
        self._arrays: dict[str, Any] = {
            "value": np.zeros(shape, np.float32),
            "reward": np.zeros(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "episode_over": np.zeros(shape, np.bool_),
        }
        self._state = np.zeros((horizon // sequence_length, num_envs, state_size), np.float32)
        self._on_device: Tensor | None = None  # copy of the observations, always at the same address
        self.truncated_states: list[TruncatedState] = []
        self.t = 0
        """Number of steps stored so far."""

    def __getitem__(self, name: str) -> NDArray:
        """Return the array called `name`, [horizon, num_envs, ...]."""
        return self._arrays[name]

    @property
    def full(self) -> bool:
        """Whether all rows are filled, so that an update is due."""
        return self.t == self.horizon

    def add_action(
        self,
        observation: NDArray | Tensor,
        action: NDArray,
        parameters: NDArray | None = None,
        value: NDArray | float = 0.0,
        mask: Masks = None,
        state: States = None,
    ) -> None:
        """Store the observation and action of step t. A call of `add_result` must follow.

        observation: observation in the network's layout, a tensor to keep observations on its device;
        parameters, value: outputs of the network, if the agent needs them; mask: valid actions, if there are
        masks; state: recurrent state before the observation, if the network is recurrent. [num_envs, ...]
        each
        """
        arrays, t = self._arrays, self.t
        if "observation" not in arrays:  # the first step determines shapes and types
            rows = {"observation": observation, "action": action, "parameters": parameters, "mask": mask}
            for name, row in rows.items():
                if isinstance(row, Tensor):
                    shape = (self.horizon, *row.shape)
                    arrays[name] = torch.zeros(shape, dtype=row.dtype, device=row.device)
                elif row is not None:
                    arrays[name] = np.zeros((self.horizon, *row.shape), stored_dtype(row.dtype))
        if type(observation) is Tensor and not isinstance(arrays["observation"], Tensor):
            arrays["observation"] = torch.from_numpy(arrays["observation"]).to(observation.device)
        arrays["observation"][t] = observation
        arrays["action"][t] = action
        arrays["value"][t] = value
        if parameters is not None:
            arrays["parameters"][t] = parameters
        if mask is not None:
            arrays["mask"][t] = mask
        if state is not None and self._state.size and t % self.sequence_length == 0:
            self._state[t // self.sequence_length] = state

    def add_result(
        self, step: Step, layout: Callable[[NDArray], NDArray] = np.asarray, state: States = None
    ) -> None:
        """Store the outcome of step t and advance to step t + 1.

        layout: function that converts observations to the network's layout, for the last observations of
        truncated episodes; state: recurrent state after step t, if the network is recurrent, [num_envs,
        state_size].
        """
        if step.truncated.nonzero()[0].size:
            final, masks = layout(step.next_observation), step.next_mask
            for env in map(int, np.flatnonzero(step.truncated & ~step.terminated)):
                mask = None if masks is None else masks[env].copy()
                after = None if state is None else state[env].copy()
                self.truncated_states.append(TruncatedState(self.t, env, final[env].copy(), mask, after))
        self._arrays["reward"][self.t] = step.reward
        self._arrays["terminated"][self.t] = step.terminated
        self._arrays["episode_over"][self.t] = step.episode_over
        self.t += 1

    def bootstrap_states(self, observation: NDArray, state: NDArray) -> tuple[NDArray, NDArray]:
        """Return the states whose values `advantages` needs: those after the last row, and truncated states.

        observation: observations after the last row, in the network's layout; state: recurrent states before
        these observations, of size 0 if the network is not recurrent; [num_envs, ...] each. Returns
        observations and recurrent states, [n, ...] each.
        """
        if not self.truncated_states:
            return observation, state
        finals = [last.observation for last in self.truncated_states]
        states = [last.state for last in self.truncated_states if last.state is not None]
        return np.concatenate([observation, finals]), np.concatenate([state, states])

    def set_values(self, value: NDArray) -> None:
        """Set the values of all rows of the batch, in the order of `rows`. [n]"""
        shape = (-1, self.num_envs, self.sequence_length)
        self._arrays["value"][:] = value.reshape(shape).swapaxes(1, 2).reshape(self.horizon, self.num_envs)

    def advantages(self, bootstrap_value: NDArray, gamma: float, gae_lambda: float) -> NDArray[np.float32]:
        """Return the advantages of a full rollout whose values have been set, in the order of `rows`. [n]

        bootstrap_value: values of the states that `bootstrap_states` returned. [n]
        """
        arrays, t = self._arrays, self.t
        reward, value = arrays["reward"][:t], arrays["value"][:t]
        terminated, episode_over = arrays["terminated"][:t], arrays["episode_over"][:t]
        next_value = np.empty_like(value)
        next_value[:-1], next_value[-1] = value[1:], bootstrap_value[: self.num_envs]
        for last, final_value in zip(self.truncated_states, bootstrap_value[self.num_envs :], strict=True):
            next_value[last.t, last.env] = final_value
        return self.rows(
            generalized_advantages(reward, value, next_value, terminated, episode_over, gamma, gae_lambda)
        )

    def batch(
        self, advantage: NDArray, log_prob: Tensor | None, device: torch.device | str = "cpu"
    ) -> Minibatch:
        """Return all rows of a full rollout as one minibatch on a device.

        advantage: result of `advantages`; log_prob: log-probabilities of the actions in the order of `rows`,
        None if they are not needed. [n] each
        """
        value, length = self.rows("value"), self.sequence_length
        mask = self.rows("mask") if "mask" in self._arrays else None
        # These columns will be gathered together, so they share one array.
        small = np.zeros((4, len(value)), np.float32)
        small[0], small[2] = advantage, value
        np.add(advantage, value, out=small[1])
        if log_prob is not None:
            small[3] = log_prob.numpy()
        columns = torch.from_numpy(small).to(device).unbind()
        observations = torch.as_tensor(self.rows("observation"))
        if observations.device.type != (to := torch.device(device)).type and to.type != "cpu":
            # Copy the observations of every rollout to the same address, so that graphs can read them.
            if self._on_device is None or self._on_device.shape != observations.shape:
                self._on_device = torch.empty_like(observations, device=to)
            observations = self._on_device.copy_(observations, non_blocking=True)
        over = self.rows("episode_over").reshape(-1, length)
        start = np.zeros_like(over)
        start[:, 1:] = over[:, :-1]
        return Minibatch(
            observations=observations.to(to),
            rows=None,
            action=torch.from_numpy(self.rows("action")).to(device),
            advantage=columns[0],
            value_target=columns[1],
            value=columns[2],
            log_prob=columns[3],
            mask=None if mask is None else torch.from_numpy(mask).to(device),
            sequence_length=length,
            state=torch.from_numpy(self._state.reshape(len(over), self._state.shape[2])).to(device),
            # At the first row of a sequence, `state` is 0 if an episode begins there.
            start=start,
        )

    @property
    def masks(self) -> Masks:
        """Valid actions in the rows of the batch; None if all actions are always valid. [n, ...]"""
        return self.rows("mask") if "mask" in self._arrays else None

    def clear(self) -> None:
        """Start the next rollout."""
        self.t = 0
        self.truncated_states.clear()

    def rows(self, which: str | NDArray) -> Any:
        """Return the rows of the batch, sequence after sequence. [n, ...]

        which: name of an array, or any array [horizon, num_envs, ...]. Observations may be a tensor.
        """
        array = self._arrays[which] if isinstance(which, str) else which
        if self.sequence_length == 1:
            return array.reshape(-1, *array.shape[2:])
        parts = array.reshape(-1, self.sequence_length, *array.shape[1:])  # sequences of each, length, ...
        return parts.swapaxes(1, 2).reshape(-1, *array.shape[2:])

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the filled rows. Each frame of stacked observations is contained once."""
        arrays = {name: array[: self.t] for name, array in self._arrays.items()}
        begun = -(-self.t // self.sequence_length) if self._state.size else 0
        return {
            "t": self.t,
            "observation": pack_stacks(_as_array(arrays.pop("observation")))
            if "observation" in arrays
            else None,
            "arrays": {name: array.copy() for name, array in arrays.items()},
            "cuts": [list(last) for last in self.truncated_states],
            "state": self._state[:begun].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, even one that was saved in the middle of a rollout."""
        self.t = int(state["t"])
        packed = state["observation"]
        saved = {} if packed is None else {"observation": unpack_stacks(packed)}
        for name, rows in {**saved, **state["arrays"]}.items():
            if name not in self._arrays:
                self._arrays[name] = np.zeros((self.horizon, *rows.shape[1:]), rows.dtype)
            array = self._arrays[name]
            array[: self.t] = torch.from_numpy(rows) if isinstance(array, Tensor) else rows
        self.truncated_states = [TruncatedState(*last) for last in state["cuts"]]
        self._state[: len(state["state"])] = state["state"]


class Episodes(Rollout):
    """A rollout of complete episodes. It is full once `count` episodes have ended.

    Unfinished episodes are kept for the next rollout. A lost life ends an episode for the learner. The memory
    that the rollout needs grows with the longest episode. The batch contains environment after environment.
    """

    FIRST_ROWS = 128
    """Initial capacity in vector steps."""

    def __init__(self, count: int, num_envs: int) -> None:
        """count: number of episodes in a rollout, over all environments."""
        super().__init__(self.FIRST_ROWS, num_envs)
        self._count, self._ended = count, 0
        self._first = np.zeros(self.num_envs, np.int64)  # first row that no update has used [num_envs]
        self._end = np.zeros(self.num_envs, np.int64)  # end of the last finished episode [num_envs]

    @property
    def full(self) -> bool:
        """Whether enough episodes have ended, so that an update is due."""
        return self._ended >= self._count

    def add_action(self, observation: NDArray | Tensor, *choice: Any, **state: Any) -> None:
        """Store the observation and action of step t in main memory, after making room."""
        self._make_room(self.t + 1)
        super().add_action(_as_array(observation), *choice, **state)

    def add_result(
        self, step: Step, layout: Callable[[NDArray], NDArray] = np.asarray, state: States = None
    ) -> None:
        """Store the outcome of step t, like `Rollout.add_result`, and count the episodes that it ends."""
        super().add_result(step, layout, state)
        ended = step.terminated | step.episode_over
        self._end[ended] = self.t
        self._ended += int(ended.sum())

    def set_values(self, value: NDArray) -> None:
        """Set the values of all rows of the batch, in the order of `rows`. [n]"""
        self._arrays["value"][: self.t].swapaxes(0, 1)[self._whole().T] = value

    def clear(self) -> None:
        """Discard the finished episodes and keep the unfinished ones."""
        self._first[:] = self._end
        gone = int(self._first.min())
        if gone:
            for array in self._arrays.values():
                array[: self.t - gone] = array[gone : self.t].copy()
        left = self.t - gone
        super().clear()  # a cut ends an episode, so all cuts have been used
        self.t = left
        self._first -= gone
        self._end -= gone
        self._ended = 0

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the stored rows and the bounds of the finished episodes."""
        own = {"ended": self._ended, "first": self._first.copy(), "end": self._end.copy()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, even one that was saved in the middle of episodes."""
        self._make_room(int(state["t"]))
        super().load_state_dict(state)
        self._ended = int(state["ended"])
        self._first[:] = state["first"]
        self._end[:] = state["end"]

    def _whole(self) -> NDArray[np.bool_]:
        """Return whether each row belongs to a finished episode. [t, num_envs]"""
        row = np.arange(self.t)[:, None]
        return (row >= self._first) & (row < self._end)

    def rows(self, which: str | NDArray) -> Any:
        """Return the rows of finished episodes, environment after environment. [n, ...]"""
        array = self._arrays[which] if isinstance(which, str) else which
        return array[: self.t].swapaxes(0, 1)[self._whole().T]

    def _make_room(self, rows: int) -> None:
        """Make room for `rows` rows. Raises LabrlError before the system would kill the process."""
        while self.horizon < rows:
            from labrl.memory.workspace import memory_available  # rarely needed

            more, free = sum(array.nbytes for array in self._arrays.values()), memory_available()
            if free is not None and more > free:
                raise LabrlError(
                    f"agent.episodes: storing {self.num_envs} episodes of up to {self.t:,} steps needs "
                    f"{more / 2**30:.1f} GB more, but only {free / 2**30:.1f} GB are free. Learn from a "
                    "fixed number of steps (agent.horizon) instead of complete episodes, or lower "
                    "env.num_envs.",
                    code="resources",
                    key="agent.episodes",
                )
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate([array, np.zeros_like(array)])
            self.horizon *= 2


def _as_array(values: NDArray | Tensor) -> NDArray:
    """Return `values` as an array in main memory."""
    return values.cpu().numpy() if isinstance(values, Tensor) else values


def pack_stacks(rows: NDArray) -> dict[str, NDArray]:
    """Pack consecutive observations of several environments, so that each frame of stacks is stored once.

    rows: [steps, num_envs, *obs]. Stacks of four byte frames along the last axis, with the newest frame last,
    shrink to almost a quarter. Other observations, and the first observation of each episode, are stored in
    full. `unpack_stacks` always restores the rows exactly.
    """
    is_stack = rows.dtype == np.uint8 and rows.ndim == 5 and rows.shape[-1] == STACK
    if not is_stack or len(rows) == 0 or sys.byteorder != "little":
        return {"whole": rows.copy()}
    pixels = rows.view(np.uint32)[..., 0]  # [steps, num_envs, height, width]
    follows = np.zeros(rows.shape[:2], np.bool_)
    kept, shifted = np.empty_like(pixels[0]), np.empty_like(pixels[0])
    same = np.empty(kept.shape, np.bool_)
    for t in range(1, len(rows)):
        # Compare the three older frames of this stack with the three newer frames of the previous stack.
        np.bitwise_and(pixels[t], 0x00FFFFFF, out=kept)
        np.right_shift(pixels[t - 1], 8, out=shifted)
        np.equal(kept, shifted, out=same)
        follows[t] = same.all(axis=(1, 2))
    return {"newest": rows[follows][..., -1].copy(), "whole": rows[~follows], "follows": follows}


def unpack_stacks(packed: Mapping[str, Any]) -> NDArray:
    """Return the rows that `pack_stacks` packed, [steps, num_envs, *obs]."""
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
