"""Users' vector environments, which step all of their environments at once.

labrl requires more than `gymnasium.vector.VectorEnv` guarantees: each member can be reset alone, with a seed
that determines its episode, by Gymnasium's `AutoresetMode.DISABLED` and `options["reset_mask"]`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Never

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from labrl.component import Component
from labrl.envs.checked import LATE, expected
from labrl.envs.masks import KEY, carries_mask, choices, first_flags, first_valid, flags_of
from labrl.envs.single import EnvFactory, answered, takes
from labrl.errors import Code, EnvironmentFailedError, InputError, LabrlError
from labrl.spaces import same

STEPS = 50
"""Number of steps for which episodes are compared before a vector environment is accepted."""

NEEDED = (
    "labrl resets each environment when its episode ends, by reset(seed=<one seed per environment>, "
    "options={'reset_mask': <one bool per environment>}), and the seed must determine the episode"
)

DECLARED: dict[str, Any] = {
    "num_envs": Integral,
    "single_observation_space": Space,
    "single_action_space": Space,
}
"""Attributes that every vector environment must set, because Gymnasium's class has no defaults for them."""

ONE_BY_ONE = "env.vectorization=sync (or async)"
"""Setting to recommend for classes that make a single environment."""

_log = logging.getLogger(__name__)


class VectorFactory(EnvFactory):
    """Make a vector environment by `make`, or by the `vector_entry_point` of a registered id."""

    def __init__(self, num_envs: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_envs = num_envs

    def vector(self) -> VectorEnv[Any, Any, Any]:
        """Make a vector environment. Raises InputError if this fails or if it lacks a required feature."""
        env: Any = self.build()
        try:
            self._check(env)
        except LabrlError:
            if isinstance(env, VectorEnv | gymnasium.Env):
                env.close()
            raise
        return env

    def _own(self, make: Component) -> Any:
        target = make.load()
        settings = {**(make.config if isinstance(make.config, dict) else {}), **self.kwargs}
        if "num_envs" in settings:
            key = "env.kwargs.num_envs" if "num_envs" in self.kwargs else "env.make.num_envs"
            raise InputError(
                f"{key}={settings['num_envs']} must be left out: labrl sets num_envs, to env.num_envs for "
                "training and to other numbers for evaluation and videos.",
                code="contradiction",
                key=key,
            )
        if isinstance(target, type) and issubclass(target, gymnasium.Env) and not takes(target, "num_envs"):
            self._refuse(f"it is not a vector environment. Set {ONE_BY_ONE}")
        asked: dict[str, Any] = {"num_envs": self.num_envs, **self.kwargs}
        if "autoreset_mode" in settings or not takes(target, "autoreset_mode"):
            return make.build(**asked)
        try:
            return make.build(**asked, autoreset_mode=AutoresetMode.DISABLED)
        except LabrlError as error:
            message = f"{error} It was made with autoreset_mode=AutoresetMode.DISABLED. {NEEDED}."
            raise InputError(message, code=error.code, key=error.key) from error

    def _gymnasium_makes(self, env_id: str) -> Any:
        asked = dict(self.kwargs)
        if self.max_episode_steps is not None:
            asked["max_episode_steps"] = self.max_episode_steps
        entry: Any = gymnasium.spec(env_id).vector_entry_point
        if isinstance(entry, str):
            entry = gymnasium.envs.registration.load_env_creator(entry)
        if entry is None:
            self._refuse(f"the id is registered without a vector_entry_point. Set {ONE_BY_ONE}")
        if "autoreset_mode" not in asked and takes(entry, "autoreset_mode"):
            asked["autoreset_mode"] = AutoresetMode.DISABLED
        return gymnasium.make_vec(
            env_id, num_envs=self.num_envs, vectorization_mode="vector_entry_point", **asked
        )

    def _check(self, env: Any) -> None:
        if isinstance(env, gymnasium.Env):
            self._refuse(
                f"it makes a {type(env).__name__}, which is not a vector environment. Set {ONE_BY_ONE}"
            )
        if not isinstance(env, VectorEnv):
            self._refuse(
                f"it makes a {type(env).__name__}, not a gymnasium.vector.VectorEnv. (EnvPool is not "
                f"supported, because its environments are seeded once and reset by themselves.) {NEEDED}"
            )
        lacking = [name for name, kind in DECLARED.items() if not isinstance(getattr(env, name, None), kind)]
        if lacking:
            self._refuse(f"it makes a {type(env).__name__} without {', '.join(lacking)}")
        if env.num_envs != self.num_envs:
            self._refuse(f"it was made with num_envs={self.num_envs} but has {env.num_envs} environments")
        mode = env.metadata.get("autoreset_mode") if isinstance(env.metadata, Mapping) else None
        if mode is None:
            self._refuse(
                "its metadata has no 'autoreset_mode'. If it leaves resets to its caller, set "
                f"metadata['autoreset_mode'] to gymnasium.vector.AutoresetMode.DISABLED. {NEEDED}"
            )
        if mode not in (AutoresetMode.DISABLED, AutoresetMode.DISABLED.value):
            remedy = f"Set {ONE_BY_ONE}" if self.make is None else "Make it with AutoresetMode.DISABLED"
            if self.make is not None and self.make.load() is gymnasium.make_vec:
                remedy = "Set env.make=null env.id=<the id> env.vectorization=sync (or async)"
            self._refuse(
                f"it resets environments by itself (metadata['autoreset_mode'] is {mode}), with seeds that "
                f"labrl does not know. {NEEDED}. {remedy}"
            )

    def _refuse(self, why: str, code: Code = "unsupported") -> Never:
        message = f"env.vectorization=vector_entry_point: {self.named}: {why}."
        raise InputError(message, code=code, key="env.vectorization")


class Together:
    """A user's vector environment that never resets by itself. Returned arrays are not modified later.

    The constructor plays a few short episodes to check the environment: resetting one member must not change
    the others, and the seed of a reset must determine the member's episode.
    """

    def __init__(
        self, make: VectorFactory, name: str, masked: bool, longest: int | None = None, infos: bool = False
    ) -> None:
        """name: name of the environment; masked: whether to use its action masks, if it provides them;
        longest: steps after which an episode is truncated if nothing else limits it, None for no limit;
        infos: whether `step` returns the environment's info in addition to the masks.

        Raises InputError if the environment does not pass the check.
        """
        self._env: VectorEnv[Any, Any, Any] = make.vector()
        self._name, self.closed = name, False
        self.num_envs: int = self._env.num_envs
        self.single_observation_space: Space[Any] = self._env.single_observation_space
        self.single_action_space: Space[Any] = self._env.single_action_space
        self.metadata, self.render_mode = self._env.metadata, self._env.render_mode
        self._expected = expected(self.single_observation_space, "its observation", self.num_envs)
        self._steps = np.zeros(self.num_envs, np.int64)  # lengths of the unfinished episodes
        self._present: Any = None
        self._limit = make.max_episode_steps
        spec = self._env.spec
        self._patience = self._limit is None and (spec is None or spec.max_episode_steps is None)
        """Whether to warn when an episode is truncated, because the limit is not the user's."""
        if self._patience:
            self._limit = longest
        self._sizes = choices(self.single_action_space)
        self._uses_masks, self._infos = masked, infos
        self._in_dict = carries_mask(self.single_observation_space, self.single_action_space)
        self.masked = masked and self._in_dict
        self._begun = False
        try:
            self._try(make)
        except BaseException:
            self.close()
            raise

    def reset(self, *, seed: Sequence[int], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Start new episodes where `options["reset_mask"]`, [num_envs], is set.

        seed: one seed per environment. Returns the current observations of all environments,
        [num_envs, *obs], and the action masks of those that were reset.
        """
        which = options["reset_mask"]
        # A copy, because Gymnasium's classes remove the mask from the dictionary and others may keep it.
        seeds: Any = list(seed)
        answer = self._env.reset(seed=seeds, options={"reset_mask": which.copy()})
        given, info = answered(self._env, "reset", answer)
        self._steps[which] = 0
        fresh = self._checked(given, "after a reset")
        before = self._present
        self._present = fresh if before is None or which.all() else _merged(before, fresh, which)
        masks = self._masks(fresh, info, which)
        self._begun = True
        return self._present, masks

    def step(
        self, actions: NDArray
    ) -> tuple[Any, NDArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Act in every environment, [num_envs, *action].

        Returns observations, [num_envs, *obs]; rewards in float64, terminated and truncated, each [num_envs];
        and the action masks, with the environment's info if it was asked for.
        """
        answer = self._env.step(actions.copy())
        given, reward, terminated, truncated, info = answered(self._env, "step", answer)
        self._steps += 1
        self._present = self._checked(given, "after a step")
        rewards = self._row(reward, "rewards", "biuf").astype(np.float64)
        over = self._row(terminated, "terminated", "biu").astype(np.bool_)
        cut = self._row(truncated, "truncated", "biu").astype(np.bool_)
        if self._limit is not None and (late := (self._steps >= self._limit) & ~over).any():
            if self._patience:
                self._patience = False
                _log.warning(
                    "an evaluation episode was truncated after %s steps: set env.max_episode_steps=<steps> "
                    "to limit the episodes of training and evaluation",
                    f"{self._limit:,}",
                )
            cut |= late
        every = np.ones(self.num_envs, np.bool_)
        masks = self._masks(self._present, info, every)
        return self._present, rewards, over, cut, {**info, **masks} if self._infos else masks

    def render(self) -> Any:
        """Return an image of each environment."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment. Calling it again has no effect."""
        if not self.closed:
            self.closed = True
            self._env.close()

    def _checked(self, given: Any, when: str) -> Any:
        """Check observations against their space, and return a copy."""
        try:
            self._expected.check(given)
        except ValueError as error:
            raise self._failed(f"{when}: {error}, for each of {self.num_envs}") from None
        return _copied(self.single_observation_space, given)

    def _row(self, given: Any, called: str, kinds: str) -> NDArray:
        row = np.asarray(given)
        if row.shape != (self.num_envs,) or row.dtype.kind not in kinds:
            raise self._failed(
                f"after a step: its {called} have type {row.dtype} and shape {row.shape}; there must be one "
                f"number for each of the {self.num_envs} environments"
            )
        return row

    def _failed(self, what: str, key: str = "env") -> EnvironmentFailedError:
        return EnvironmentFailedError(f"{self._name}: {what}", key=key)

    def _masks(self, seen: Any, info: Any, which: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the flags of valid actions, [num_envs, flags], and for which environments they are given.

        which: environments whose flags are new, [num_envs]. Returns an empty dict without masks.
        """
        if not isinstance(info, Mapping):
            raise self._failed(f"its info is {info!r}, but must be a dict")
        if not self._uses_masks or not (self._in_dict or KEY in info):
            return {}
        if not self.masked:
            if self._begun:
                raise self._failed(LATE, "env.action_mask")
            if not self._sizes:
                raise self._failed(f"{KEY} needs Discrete or MultiDiscrete actions", "env.action_mask")
            self.masked = True
        given = seen[KEY] if self._in_dict else info[KEY]
        own = which if self._in_dict else which & np.asarray(info.get(f"_{KEY}", which), np.bool_)
        needed = sum(self._sizes)
        flags = np.ones((self.num_envs, needed), np.bool_)
        parts = given if isinstance(given, tuple | list) else [given]
        try:
            rows = np.concatenate([np.asarray(part).reshape(self.num_envs, -1) for part in parts], axis=1)
            if rows.dtype == object:  # each row holds the parts of one mask, or None
                for env in np.flatnonzero(own):
                    flags[env] = flags_of(rows[env, 0], needed)
            elif rows.shape[1] != needed:
                flags_of(rows[0], needed)
            else:
                flags[own] = flags_of(rows[own].ravel(), needed * int(own.sum())).reshape(-1, needed)
        except ValueError as error:
            message = f"{error} (env.action_mask=false ignores masks)"
            raise self._failed(message, "env.action_mask") from None
        return {KEY: flags, f"_{KEY}": own}

    def _try(self, make: VectorFactory) -> None:
        """Raise InputError unless members can be reset alone, with a seed that determines their episode."""
        n, half = self.num_envs, STEPS // 2
        every = batch_space(self.single_action_space, n)
        every.seed(0)
        own, other = (
            np.array([every.sample() for _ in range(STEPS)], self.single_action_space.dtype) for _ in range(2)
        )
        try:
            first = self._played(range(1, n + 1), own)
            self._played(range(101 + n, 101 + 2 * n), other[:half])
            again = self._played(range(1, n + 1), own, restart=half)
            mixed = other[:half].copy()
            mixed[:, 0] = own[half:, 0]
            alone = self._played([0, *range(102 + n, 101 + 2 * n)], mixed)
        except InputError:
            raise
        except EnvironmentFailedError as error:
            make._refuse(str(error), "environment")
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            make._refuse(f"it failed in the check before the run: {reason}. {NEEDED}", "environment")
        self._present = None
        before, restarted = again[: half + 1], again[half + 1 :]
        if not _same(slice(None), first[: half + 1], before):
            make._refuse(f"repeating the same seeds and actions gave different episodes. {NEEDED}")
        if not _same(slice(1, None), first, before + restarted[1:]):
            make._refuse(
                f"resetting one environment changed the episodes of the others. {NEEDED}, without an effect "
                "on the others"
            )
        if not _same(slice(1), alone, restarted):
            make._refuse(f"an environment that was reset alone did not reproduce its episode. {NEEDED}")

    def _played(
        self, seeds: Sequence[int], actions: NDArray, restart: int | None = None
    ) -> list[list[NDArray]]:
        """Play `actions` and return everything that the environments return.

        seeds: seed of each environment's first episode, from which those of later episodes follow; restart:
        step before which the first environment is reset with seed 0. Returns a list of arrays
        [num_envs, ...] for the first reset, for the restart and for each step.
        """
        base, number = np.array(seeds), np.zeros(self.num_envs, np.int64)
        trace: list[list[NDArray]] = []
        mask = np.ones((self.num_envs, sum(self._sizes)), np.bool_)

        def begin(which: NDArray[np.bool_]) -> list[NDArray]:
            drawn = (base + 1_000_003 * number).tolist()
            seen, info = self.reset(seed=drawn, options={"reset_mask": which})
            take(info)
            return _leaves(seen)

        def take(info: dict[str, Any]) -> None:
            if KEY in info:
                mask[info[f"_{KEY}"]] = info[KEY][info[f"_{KEY}"]]

        trace.append(begin(np.ones(self.num_envs, np.bool_)))
        for index, action in enumerate(actions):
            if index == restart:
                base[0] = number[0] = 0
                trace.append(begin(np.arange(self.num_envs) == 0))
            if self.masked:
                action = _valid(action, mask, self.single_action_space)
            seen, reward, terminated, truncated, info = self.step(action)
            take(info)
            over = terminated | truncated
            number[over] += 1
            trace.append([*_leaves(seen), reward, terminated, truncated])
            trace[-1] += begin(over) if over.any() else _leaves(seen)
        return trace


def _same(envs: slice, left: list[list[NDArray]], right: list[list[NDArray]]) -> bool:
    """Return whether two traces are equal for some environments."""
    return same(
        [[part[envs] for part in row] for row in left], [[part[envs] for part in row] for row in right]
    )


def _valid(actions: NDArray, mask: NDArray[np.bool_], space: Any) -> NDArray:
    """Return `actions`, replaced by the first valid action where a mask excludes one."""
    index = (actions - space.start).reshape(len(actions), -1) + first_flags(space)
    fits = np.take_along_axis(mask, index, axis=1).all(axis=1)
    return np.where(fits.reshape(-1, *[1] * (actions.ndim - 1)), actions, first_valid(mask, space))


def _leaves(seen: Any) -> list[NDArray]:
    if isinstance(seen, dict | tuple):
        parts = seen.values() if isinstance(seen, dict) else seen
        return [leaf for part in parts for leaf in _leaves(part)]
    return [seen]


def _copied(space: Space[Any], given: Any) -> Any:
    """Return a copy of a batch of observations, in the types of their space."""
    if isinstance(space, Dict):
        return {key: _copied(part, given[key]) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_copied(part, given[index]) for index, part in enumerate(space.spaces))
    return np.array(given, space.dtype)


def _merged(before: Any, fresh: Any, which: NDArray[np.bool_]) -> Any:
    """Return new arrays with `fresh` for the environments in `which`, and `before` for the others."""
    if isinstance(fresh, dict):
        return {key: _merged(before[key], part, which) for key, part in fresh.items()}
    if isinstance(fresh, tuple):
        return tuple(_merged(*pair, which) for pair in zip(before, fresh, strict=True))
    return np.where(which.reshape(-1, *[1] * (fresh.ndim - 1)), fresh, before)
