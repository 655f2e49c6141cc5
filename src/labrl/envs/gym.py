"""Environments with Gymnasium's interface, stepped in this process or in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space, Tuple
from numpy.typing import NDArray
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from labrl.component import Component
from labrl.config.schema import EnvironmentConfig
from labrl.envs.checked import CheckedEnv
from labrl.envs.classic import ClassicControl, task_of
from labrl.envs.goals import GoalEnv, has_goals
from labrl.envs.info import batched
from labrl.envs.masks import KEY, OBSERVATION, choices, without_mask
from labrl.envs.probe import EnvProbe, known_probe, probe_of
from labrl.envs.protocol import Backend, Repeats, Transition
from labrl.envs.single import EnvFactory
from labrl.envs.vector import ENDLESS
from labrl.envs.workers import Workers
from labrl.spaces import array_dtype, flat_space, places
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
    earlier episodes; null: found out by playing a few short episodes before the run."""
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

    def probe(self) -> EnvProbe:
        """Return the properties of these environments, by making one if needed.

        Raises InputError if it cannot be made.
        """
        return probe_of(self.factory(), self.action_mask, self.fresh_env_per_episode is None)

    def known_probe(self) -> EnvProbe | None:
        """Return the properties of these environments if they are known in this process, else None."""
        return known_probe(self.factory(), self.action_mask, self.fresh_env_per_episode is None)

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


class GymnasiumEnv(Backend):
    """Backend for Gymnasium environments, none of which resets by itself.

    Environments in this process are stepped here, one after the other, because the overhead of Gymnasium's
    `SyncVectorEnv` is several times the cost of a CartPole step. Otherwise they are in worker processes, of
    which at most `num_threads` step at the same time.
    """

    Config = GymnasiumConfig

    def __init__(
        self,
        config: GymnasiumConfig,
        *,
        num_envs: int,
        num_threads: int,
        evaluation: bool = False,
        known: EnvProbe | None = None,
    ) -> None:
        """known: properties of these environments; None to find them out by making one."""
        self.name, self.num_envs, self.frame_skip = config.name, num_envs, 1
        self.workers: Workers | None = None
        """Processes of the environments; None if they are stepped in this process."""
        self.envs: list[CheckedEnv] = []
        """Environments that are stepped one after the other in this process."""
        # Without a limit, the evaluation of a policy that is stuck would never end.
        factory, probe = config.factory(LONGEST_EVALUATION if evaluation else None), known or config.probe()
        factory.spaces = given, self.action_space = probe.observation_space, probe.action_space
        self.masked = probe.masked
        renew = config.fresh_env_per_episode or probe.repeats == "if new"
        make: Callable[..., CheckedEnv] = partial(
            CheckedEnv,
            factory,
            config.name,
            masked=self.masked,
            wanted=config.action_mask,
            numbers=tuple(config.info_keys or ()),
            renew=renew,
        )
        if config.vectorization == "async":
            self.workers = Workers([partial(make, number) for number in range(num_envs)], num_threads)
        else:
            ready = None if renew or known is not None else probe.take()
            self.envs += [] if ready is None else [make(0, factory.limited(ready))]
            self.envs += [make(number) for number in range(len(self.envs), num_envs)]
        probe.close()
        self._given, own_space = given, without_mask(given, self.action_space)
        self.observation_space: Space[Any] = flat_space(own_space)
        self._dtype = array_dtype(self.observation_space)
        several = isinstance(own_space, Dict | Tuple)
        self._shape = () if several else self.observation_space.shape or ()
        sole = isinstance(given, Dict) and given.spaces.get(OBSERVATION) is own_space
        above = (OBSERVATION,) if sole else ()
        self._inputs = [(name, (*above, *path)) for name, path in places(own_space)]
        """Fields of labrl's observation, each with its path of keys in the environment's observation."""
        self._is_single = given is own_space and not several
        self._observation = np.empty((num_envs, *self._shape), self._dtype)
        """Latest observations. [num_envs, *obs]"""
        self._uses_infos = bool(config.info_keys)
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
        probe = config.probe()
        probe.release()
        return flat_space(without_mask(probe.observation_space, probe.action_space)), probe.action_space

    @classmethod
    def gives_masks(cls, config: GymnasiumConfig) -> bool:
        """Return whether the environment provides action masks and `env.action_mask` allows their use."""
        if not config.action_mask or config.classic(1) is not None:
            return False
        probe = config.probe()
        masked = probe.masked
        probe.release()
        return masked

    @classmethod
    def repeats(cls, config: GymnasiumConfig) -> Repeats:
        """Return when these environments repeat an episode; `always` if `fresh_env_per_episode` is set."""
        if config.fresh_env_per_episode is not None or config.classic(1) is not None:
            return "always"
        probe = config.probe()
        repeats = probe.repeats
        probe.release()
        return repeats

    @classmethod
    def judge(cls, config: GymnasiumConfig, space: Space[Any]) -> GoalEnv | None:
        """Return an object that computes rewards of other goals; None if observations have no goals."""
        if not has_goals(space):
            return None
        known = config.known_probe()
        lend = {} if known is None else {"lend": known.lend}
        return GoalEnv(config.factory(), space, config.name, **lend)

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
            answers = map(CheckedEnv.step, self.envs, actions)
        else:
            answers = self.workers.call("step", dict(enumerate(actions)))
        for env, answer in enumerate(answers):
            # Copied at once, because environments may return the same array in every step, or share it.
            if self._is_single:
                observations[env] = answer[0]
            else:
                self._place(observations, env, answer[0])
            _, rewards[env], ended[env], truncated[env], info = answer
            self._infos[env] = info
            if valid is not None and KEY in info:
                valid[env] = info[KEY]
        self._observation, self.action_mask = observations, valid
        if self._uses_infos:
            self.info = batched(self._infos)
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

        observations: [num_envs, *obs].
        """
        for name, path in self._inputs:
            part = observation
            for key in path:
                part = part[key]
            if name:
                observations[name][env] = part
            else:
                observations[env] = part
