"""Look at the environments of a configuration once, before a run.

An environment is played for a few steps to find out its spaces, whether it returns what Gymnasium requires,
whether there are action masks, and whether a seed and actions repeat an episode. It is closed again.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from labrl.envs.info import number_of
from labrl.envs.masks import KEY, carries_mask, choices, flags_of, replace_invalid, without_mask
from labrl.envs.protocol import Repeats
from labrl.envs.single import EnvFactory, GymnasiumConfig
from labrl.envs.subenv import fit
from labrl.errors import TRACEBACK, Code, InputError, LabrlError, described
from labrl.seeding import global_generators_kept
from labrl.spaces import copied, flat_space, inputs_of, same, why_unsupported

_log = logging.getLogger(__name__)

STEPS = 20
"""Number of steps of an episode that is compared. Five episodes are played if all repeat."""

OLD_INTERFACE = "This is Gym's old interface: replace `done` by `terminated, truncated`"

_known: dict[Hashable, Description] = {}
"""Descriptions that were made in this process, by environment and by the properties to find out."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Properties of the environments of one configuration."""

    observation_space: Space[Any]
    action_space: Space[Any]
    masked: bool
    """Whether environments provide action masks."""
    repeats: Repeats

    def describe_masks(self) -> str:
        """Return a line on the masks that a run uses; empty if there are none."""
        if not self.masked:
            return ""
        carried = carries_mask(self.observation_space, self.action_space)
        source = f"observation[{KEY!r}]" if carried else f"info[{KEY!r}]"
        return f"action masks: {source} is used (env.action_mask=false ignores it)"


def description_of(config: GymnasiumConfig) -> Description:
    """Return the properties of the environments of a configuration, which are found out once in a process.

    Raises InputError if an environment cannot be made, fails or returns wrong values, or if a mask does not
    fit the actions or is missing after resets.
    """
    compares = config.check and config.fresh_env_per_episode is None  # otherwise the user has declared it
    key = EnvFactory(config).identity, config.action_mask, compares
    if key not in _known:
        with global_generators_kept():
            _known[key] = _Look(config, compares).describe()
    return _known[key]


class _Look:
    """Plays in environments of one configuration to describe them."""

    def __init__(self, config: GymnasiumConfig, compares: bool) -> None:
        """compares: whether to find out when episodes repeat."""
        self._make, self._options = EnvFactory(config), config.reset_options
        self._asks_masks, self._compares = config.action_mask, compares
        self._masked = False
        self._actions: list[Any] = []
        self._inputs: list[tuple[tuple[Any, ...], Space[Any]]] = []
        """Path of each part of an observation, and its space."""

    def describe(self) -> Description:
        """Return the properties of the environments."""
        repeats: Repeats = "always"
        with self._made() as env:
            self._space, self._action_space = env.observation_space, env.action_space
            seen = flat_space(without_mask(self._space, self._action_space))
            steps = STEPS if self._compares else int(self._asks_masks)
            if steps and not why_unsupported(seen, self._action_space):
                self._inputs = [(path, part) for _, path, part in inputs_of(self._space)]
                self._action_space.seed(0)
                with self._failing("the environment"):
                    self._actions = [self._action_space.sample() for _ in range(steps)]
                    first = self._play(env, 1)
                    repeats = self._compare(env, first) if self._compares else "always"
            return Description(
                observation_space=self._space,
                action_space=self._action_space,
                masked=self._masked,
                repeats=repeats,
            )

    def _compare(self, used: gymnasium.Env[Any, Any], first: list[Any]) -> Repeats:
        """Return when episodes repeat. first: trace of seed 1 in `used` when it was new."""
        self._play(used, 2)
        again = same(first, self._play(used, 1))
        with self._made() as new:
            among_others = same(first, self._play(new, 1, used))
        if again and among_others:
            return "always"
        with self._made() as new:
            alone = same(first, self._play(new, 1))
        if again or not alone:
            return "alone" if alone else "never"
        with self._made() as new:
            unseeded = same(first, self._play(new, 2))
        return "unseeded" if unseeded else "if new" if among_others else "alone"

    def _play(
        self, env: gymnasium.Env[Any, Any], seed: int, other: gymnasium.Env[Any, Any] | None = None
    ) -> list[Any]:
        """Play the start of an episode. Return its first observation and the results of its steps.

        other: environment that is used in turn, with another seed.
        """
        beside = () if other is None else self._start(other, seed + 1)
        return [one for one, _ in zip(self._start(env, seed), chain(beside, repeat(None)), strict=False)]

    def _start(self, env: gymnasium.Env[Any, Any], seed: int) -> Iterator[Any]:
        """Reset an environment, and step it whenever the next result is asked for."""
        # A copy, because an environment may modify its options.
        observation, info = env.reset(seed=seed, options=copy.deepcopy(self._options))
        self._check_fit(observation, "reset")
        masked = self._asks_masks and self._has_mask(observation, info)
        self._masked |= masked
        # Copied because some environments modify their action, and some their earlier observations.
        yield copied(observation)
        for step, action in enumerate(self._actions):
            valid = replace_invalid(action, self._action_space, observation, info)
            observation, reward, terminated, truncated, info = env.step(np.array(valid)[()])
            self._check_fit(observation, "step", reward=reward, terminated=terminated, truncated=truncated)
            if self._asks_masks and not masked and step == 0 and self._has_mask(observation, info):
                raise self._unusable(
                    f"it returns info['{KEY}'] from step() but not from reset(), so the valid first actions "
                    "are unknown: return the mask from reset() as well"
                )
            yield copied(observation), reward, terminated, truncated
            if terminated or truncated:
                break

    def _check_fit(self, observation: Any, method: str, **numbers: Any) -> None:
        """Raise InputError unless an observation fits its space, and rewards and flags are numbers."""
        try:
            for path, space in self._inputs:
                called, part = "".join(["observation", *(f"[{key!r}]" for key in path)]), observation
                for key in path:
                    part = part[key]
                fit(space, part)
            for called, number in numbers.items():  # noqa: B007  (the error names it)
                number_of(number)
        except (LookupError, TypeError, ValueError) as error:
            raise self._unusable(f"the {called} of {method}() {error}", key=self._make.key) from error

    @contextlib.contextmanager
    def _made(self) -> Iterator[gymnasium.Env[Any, Any]]:
        """Context manager: make an environment, and close it at the end."""
        try:
            env = self._make()
        except (Exception, SystemExit) as error:
            if not self._actions:
                raise
            why, fix = f"no second one can be made: {described(error)}", "To need none, set env.check=false"
            raise self._unusable(why, fix, key=self._make.key) from error
        try:
            yield env
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                env.close()
            raise
        # Without a comparison, a second environment may be impossible while this one is open.
        with contextlib.suppress(Exception) if self._compares else self._failing("close()"):
            env.close()

    def _has_mask(self, observation: Any, info: Any) -> bool:
        """Return whether the environment returned a mask, in its observation or info. Raises InputError if
        the mask does not fit the action space."""
        space, carried = self._action_space, carries_mask(self._space, self._action_space)
        if (given := observation[KEY] if carried else info.get(KEY)) is None:
            return False
        if not choices(space):
            raise self._unusable(
                f"it returns info['{KEY}'], but its actions are {space}; masks need Discrete or "
                "MultiDiscrete actions, with a flag for each value",
                code="unsupported",
            )
        try:
            flags_of(given, sum(choices(space)))
        except ValueError as error:
            raise self._unusable(str(error)) from None
        return True

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Convert exceptions of the environment to InputError. what: name of what failed, for the message."""
        try:
            yield
        except LabrlError:
            raise
        except (Exception, SystemExit) as error:
            # Wrappers unpack what the environment returned.
            hint = f"{OLD_INTERFACE}. " if "expected 5, got 4" in str(error) else ""
            why = f"{what} failed before the run: {described(error)}"
            raise self._unusable(why, f"{hint}{TRACEBACK}", key=self._make.key) from error

    def _unusable(
        self, why: str, fix: str = "", code: Code = "environment", key: str = "env.action_mask"
    ) -> InputError:
        fix = fix or "To ignore masks, set env.action_mask=false" * (key == "env.action_mask")
        return InputError.about(self._make.named, why, fix, code=code, key=key)
