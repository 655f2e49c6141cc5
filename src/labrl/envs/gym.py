"""Environments with Gymnasium's interface, stepped in this process or in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple
from numpy.typing import NDArray
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from labrl.component import Component
from labrl.config.schema import EnvironmentConfig
from labrl.envs.checked import AnswerCheck, Checked
from labrl.envs.classic import ClassicControl, task_of
from labrl.envs.goals import GoalEnv, has_goals
from labrl.envs.info import batched
from labrl.envs.masks import KEY, OBSERVATION, carries_mask, choices, observation_of, without_mask
from labrl.envs.protocol import Backend, Repeats, Transition
from labrl.envs.sample import Sample, done_with, known_sample, sample_of
from labrl.envs.single import EnvFactory, FreshFactory, MakeEnv
from labrl.envs.vector import ENDLESS
from labrl.envs.workers import Workers
from labrl.spaces import array_dtype, flat_space, packed, places
from labrl.types import PositiveInt

_log = logging.getLogger(__name__)

LONGEST_EVALUATION = ENDLESS
"""Steps after which an evaluation episode is truncated in an environment without a time limit."""


def _no_vector_env(value: Any) -> Any:
    """Return `value`. Raises for the value of earlier versions of labrl that stepped a user's vector
    environment."""
    if value == "vector_entry_point":
        raise PydanticCustomError(
            "unsupported",
            "must be auto, sync or async (environments that are stepped at once are a class derived from "
            "labrl.envs.protocol.Backend, which env._target_ names)",
        )
    return value


@dataclass(kw_only=True)
class GymnasiumConfig(EnvironmentConfig):
    """An environment registered in Gymnasium, or a user's class."""

    id: str | None
    """Registered id, such as CartPole-v1. Set either this or `make`."""
    import_module: str | None
    """Python module whose import registers the id."""
    make: Component | None
    """A gymnasium.Env class, or a function that returns one. Set either this or `id`."""
    kwargs: dict[str, Any]
    """Keyword arguments of the environment."""
    vectorization: Annotated[Literal["auto", "sync", "async"], BeforeValidator(_no_vector_env)]
    """auto: labrl's implementation of Gymnasium's classic control tasks, otherwise sync. sync: one after the
    other in this process, fastest if a step takes less than about 0.1 ms. async: each in its own process. All
    give the same numbers."""
    max_episode_steps: PositiveInt | None
    """Agent steps after which an episode is truncated; null: the limit registered for the id. If there is no
    limit, evaluation episodes are truncated after 27,000 steps."""
    fresh_env_per_episode: bool | None
    """Whether to make a new environment for every episode, which is needed if a seeded reset depends on
    earlier episodes; null: determined by playing at most 150 steps before the run."""
    action_mask: bool
    """Whether agents that support masks take only valid actions, given by the environment as
    `info["action_mask"]` or as that entry of a dict observation."""

    def factory(self, longest: int | None = None) -> EnvFactory:
        """Return a function that makes one environment.

        longest: steps after which an episode is truncated if nothing else limits it; None for no limit.
        """
        return EnvFactory(
            env_id=self.id,
            import_module=self.import_module,
            make=self.make,
            kwargs=self.kwargs,
            max_episode_steps=self.max_episode_steps,
            longest=longest,
        )

    def sample(self) -> Sample:
        """Return the properties of these environments, by making one if needed.

        Raises InputError if it cannot be made.
        """
        return sample_of(self.factory(), self.action_mask, self.fresh_env_per_episode is None)

    def known_sample(self) -> Sample | None:
        """Return the properties of these environments if they are known in this process, else None."""
        return known_sample(self.factory(), self.action_mask, self.fresh_env_per_episode is None)

    def classic(self, num_envs: int) -> ClassicControl | None:
        """Make labrl's implementation of a classic control task.

        Returns None for other environments, and if settings could change the task.
        """
        own = self.make or self.kwargs or self.import_module or self.fresh_env_per_episode or self.info_keys
        spec = None if own or self.vectorization != "auto" else gymnasium.registry.get(self.id or "")
        if spec is None or spec.kwargs or spec.additional_wrappers or not isinstance(spec.entry_point, str):
            return None
        task, limit = task_of(spec.entry_point), self.max_episode_steps or spec.max_episode_steps
        return None if task is None or limit is None else ClassicControl(task, num_envs, limit, self.name)


NUMBERS = (float, np.float64, np.float32, int)
"""Types of rewards that float64 represents exactly."""

FLAGS = (bool, np.bool_)


class GymnasiumEnv(Backend):
    """Backend for Gymnasium environments, none of which resets by itself.

    Environments in this process are stepped here, one after the other, because the overhead of Gymnasium's
    `SyncVectorEnv` is several times the cost of a CartPole step. Otherwise they are in worker processes, of
    which at most `num_threads` step at the same time.

    Every return value is checked immediately. For values of the expected plain types, comparing types and
    shape suffices; all others go through `AnswerCheck`.
    """

    Config = GymnasiumConfig

    def __init__(
        self,
        config: GymnasiumConfig,
        *,
        num_envs: int,
        num_threads: int,
        evaluation: bool = False,
        known: Sample | None = None,
    ) -> None:
        """known: properties of these environments; None to find them out by making one."""
        self.name = config.name
        self.num_envs = num_envs
        self._all = np.ones(num_envs, np.bool_)
        self.frame_skip = 1
        # Otherwise the evaluation of a policy that is stuck would never end.
        longest = LONGEST_EVALUATION if evaluation else None
        self.workers: Workers | None = None
        """Processes of the environments; None if they are stepped in this process."""
        self.envs: list[gymnasium.Env[Any, Any]] = []
        """Environments that are stepped one after the other in this process."""
        factory, sample = config.factory(longest), known or config.sample()
        factory.spaces = sample.observation_space, sample.action_space
        make: MakeEnv = factory
        self.masked = sample.masked
        check = self.masked, config.action_mask, tuple(config.info_keys or ())
        if config.fresh_env_per_episode or sample.repeats == "if new":
            make = FreshFactory(make)
        if config.vectorization == "async":
            makes = [partial(Checked, make, config.name, number, *check) for number in range(num_envs)]
            self.workers = Workers(makes, num_threads)
            given, self.action_space = self.workers.single_observation_space, self.workers.single_action_space
        else:
            ready = sample.take() if make is factory and known is None else None
            self.envs += [] if ready is None else [factory.limited(ready)]
            while len(self.envs) < num_envs:
                self.envs.append(make())
            self._checks = [
                AnswerCheck(env, config.name, number, *check) for number, env in enumerate(self.envs)
            ]
            given, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        sample.close()
        self._in_dict = carries_mask(given, self.action_space)
        own_space = without_mask(given, self.action_space)
        self._several = isinstance(own_space, Dict | Tuple)
        self.observation_space: Space[Any] = flat_space(own_space)
        self._dtype = array_dtype(self.observation_space)
        self._shape = () if self._several else self.observation_space.shape or ()
        self._uses_infos = bool(config.info_keys)
        plain = isinstance(given, Box) and not self._uses_infos
        self._plain_shape = self._shape if plain else None
        """Shape of observations in a Box; None for other spaces, and if `AnswerCheck` must see every info."""
        sole = isinstance(given, Dict) and given.spaces.get(OBSERVATION) is own_space
        above = (OBSERVATION,) if sole else ()
        self._inputs = [(name, (*above, *path)) for name, path in places(own_space)]
        """Fields of labrl's observation, each with its path of keys in the environment's observation."""
        self._present = np.empty((num_envs, *self._shape), self._dtype)
        """Latest observation of each environment in this process. [num_envs, *obs]"""
        self._steps, self._began = 0, [0] * num_envs
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs  # of the last step, as reduced by the checks
        self.action_mask: NDArray[np.bool_] | None = None
        if self.masked:
            self.action_mask = np.ones((num_envs, sum(choices(self.action_space))), np.bool_)
        self.goals: GoalEnv | None = self.judge(config, self.observation_space)
        self._closed = False

    @classmethod
    def faster(cls, config: GymnasiumConfig, num_envs: int) -> ClassicControl | None:
        """Make labrl's implementation of a classic control task; None for other environments."""
        return config.classic(num_envs)

    @classmethod
    def spaces(cls, config: GymnasiumConfig) -> tuple[Space[Any], Space[Any]]:
        """Return observation and action space of one environment. Raises InputError if it cannot be made."""
        if (classic := config.classic(1)) is not None:
            return classic.observation_space, classic.action_space
        sample = config.sample()
        done_with(sample)
        return flat_space(without_mask(sample.observation_space, sample.action_space)), sample.action_space

    @classmethod
    def gives_masks(cls, config: GymnasiumConfig) -> bool:
        """Return whether the environment provides action masks and `env.action_mask` allows their use."""
        if not config.action_mask or config.classic(1) is not None:
            return False
        sample = config.sample()
        masked = sample.masked
        done_with(sample)
        return masked

    @classmethod
    def repeats(cls, config: GymnasiumConfig) -> Repeats:
        """Return when these environments repeat an episode; `always` if `fresh_env_per_episode` is set."""
        if config.fresh_env_per_episode is not None or config.classic(1) is not None:
            return "always"
        sample = config.sample()
        repeats = sample.repeats
        done_with(sample)
        return repeats

    @classmethod
    def judge(cls, config: GymnasiumConfig, space: Space[Any]) -> GoalEnv | None:
        """Return an object that computes rewards of other goals; None if observations have no goals."""
        if not has_goals(space):
            return None
        known = config.known_sample()
        lend = {} if known is None else {"lend": known.lend}
        return GoalEnv(config.factory(), space, config.name, **lend)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start new episodes where `mask` is set. mask, seeds: [num_envs]. Returns [num_envs, *obs]."""
        if self.workers is not None:
            # Gymnasium takes one seed for every environment; the ALE takes one per masked environment.
            given, info = self.workers.reset(seed=seeds.tolist(), options={"reset_mask": mask})
            return self._taken(given, info, mask)
        present = self._present.copy()
        valid = None if self.action_mask is None else self.action_mask | mask[:, None]
        for index in mask.nonzero()[0].tolist():
            observation, info = self.envs[index].reset(seed=int(seeds[index]))
            self._began[index] = self._steps
            if (
                type(observation) is np.ndarray
                and observation.dtype == self._dtype
                and observation.shape == self._plain_shape
                and type(info) is dict
                and KEY not in info
            ):
                present[index] = observation
                continue
            observation, info = self._checks[index].reset(observation, info)
            self._place(present, index, observation)
            if valid is not None and KEY in info:
                valid[index] = info[KEY]
        self._present, self.action_mask = present, valid
        return present

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action]."""
        if self.workers is not None:
            given, reward, terminated, truncated, info = self.workers.step(actions)
            observation = self._taken(given, info, self._all)
            self.info = info
            return Transition(observation, reward, terminated, truncated, terminated)
        dtype, shape = self._dtype, self._plain_shape
        present = np.empty((self.num_envs, *self._shape), dtype)
        rewards = np.empty(self.num_envs)
        ended, cut = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        valid = None if self.action_mask is None else np.ones_like(self.action_mask)
        self._steps += 1
        for index, env in enumerate(self.envs):
            observation, reward, terminated, truncated, info = env.step(actions[index])
            if (
                type(observation) is np.ndarray
                and observation.dtype == dtype
                and observation.shape == shape
                and type(reward) in NUMBERS
                and type(terminated) in FLAGS
                and type(truncated) in FLAGS
                and type(info) is dict
                and KEY not in info
            ):
                # Copied at once, because environments may return the same array in every step, or share it.
                present[index], rewards[index] = observation, reward
                ended[index], cut[index] = terminated, truncated
                continue
            number = self._steps - self._began[index]
            observation, rewards[index], ended[index], cut[index], info = self._checks[index].step(
                number, observation, reward, terminated, truncated, info
            )
            self._place(present, index, observation)
            self._infos[index] = info
            if valid is not None and KEY in info:
                valid[index] = info[KEY]
        self._present, self.action_mask = present, valid
        if self._uses_infos:
            self.info = batched(self._infos)
        return Transition(present, rewards, ended, cut, ended)

    def render(self) -> Any:
        """Return an image of each environment."""
        return self.workers.render() if self.workers is not None else [env.render() for env in self.envs]

    def close(self) -> None:
        """Close the environments and end the worker processes. Calling it again has no effect."""
        if self._closed:
            return
        self._closed = True
        if self.workers is not None:
            self.workers.close()
        for env in self.envs:
            try:
                env.close()
            except Exception as error:  # does not affect the results of the run
                _log.warning("%s: close() failed: %s: %s", self.name, type(error).__name__, error)
        self.envs.clear()  # frees the ALE's emulators, which have no close(), before the interpreter exits
        if self.goals is not None:
            self.goals.close()

    def _place(self, present: NDArray, index: int, observation: Any) -> None:
        """Copy the possibly nested observation of one environment into its row of `present`.

        present: [num_envs, *obs].
        """
        for name, path in self._inputs:
            part = observation
            for key in path:
                part = part[key]
            if name:
                present[name][index] = part
            else:
                present[index] = part

    def _taken(self, observation: Any, info: Mapping[str, Any], fresh: NDArray[np.bool_]) -> NDArray:
        """Return all observations as one array that is not modified later, and update the masks.

        observation: batch from the workers; fresh: environments whose masks are updated, [num_envs]. All
        actions of an environment that returns no mask are valid. Returns [num_envs, *obs].
        """
        if self.action_mask is not None:
            valid = self.action_mask | fresh[:, None]
            if KEY in info:
                given = fresh & info[f"_{KEY}"]
                valid[given] = info[KEY][given]
            self.action_mask = valid
        seen = observation_of(observation) if self._in_dict else observation
        if self._several:
            return packed(seen, self._dtype, self.num_envs)
        return seen.copy()  # Gymnasium's deepcopy takes several times as long.
