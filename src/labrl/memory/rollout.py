"""Storage of one rollout: `horizon` steps of every environment, and the advantages over it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from labrl.errors import InputError
from labrl.memory.stacks import pack_stacks, unpack_stacks
from labrl.observations import array_dtype
from labrl.step import Step
from labrl.workspace import gigabytes, memory_available


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
    advantage = np.zeros_like(reward, dtype=np.float32)
    error = reward + gamma * next_value * ~terminated - value
    decay = (gamma * gae_lambda) * ~(terminated | episode_over)
    following = np.zeros(reward.shape[1], np.float32)
    for t in range(len(reward) - 1, -1, -1):
        following = error[t] + decay[t] * following
        advantage[t] = following
    return advantage


def check_room(horizon: int, space: gym.Space[Any], num_envs: int) -> None:
    """Raises InputError where memory has no room for the observations of a rollout; space: of one."""
    needed = horizon * num_envs * math.prod(space.shape or ()) * array_dtype(space).itemsize
    available = memory_available()
    if available is not None and needed > available:
        raise InputError(
            f"agent.horizon={horizon} x env.num_envs={num_envs}: the observations of a rollout need "
            f"{gigabytes(needed)} GB of memory, {gigabytes(available)} GB are available. Set "
            f"agent.horizon to {horizon * available // needed} or less.",
            code="resources",
            key="agent.horizon",
        )


class Rollout:
    """Fixed arrays `[horizon, num_envs, ...]` that are filled step by step and then read as one batch."""

    def __init__(
        self,
        horizon: int,
        observation: NDArray,
        action_shape: tuple[int, ...],
        action_dtype: torch.dtype,
        num_parameters: int,
        masked: bool = False,
    ) -> None:
        """observation: a first one of all environments, for shape and type [num_envs, *obs];
        num_parameters: of the action distribution; masked: whether each has a mask of valid actions."""
        self.horizon, self.num_envs = horizon, len(observation)
        shape = (horizon, self.num_envs)
        dtype: DTypeLike = np.float32 if observation.dtype == np.float64 else observation.dtype
        self._arrays: dict[str, NDArray] = {
            "observation": np.zeros((*shape, *observation.shape[1:]), dtype),
            "action": torch.zeros((*shape, *action_shape), dtype=action_dtype).numpy(),
            "parameters": np.zeros((*shape, num_parameters), np.float32),
            "value": np.zeros(shape, np.float32),
            "reward": np.zeros(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "episode_over": np.zeros(shape, np.bool_),
        }
        self.masked = masked
        if masked:
            self._arrays["mask"] = np.zeros((*shape, num_parameters), np.bool_)
        # Final observations of truncated episodes, by (t, env): the only states that are not in the rows.
        self.cut: dict[tuple[int, int], NDArray] = {}
        self.cut_mask: dict[tuple[int, int], NDArray[np.bool_]] = {}
        """Which actions are valid in these, where there are masks."""
        self.t = 0
        """Steps stored so far."""

    def __getitem__(self, name: str) -> NDArray:
        """One of the arrays, [horizon, num_envs, ...]."""
        return self._arrays[name]

    @property
    def full(self) -> bool:
        """Whether all rows are filled."""
        return self.t == self.horizon

    def add_choice(
        self,
        observation: NDArray,
        action: NDArray,
        parameters: NDArray | float,
        value: NDArray | float,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """What the agent saw and did at step t; the outcome follows by `add_outcome`."""
        self._arrays["observation"][self.t] = observation
        self._arrays["action"][self.t] = action
        self._arrays["parameters"][self.t] = parameters
        self._arrays["value"][self.t] = value
        if mask is not None:
            self._arrays["mask"][self.t] = mask

    def add_cuts(self, step: Step, final: NDArray) -> None:
        """The last states of the episodes that the outcome of step t cuts short; before `add_outcome`.

        final: what the step led to, as the rows hold observations. [num_envs, *obs]
        """
        for env in np.flatnonzero(step.truncated & ~step.terminated):
            self.cut[self.t, int(env)] = final[env].copy()
            if step.next_mask is not None:
                self.cut_mask[self.t, int(env)] = step.next_mask[env].copy()

    def add_outcome(self, reward: NDArray, terminated: NDArray, episode_over: NDArray) -> None:
        """What came of step t, [num_envs] each; the rollout moves on to t + 1."""
        self._arrays["reward"][self.t] = reward
        self._arrays["terminated"][self.t] = terminated
        self._arrays["episode_over"][self.t] = episode_over
        self.t += 1

    def set_values(self, value: NDArray) -> None:
        """Fill in the values of all rows that are learned from, in the order of `flat`. [n]"""
        self._arrays["value"][:] = value.reshape(self.horizon, self.num_envs)

    def advantages(self, beyond: NDArray, gamma: float, gae_lambda: float) -> NDArray[np.float32]:
        """Advantages of a full rollout whose values are filled in, in the order of `flat`. [n]

        beyond: values of the states that are not in the rows: what the last row led to, then each of `cut`.
        """
        rows = {
            name: self._arrays[name][: self.t] for name in ("reward", "value", "terminated", "episode_over")
        }
        next_value = np.concatenate([rows["value"][1:], beyond[None, : self.num_envs]])
        for position, value in zip(self.cut, beyond[self.num_envs :], strict=True):
            next_value[position] = value
        advantage = generalized_advantages(
            rows["reward"],
            rows["value"],
            next_value,
            rows["terminated"],
            rows["episode_over"],
            gamma,
            gae_lambda,
        )
        return self._learned_from(advantage)

    def clear(self) -> None:
        """Begin the next rollout."""
        self.t = 0
        self.cut.clear()
        self.cut_mask.clear()

    def flat(self, name: str) -> Tensor:
        """One of the arrays as a batch without copying it, [n, ...] with n = horizon * num_envs."""
        return torch.from_numpy(self.rows(name))

    def rows(self, name: str) -> NDArray:
        """The same for NumPy, of whatever type: observations of several inputs too. [n, ...]"""
        return self._learned_from(self._arrays[name])

    def _learned_from(self, array: NDArray) -> NDArray:
        """[horizon, num_envs, ...] -> [n, ...]"""
        return array.reshape(-1, *array.shape[2:])

    def state_dict(self) -> dict[str, Any]:
        """The rows that are filled, copied; of stacked frames each frame once."""
        arrays = {name: array[: self.t] for name, array in self._arrays.items()}
        return {
            "t": self.t,
            "observation": pack_stacks(arrays.pop("observation")),
            "arrays": {name: array.copy() for name, array in arrays.items()},
            "cut": [[t, env, observation.copy()] for (t, env), observation in self.cut.items()],
            "cut_mask": [[t, env, mask.copy()] for (t, env), mask in self.cut_mask.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of a rollout."""
        self.t = int(state["t"])
        self._arrays["observation"][: self.t] = unpack_stacks(state["observation"])
        for name, rows in state["arrays"].items():
            self._arrays[name][: self.t] = rows
        self.cut = {(int(t), int(env)): observation for t, env, observation in state["cut"]}
        self.cut_mask = {(int(t), int(env)): mask for t, env, mask in state["cut_mask"]}
