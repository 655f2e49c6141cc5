"""Environments stepped one after the other in this process.

Gymnasium's `SyncVectorEnv` does the same and more, and a step of it takes several times what CartPole does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from labrl.envs.single import MakeEnv

ARRAYS = (Box, Discrete, MultiBinary, MultiDiscrete)
"""Spaces whose values are numbers or arrays, so that an assignment puts one into its row."""


class InTurn(VectorEnv[Any, Any, Any]):
    """As many environments as there are factories; none is ever reset unless one asks for it.

    What a step returns is the caller's: nothing of it is written to later.
    """

    def __init__(self, factories: Sequence[MakeEnv], with_infos: bool) -> None:
        """with_infos: whether anybody asks for what environments tell beside; gathering it takes time."""
        self.envs: list[gymnasium.Env[Any, Any]] = []
        for make in factories:
            self.envs.append(make())
        self.num_envs = len(self.envs)
        self._with_infos = with_infos
        self.single_observation_space: Space[Any] = self.envs[0].observation_space
        self.single_action_space: Space[Any] = self.envs[0].action_space
        self._plain = isinstance(self.single_observation_space, ARRAYS)
        self._present: list[Any] = [None] * self.num_envs

    def reset(  # type: ignore[override]  # always seeded, never all of them by default
        self, *, seed: Sequence[int], options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes where `options["reset_mask"]` is set, [num_envs]; one seed for each environment.

        Returns the present observations of all, [num_envs, *obs], and the infos of those that were reset.
        """
        infos: dict[str, Any] = {}
        for index in np.flatnonzero(options["reset_mask"]).tolist():
            # Options are a dictionary of the environment's own, as Gymnasium hands it on.
            self._present[index], info = self.envs[index].reset(seed=seed[index], options={})
            if self._with_infos:
                infos = self._add_info(infos, info, index)
        return self._together(), infos

    def step(
        self, actions: NDArray
    ) -> tuple[Any, NDArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Act in every environment, [num_envs, *action].

        Returns observations [num_envs, *obs], rewards in float64, terminated, truncated [num_envs] and infos.
        """
        reward = np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            self._present[index], reward[index], terminated[index], truncated[index], info = env.step(
                actions[index]
            )
            if info and self._with_infos:
                infos = self._add_info(infos, info, index)
        return self._together(), reward, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """What each environment shows of itself."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _together(self) -> Any:
        """The present observations as a batch of their own. [num_envs, *obs]"""
        space = self.single_observation_space
        if not self._plain:
            several: Any = create_empty_array(space, self.num_envs)
            return concatenate(space, self._present, several)
        batch = np.empty((self.num_envs, *(space.shape or ())), space.dtype)
        for index, observation in enumerate(self._present):
            batch[index] = observation
        return batch
