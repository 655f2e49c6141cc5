"""Look at the environments of a configuration once, before a run.

An environment is played for a few steps to find out its spaces, whether it returns what Gymnasium requires,
whether there are action masks, and whether a seed and actions repeat an episode. It is closed again.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space

from labrl.envs.info import number_of, shorten
from labrl.envs.masks import KEY, carries_mask, choices, flags_of, replace_invalid, without_mask
from labrl.envs.protocol import Repeats
from labrl.envs.single import EnvFactory, GymnasiumConfig
from labrl.envs.subenv import fit
from labrl.errors import TRACEBACK, Code, InputError, LabrlError, described
from labrl.seeding import global_generators_kept
from labrl.spaces import copied, flat_space, inputs_of, range_of, same, why_unsupported

_log = logging.getLogger(__name__)

STEPS = 20
"""Number of steps of an episode that is compared. Five episodes are played if all repeat."""

LOOKALIKES = (
    *("action_masks", "mask", "masks", "valid_action_mask", "get_action_mask", "valid_actions", "valid_mask"),
    *("legal_actions", "legal_moves", "available_actions", "avail_actions", "get_avail_actions"),
)
"""Names of methods, and of entries of infos and observations, that other libraries use for masks."""

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
    lookalikes: Sequence[str]
    """Names of what looks like a mask, in order, if the environment provides none."""
    repeats: Repeats

    def describe_masks(self) -> str:
        """Return a line on the masks that a run uses, or on what looks like a mask but is not used."""
        if self.masked:
            carried = carries_mask(self.observation_space, self.action_space)
            source = f"observation[{KEY!r}]" if carried else f"info[{KEY!r}]"
            return f"action masks: {source} is used (env.action_mask=false ignores it)"
        if not (self.lookalikes and choices(self.action_space)):
            return ""
        return (
            f"action masks: none are used, although the environment has {', '.join(self.lookalikes)}. labrl "
            f"uses info[{KEY!r}] of reset() and step(), or observation[{KEY!r}]: return the mask there, for "
            "example in a wrapper (env.wrappers), or set env.action_mask=false"
        )


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
        self._lookalikes: dict[str, None] = {}
        self._actions: list[Any] = []
        self._inputs: list[tuple[tuple[Any, ...], Space[Any]]] = []
        """Path of each part of an observation, and its space."""
        self._least: dict[tuple[Any, ...], Any] = {}
        self._most: dict[tuple[Any, ...], Any] = {}
        """Least and greatest values of the parts that are Boxes."""

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
                self._warn_of_bounds(env)
            return Description(
                observation_space=self._space,
                action_space=self._action_space,
                masked=self._masked,
                lookalikes=tuple(self._lookalikes),
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
        answer: Any = env.reset(seed=seed, options=copy.deepcopy(self._options))
        observation, info = self._examine("reset", answer, ("observation", "info"))
        masked = self._asks_masks and self._has_mask(env, observation, info)
        self._masked |= masked
        # Copied because some environments modify their action, and some their earlier observations.
        yield copied(observation)
        for step, action in enumerate(self._actions):
            valid = replace_invalid(action, self._action_space, observation, info)
            names = ("observation", "reward", "terminated", "truncated", "info")
            result: Any = self._examine("step", env.step(np.array(valid)[()]), names)
            observation, reward, terminated, truncated, info = result
            if self._asks_masks and not masked and step == 0 and self._has_mask(env, observation, info):
                raise self._unusable(
                    f"it returns info['{KEY}'] from step() but not from reset(), so the valid first actions "
                    "are unknown: return the mask from reset() as well"
                )
            yield copied(observation), reward, terminated, truncated
            if terminated or truncated:
                break

    def _examine(self, method: str, answer: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """Return what a method returned. Raises InputError unless it is what Gymnasium requires."""
        several = isinstance(answer, tuple | list)
        if not several or len(answer) != len(names):
            came = f"{len(answer)} values" if several else shorten(answer)
            why = f"{method}() must return {len(names)} values, ({', '.join(names)}), but returned {came}"
            raise self._misfit(why, OLD_INTERFACE if several and len(answer) == 4 else "")
        observation, others, info = answer[0], answer[1:-1], answer[-1]
        if not isinstance(info, Mapping):
            raise self._misfit(f"{method}() returned the info {shorten(info)}, but it must be a dict")
        for flag in others[1:]:
            if np.shape(flag) not in ((), (1,)) or not np.isin(flag, (0, 1)).all():
                raise self._misfit(f"{method}() must return True or False as flags, not {shorten(flag)}")
        called = f"the observation of {method}()"
        try:
            for path, space in self._inputs:
                part, called = (
                    observation,
                    f"observation{''.join(f'[{key!r}]' for key in path)} of {method}()",
                )
                for key in path:
                    part = part[key]
                array = fit(space, part)
                if isinstance(space, Box):
                    self._least[path] = np.fmin(self._least.get(path, array), array)
                    self._most[path] = np.fmax(self._most.get(path, array), array)
            called = f"the reward of {method}()"
            for reward in others[:1]:
                number_of(reward)
        except (LookupError, TypeError, ValueError) as error:
            raise self._misfit(f"{called} {error}") from error
        return tuple(answer)

    def _warn_of_bounds(self, env: gymnasium.Env[Any, Any]) -> None:
        """Warn of observations outside the bounds of their space, by which networks scale bytes, and of bytes
        that are only 0 or 1. Environments of Gymnasium exceed bounds that nobody will change."""
        while not _is_own(env) and isinstance(env, gymnasium.Wrapper):
            env = env.env
        for path, space in self._inputs if _is_own(env) else ():
            if not isinstance(space, Box) or path not in self._least:
                continue
            least, most = self._least[path], self._most[path]
            slack = 1e-3 * np.maximum(np.abs(space.low * 1.0), np.abs(space.high * 1.0))
            called = f"{self._make.named}: {_called(path)}"
            if (least < space.low - slack).any() or (most > space.high + slack).any():
                _log.warning("%s exceeds the bounds of its space, %s, and is not clipped", called, space)
            elif range_of(space) == 255.0 and most.max() <= 1 and self._compares:
                _log.warning(
                    "%s contained only 0 and 1, but networks divide the bytes of its space, %s, by 255. If "
                    "it is an image with values from 0 to 1, multiply it by 255; if flags, declare high=1",
                    called,
                    space,
                )

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

    def _has_mask(self, env: gymnasium.Env[Any, Any], observation: Any, info: Any) -> bool:
        """Return whether `env` returned a mask, in its observation or info. Raises InputError if the mask
        does not fit the action space."""
        space, carried = self._action_space, carries_mask(self._space, self._action_space)
        if (given := observation[KEY] if carried else info.get(KEY)) is None:
            parts = {"info": info, "observation": observation if isinstance(observation, Mapping) else {}}
            found = [f"{part}[{name!r}]" for part in parts for name in LOOKALIKES if name in parts[part]]
            found += [f"its {name}" for name in LOOKALIKES if env.has_wrapper_attr(name)]
            self._lookalikes |= dict.fromkeys(found)
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
            raise self._misfit(why, f"{hint}{TRACEBACK}") from error

    def _misfit(self, why: str, fix: str = "") -> InputError:
        return self._unusable(why, fix, key=self._make.key)

    def _unusable(
        self,
        why: str,
        fix: str = "To ignore masks, set env.action_mask=false",
        code: Code = "environment",
        key: str = "env.action_mask",
    ) -> InputError:
        return InputError.about(self._make.named, why, fix, code=code, key=key)


def _called(path: tuple[Any, ...]) -> str:
    return f"observation{''.join(f'[{key!r}]' for key in path)}"


def _is_own(part: object) -> bool:
    """Return whether an environment or a wrapper belongs neither to labrl, Gymnasium nor the ALE."""
    return type(part).__module__.partition(".")[0] not in ("gymnasium", "ale_py", "labrl")
