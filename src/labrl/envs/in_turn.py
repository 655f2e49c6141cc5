"""Environments stepped one after the other in this process.

Gymnasium's `SyncVectorEnv` does the same and more, and a step of it takes several times what CartPole does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import create_empty_array
from numpy.typing import NDArray

from labrl.envs.single import MakeEnv
from labrl.observations import copied


class InTurn(VectorEnv[Any, Any, Any]):
    """As many environments as there are factories; none is ever reset unless one asks for it.

    What a step returns belongs to the caller. It is copied as soon as an environment has given it, because
    environments may return the same array in every step, and share one.
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
        self._present = self._room()
        """What each environment gave last. [num_envs, *obs]"""

    def reset(  # type: ignore[override]  # always seeded, never all of them by default
        self, *, seed: Sequence[int], options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes where `options["reset_mask"]` is set, [num_envs]; one seed for each environment.

        Returns the present observations of all, [num_envs, *obs], and the infos of those that were reset.
        """
        infos: dict[str, Any] = {}
        present = copied(self._present)
        for index in np.flatnonzero(options["reset_mask"]).tolist():
            # Options are a dictionary of the environment's own, as Gymnasium hands it on.
            observation, info = self.envs[index].reset(seed=seed[index], options={})
            _put(present, index, observation)
            if self._with_infos:
                infos = self._add_info(infos, info, index)
        self._present = present
        return present, infos

    def step(
        self, actions: NDArray
    ) -> tuple[Any, NDArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Act in every environment, [num_envs, *action].

        Returns observations [num_envs, *obs], rewards in float64, terminated, truncated [num_envs] and infos.
        """
        reward = np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        plain = isinstance(self._present, np.ndarray)
        present = np.empty_like(self._present) if plain else self._room()
        for index, env in enumerate(self.envs):
            observation, reward[index], terminated[index], truncated[index], info = env.step(actions[index])
            if plain:  # a call takes longer than a small copy
                present[index] = observation
            else:
                _put(present, index, observation)
            if info and self._with_infos:
                infos = self._add_info(infos, info, index)
        self._present = present
        return present, reward, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """What each environment shows of itself."""
        return tuple(env.render() for env in self.envs)

    def _room(self) -> Any:
        """A batch of observations that nobody else has, nested as their space is. [num_envs, *obs]"""
        return create_empty_array(self.single_observation_space, self.num_envs, np.empty)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


def _put(batch: Any, index: int, observation: Any) -> None:
    """Copy what one environment gave into a batch, which may be nested as its space is."""
    if isinstance(batch, dict):
        for key, part in batch.items():
            _put(part, index, observation[key])
    elif isinstance(batch, tuple):
        for part, inner in zip(batch, observation, strict=True):
            _put(part, index, inner)
    else:
        batch[index] = observation
