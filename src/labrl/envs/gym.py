"""Environments with Gymnasium's interface, stepped in this process or in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple
from numpy.typing import NDArray

from labrl.envs.classic import ClassicControl, task_of
from labrl.envs.description import Description, description_of
from labrl.envs.goals import GoalEnv
from labrl.envs.masks import KEY, OBSERVATION, choices, without_mask
from labrl.envs.protocol import Backend, Repeats, Transition
from labrl.envs.single import EnvFactory, GymnasiumConfig
from labrl.envs.subenv import SubEnv, fit
from labrl.envs.vector import ENDLESS
from labrl.envs.workers import Workers
from labrl.errors import EnvironmentFailedError
from labrl.spaces import ACHIEVED, DESIRED, array_dtype, flat_space, inputs_of

_log = logging.getLogger(__name__)

LONGEST_EVALUATION = ENDLESS
"""Number of steps after which an evaluation episode is truncated if the environment has no time limit."""


class GymnasiumEnv(Backend):
    """Backend for Gymnasium environments, which never reset by themselves.

    Environments in this process are stepped one after the other, without Gymnasium's `SyncVectorEnv`, whose
    overhead is several times the cost of a CartPole step. Otherwise the environments are in worker processes,
    of which at most `num_threads` step at the same time.
    """

    Config = GymnasiumConfig

    def __init__(
        self,
        config: GymnasiumConfig,
        *,
        num_envs: int,
        num_threads: int,
        evaluation: bool = False,
        known: Description | None = None,
    ) -> None:
        """known: properties of the environments; None: making environments determines them."""
        self.name, self.num_envs, self.frame_skip = config.name, num_envs, 1
        self.workers: Workers | None = None
        """Processes of the environments; None if they are stepped in this process."""
        self.envs: list[SubEnv] = []
        """Environments that are stepped one after the other in this process."""
        # Without a limit, the evaluation of a policy that is stuck would never end.
        factory = EnvFactory(config, LONGEST_EVALUATION if evaluation else None)
        known = known or description_of(config)
        given, self.action_space = known.observation_space, known.action_space
        self.masked = known.masked
        make: Callable[..., SubEnv] = partial(
            SubEnv,
            factory,
            masked=self.masked,
            wanted=config.action_mask,
            numbers=config.info_keys or {},
            renew=config.fresh_env_per_episode or known.repeats == "if new",
            options=config.reset_options,
        )
        if config.vectorization == "async":
            makes = [partial(make, number) for number in range(num_envs)]
            self.workers = Workers(makes, num_threads, config.restarts, config.name)
        else:
            self.envs += [make(number) for number in range(num_envs)]
        own_space = without_mask(given, self.action_space)
        self.observation_space: Space[Any] = flat_space(own_space)
        self._dtype = array_dtype(self.observation_space)
        several = isinstance(own_space, Dict | Tuple)
        self._shape = () if several else self.observation_space.shape or ()
        sole = isinstance(given, Dict) and given.spaces.get(OBSERVATION) is own_space
        above = (OBSERVATION,) if sole else ()
        self._inputs = [(name, (*above, *path), part) for name, path, part in inputs_of(own_space)]
        """Fields of labrl's observation, each with its path of keys in the environment's observation and its
        space."""
        self._is_single = given is own_space and isinstance(given, Box)
        self._observation = np.empty((num_envs, *self._shape), self._dtype)
        """Latest observations. [num_envs, *obs]"""
        self._uses_infos = bool(config.info_keys)
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs  # of the last step, as reduced by the checks
        self.action_mask: NDArray[np.bool_] | None = None
        if self.masked:
            self.action_mask = np.ones((num_envs, sum(choices(self.action_space))), np.bool_)
        self.goals: GoalEnv | None = self.make_goals(config, self.observation_space)
        self._closed = False

    @classmethod
    def faster(cls, config: GymnasiumConfig, num_envs: int) -> ClassicControl | None:
        """Make labrl's implementation of a classic control task.

        Returns None for other environments, and if settings could change the task.
        """
        own = config.make or config.kwargs or config.import_module or config.wrappers or config.reset_options
        infos = set((config.info_keys or {}).values()) - {"auto"}  # these tasks have no success
        if own or config.fresh_env_per_episode or infos or config.vectorization != "auto":
            return None
        spec = gymnasium.registry.get(config.id or "")
        if spec is None or spec.kwargs or spec.additional_wrappers or not isinstance(spec.entry_point, str):
            return None
        task, limit = task_of(spec.entry_point), config.max_episode_steps or spec.max_episode_steps
        return None if task is None or limit is None else ClassicControl(task, num_envs, limit, config.name)

    @classmethod
    def spaces(cls, config: GymnasiumConfig) -> tuple[Space[Any], Space[Any]]:
        """Return one environment's observation and action spaces. Raises InputError if it cannot be made."""
        if (classic := cls.faster(config, 1)) is not None:
            return classic.observation_space, classic.action_space
        known = description_of(config)
        return flat_space(without_mask(known.observation_space, known.action_space)), known.action_space

    @classmethod
    def gives_masks(cls, config: GymnasiumConfig) -> bool:
        """Return whether the environment provides action masks and `env.action_mask` allows their use."""
        return cls._may_give_masks(config) and description_of(config).masked

    @classmethod
    def describe_masks(cls, config: GymnasiumConfig) -> str:
        """Return a line on the masks of the environment; empty if it has none, or for other actions."""
        return description_of(config).describe_masks() if cls._may_give_masks(config) else ""

    @classmethod
    def _may_give_masks(cls, config: GymnasiumConfig) -> bool:
        return config.action_mask and cls.faster(config, 1) is None

    @classmethod
    def repeats(cls, config: GymnasiumConfig) -> Repeats:
        """Return when these environments repeat an episode; `always` if `fresh_env_per_episode` is set."""
        return "always" if cls.faster(config, 1) is not None else description_of(config).repeats

    @classmethod
    def is_checked(cls, config: GymnasiumConfig) -> bool:
        """Return whether episodes are also checked during the run."""
        return config.check and cls.faster(config, 1) is None

    @classmethod
    def make_goals(cls, config: GymnasiumConfig, space: Space[Any]) -> GoalEnv | None:
        """Return an object that computes rewards for other goals; None if observations contain no goals."""
        if not (isinstance(space, Dict) and {ACHIEVED, DESIRED} <= space.spaces.keys()):
            return None
        return GoalEnv(EnvFactory(config), space, config.name)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start new episodes where `mask` is set. mask, seeds: [num_envs]. Returns [num_envs, *obs]."""
        observations = self._observation.copy()
        valid = None if self.action_mask is None else self.action_mask | mask[:, None]
        begun = {env: int(seeds[env]) for env in mask.nonzero()[0].tolist()}
        answers: Iterable[Any]
        if self.workers is None:
            answers = (self.envs[env].reset(seed) for env, seed in begun.items())
        else:
            answers = self.workers.call("reset", begun)
        for env, (observation, info) in zip(begun, answers, strict=True):
            self._place(observations, env, observation)
            if valid is not None and KEY in info:
                valid[env] = info[KEY]
        self._observation, self.action_mask = observations, valid
        return observations

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action]."""
        observations = np.empty((self.num_envs, *self._shape), self._dtype)
        rewards = np.empty(self.num_envs)
        ended, truncated = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        valid = None if self.action_mask is None else np.ones_like(self.action_mask)
        answers: Iterable[Any]
        if self.workers is None:
            answers = map(SubEnv.step, self.envs, actions)
        else:
            answers = self.workers.call("step", dict(enumerate(actions)))
        for env, answer in enumerate(answers):
            # Copied at once, because environments may return the same array in every step, or share it.
            observation, reward, ended[env], truncated[env], info = answer
            plain = self._is_single and type(observation) is np.ndarray and observation.dtype == self._dtype
            if plain and observation.shape == self._shape:
                observations[env] = observation
            else:
                self._place(observations, env, observation)
            rewards[env] = reward
            self._infos[env] = info
            if valid is not None and KEY in info:
                valid[env] = info[KEY]
        self._observation, self.action_mask = observations, valid
        if self._uses_infos:
            names = dict.fromkeys(name for info in self._infos for name in info)
            self.info = {name: [info.get(name) for info in self._infos] for name in names}
        return Transition(observations, rewards, ended, truncated, ended)

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

    def _place(self, observations: NDArray, env: int, observation: Any) -> None:
        """Copy the possibly nested observation of one environment into its row of `observations`.

        observations: [num_envs, *obs]. Raises EnvironmentFailedError if the observation does not fit.
        """
        try:
            for name, path, space in self._inputs:
                part = observation
                for key in path:
                    part = part[key]
                (observations[name] if name else observations)[env] = fit(space, part)
        except (LookupError, TypeError, ValueError) as error:
            why = f"the observation of environment {env} does not fit: {type(error).__name__}: {error}"
            raise EnvironmentFailedError.about(self.name, why, key="env") from error
