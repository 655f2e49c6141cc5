"""Every environment with Gymnasium's interface, stepped in this process or in workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.spaces import Dict, Space, Tuple
from numpy.typing import NDArray

from labrl.config.component import Component
from labrl.config.schema import EnvironmentConfig
from labrl.config.types import PositiveInt
from labrl.envs.checked import Checked, gives_masks
from labrl.envs.goals import GoalEnv, has_goals
from labrl.envs.in_turn import InTurn
from labrl.envs.masks import KEY, carries_mask, choices, seen_in, without_mask
from labrl.envs.protocol import Transition
from labrl.envs.repeatability import depends_on_history
from labrl.envs.single import EnvFactory, FreshFactory, MakeEnv
from labrl.envs.together import Together, VectorFactory
from labrl.envs.vector import ENDLESS
from labrl.envs.workers import Workers
from labrl.errors import InputError
from labrl.observations import array_dtype, flat_space, packed

if TYPE_CHECKING:
    from labrl.envs.screen import WatchedGymnasium


TRIED = 3
"""Members of a vector environment that is made before a run, to look at it."""

LONGEST_EVALUATION = ENDLESS
"""Steps of an evaluation's episode in an environment without a time limit."""


@dataclass(kw_only=True)
class GymnasiumConfig(EnvironmentConfig):
    """An environment that Gymnasium knows by its id, or a user's own class."""

    id: str | None = None
    """Registered id, such as CartPole-v1. Either this or `make`."""
    import_module: str | None = None
    """Python module whose import registers the id."""
    make: Component | None = None
    """A user's own gymnasium.Env class, or a function that makes one. Either this or `id`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorization: Literal["sync", "async", "vector_entry_point"] = "sync"
    """sync: one after the other, in this process, fastest where a step takes less than about 0.1 ms.
    async: each in its own process. Both give the same numbers. vector_entry_point: a
    gymnasium.vector.VectorEnv, which steps all at once: the one that the id is registered with, or the one
    that `make` makes, which is given num_envs."""
    max_episode_steps: PositiveInt | None = None
    """Agent steps after which an episode is truncated; null: what the id is registered with. Where that is no
    limit, an episode of an evaluation is truncated after 27,000."""
    fresh_env_per_episode: bool | None = None
    """Make the environment anew for every episode, for those whose seeded reset depends on what they
    played before; null: found out by playing at most 150 steps before the run."""
    action_mask: bool = True
    """Whether the actions that the environment calls valid are the only ones, for agents that heed masks:
    `info["action_mask"]`, or that entry of a dict observation."""
    extra: str | None = None
    """The extra of labrl that brings what the id needs, named when it is missing."""

    def factory(self, longest: int | None = None) -> EnvFactory:
        """What makes one such environment.

        longest: steps after which an episode is truncated where nothing else limits it; None: never.
        """
        return EnvFactory(**self._made_of(), longest=longest)

    def vector(self, num_envs: int, longest: int | None = None) -> Together:
        """A vector environment of one's own with `num_envs` members; longest: as of `factory`."""
        if self.fresh_env_per_episode:
            raise InputError(
                "env.fresh_env_per_episode=true and env.vectorization=vector_entry_point contradict each "
                "other: members of a vector environment are not made anew. Leave one of them out."
            )
        return Together(self.vector_factory(num_envs), self.name, self.action_mask, longest)

    def vector_factory(self, num_envs: int) -> VectorFactory:
        """What makes a vector environment of one's own."""
        return VectorFactory(num_envs, **self._made_of())

    @property
    def natively(self) -> bool:
        """Whether a vector environment of one's own steps all at once."""
        return self.vectorization == "vector_entry_point"

    def _made_of(self) -> dict[str, Any]:
        return {
            "env_id": self.id,
            "import_module": self.import_module,
            "make": self.make,
            "kwargs": self.kwargs,
            "max_episode_steps": self.max_episode_steps,
            "extra": self.extra,
        }


class GymnasiumEnv:
    """Backend over environments in this process, or in workers of Gymnasium's; none ever resets by itself.

    `num_threads` bounds how many worker processes step at once (async only).
    """

    Config = GymnasiumConfig

    def __init__(
        self, config: GymnasiumConfig, *, num_envs: int, num_threads: int, evaluation: bool = False
    ) -> None:
        self.name = config.name
        self.num_envs = num_envs
        self.frame_skip = 1
        # A policy that walks against a wall would otherwise be evaluated for ever.
        longest = LONGEST_EVALUATION if evaluation else None
        self._env: InTurn | Workers | Together
        if config.natively:
            self._env = config.vector(num_envs, longest)
            self.masked = self._env.masked
        else:
            make: MakeEnv = config.factory(longest)
            self.masked = config.action_mask and gives_masks(make, config.name)
            fresh = config.fresh_env_per_episode
            if depends_on_history(make, config.name) if fresh is None else fresh:
                make = FreshFactory(make)
            heeded = config.action_mask
            makes = [
                partial(Checked, make, config.name, number, self.masked, heeded) for number in range(num_envs)
            ]
            sync = config.vectorization == "sync"
            self._env = InTurn(makes, with_infos=self.masked) if sync else Workers(makes, num_threads)
        self.action_mask: NDArray[np.bool_] | None = None
        self._lent = isinstance(self._env, Workers)
        given = self._env.single_observation_space, self._env.single_action_space
        self._in_dict = carries_mask(*given)
        own_space = without_mask(*given)
        self._several = isinstance(own_space, Dict | Tuple)
        self.observation_space: Space[Any] = flat_space(own_space)
        self._dtype = array_dtype(self.observation_space)
        self.goals = self.judge(config, self.observation_space)
        self.action_space: Space[Any] = self._env.single_action_space

    @classmethod
    def spaces(cls, config: GymnasiumConfig) -> tuple[Space[Any], Space[Any]]:
        """Observation and action space of one environment. Raises InputError when it cannot be made."""
        if config.natively:
            vector = config.vector(min(config.num_envs, TRIED))
            vector.close()
            observation, action = vector.single_observation_space, vector.single_action_space
            return flat_space(without_mask(observation, action)), action
        env = config.factory()()
        try:
            env.close()
        except Exception as error:
            raise InputError(
                f"env.name={config.name}: its close() failed: {type(error).__name__}: {error}"
            ) from error
        return flat_space(without_mask(env.observation_space, env.action_space)), env.action_space

    @classmethod
    def gives_masks(cls, config: GymnasiumConfig) -> bool:
        """Whether it says which actions are valid, and that is to be heeded."""
        if config.natively:
            vector = config.vector(min(config.num_envs, TRIED))
            vector.close()
            return vector.masked
        return config.action_mask and gives_masks(config.factory(), config.name)

    @classmethod
    def judge(cls, config: GymnasiumConfig, space: Space[Any]) -> GoalEnv | None:
        """Who knows what other goals would have given, None where observations have no goals."""
        if not has_goals(space):
            return None
        return GoalEnv(
            config.vector_factory(1).vector if config.natively else config.factory(), space, config.name
        )

    @classmethod
    def watched(cls, config: GymnasiumConfig) -> WatchedGymnasium:
        """One environment that can be looked at."""
        from labrl.envs.screen import WatchedGymnasium

        return WatchedGymnasium(config)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start new episodes where `mask` is set. mask, seeds: [num_envs]. Returns [num_envs, *obs]."""
        # Gymnasium takes one seed for every environment, the ALE one for each masked environment.
        observation, info = self._env.reset(seed=seeds.tolist(), options={"reset_mask": mask})
        if self.masked:
            self._take_masks(info, mask)
        return self._own(observation)

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action]."""
        observation, reward, terminated, truncated, info = self._env.step(actions)
        if self.masked:
            self._take_masks(info, np.ones(self.num_envs, np.bool_))
        return Transition(self._own(observation), reward, terminated, truncated, terminated)

    def _own(self, observation: Any) -> NDArray:
        """What is to be seen, as one array that is not written to later. [num_envs, *obs]"""
        seen = seen_in(observation) if self._in_dict else observation
        if self._several:
            return packed(seen, self._dtype, self.num_envs)
        # Copied here, not by Gymnasium: its deepcopy takes several times as long.
        return seen.copy() if self._lent else seen

    def _take_masks(self, info: Mapping[str, Any], fresh: NDArray[np.bool_]) -> None:
        """Masks of the `fresh` environments; one that gives none leaves all its actions valid. [num_envs]"""
        before = self.action_mask
        if before is None:
            before = np.ones((self.num_envs, sum(choices(self.action_space))), np.bool_)
        now = np.where(fresh[:, None], True, before)
        if KEY in info:
            given = fresh & info[f"_{KEY}"]
            now[given] = info[KEY][given]
        self.action_mask = now

    def close(self) -> None:
        """End the environments and the worker processes."""
        if not self._env.closed:
            self._env.close()
        if self.goals is not None:
            self.goals.close()
