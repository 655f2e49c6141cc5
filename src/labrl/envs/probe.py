"""Make one environment before a run to find out the properties of all environments of its configuration.

The properties are the spaces, whether there are action masks, and whether a seeded reset determines an
episode. Because making an environment may take seconds, it becomes the first environment of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np

from labrl.envs.bounds import declares_own_bounds
from labrl.envs.checked import CheckedEnv, MisfitError
from labrl.envs.masks import KEY, carries_mask, choices, flags_of, replace_invalid
from labrl.envs.protocol import Repeats
from labrl.envs.single import EnvFactory, GymnasiumConfig
from labrl.errors import TRACEBACK, Code, InputError, LabrlError, described
from labrl.spaces import copied, same

STEPS = 20
"""Number of steps over which episodes are compared."""

LOOKALIKES = (
    *("action_masks", "mask", "masks", "valid_action_mask", "get_action_mask", "valid_actions", "valid_mask"),
    *("legal_actions", "legal_moves", "available_actions", "avail_actions", "get_avail_actions"),
)
"""Names of methods, and of entries of infos and observations, that other libraries use for masks."""

_probes: dict[Hashable, EnvProbe] = {}
"""Probes of this process, by environment and by the properties to determine."""

_spares_are_kept = False


class EnvProbe:
    """Properties of the environments of one configuration, and one such environment until it is taken."""

    def __init__(self, config: GymnasiumConfig) -> None:
        """Make one environment. Raises InputError if that fails."""
        self._make, self._options = EnvFactory(config), config.reset_options
        self._asks_masks = config.action_mask
        self._asks_history = config.fresh_env_per_episode is None  # otherwise the user has declared it
        self._spare: CheckedEnv | None = self._make_checked()
        self._played = False
        self._lookalikes: dict[str, None] = {}
        """Names of what looks like a mask, in order, if the environment provides none."""
        self.observation_space = self._spare.env.observation_space
        self.action_space = self._spare.env.action_space
        self.checks_bounds = declares_own_bounds(self._spare.env)
        """Whether to warn of observations outside the bounds of their space."""

    @property
    def masked(self) -> bool:
        """Whether environments provide action masks.

        Determining this plays a few short episodes. Raises InputError if an environment fails or returns
        wrong values, or if a mask does not fit the actions or is missing after resets.
        """
        return self._found[0]

    def describe_masks(self) -> str:
        """Return a line on the masks that a run uses, or on what looks like a mask but is not used."""
        if self.masked:
            carried = carries_mask(self.observation_space, self.action_space)
            source = f"observation[{KEY!r}]" if carried else f"info[{KEY!r}]"
            return f"action masks: {source} is used (env.action_mask=false ignores it)"
        if not (self._lookalikes and choices(self.action_space)):
            return ""
        return (
            f"action masks: none are used, although the environment has {', '.join(self._lookalikes)}. labrl "
            f"uses info[{KEY!r}] of reset() and step(), or observation[{KEY!r}]: return the mask there, for "
            "example in a wrapper (env.wrappers), or set env.action_mask=false"
        )

    @property
    def repeats(self) -> Repeats:
        """When a seed and actions repeat an episode. Raises InputError in the same cases as `masked`."""
        return self._found[1]

    def lend(self) -> gymnasium.Env[Any, Any] | None:
        """Return the environment for playing in it, without taking it; None if it was taken or closed."""
        if self._spare is None:
            return None
        _ = self._found  # only an unused environment can show a dependence on earlier episodes
        self._played = True
        return self._spare.env

    def take(self) -> gymnasium.Env[Any, Any] | None:
        """Hand over the environment; None if there is none that behaves like a new one."""
        if self._played and (self.repeats != "always" or not self._asks_history):
            self.close()
        spare, self._spare = self._spare, None
        return None if spare is None else spare.env

    def close(self) -> None:
        """Close the environment unless it was taken. Raises InputError if that fails."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with self._failing("close()"):
                spare.close()

    def _make_checked(self) -> CheckedEnv:
        return CheckedEnv(self._make, self._make.named, options=self._options)

    @cached_property
    def _found(self) -> tuple[bool, Repeats]:
        """Whether there are masks, and when episodes repeat."""
        if not (self._asks_masks or self._asks_history):
            return False, "always"
        env = self._spare = self._spare or self._make_checked()
        self._played = True
        self.action_space.seed(0)
        with self._failing("the environment"):
            actions = [self.action_space.sample() for _ in range(STEPS if self._asks_history else 1)]
            first, masked = self._play(env, 1, actions)
            repeats: Repeats = "always"
            if self._asks_history:
                self._play(env, 2, actions)
                if not same(first, self._play(env, 1, actions)[0]):
                    new = self._make_checked()
                    repeats = "if new" if same(first, self._play(new, 1, actions)[0]) else "never"
                    new.close()
            return masked, repeats

    def _play(self, env: CheckedEnv, seed: int, actions: Sequence[Any]) -> tuple[list[Any], bool]:
        """Play the start of an episode. Return its trace and whether the reset provides a mask."""
        space, masked = self.action_space, False
        observation, info = env.reset(seed)
        if self._asks_masks:
            masked = self._has_mask(env, observation, info)
        trace: list[Any] = [copied(observation)]
        for step, action in enumerate(actions):
            valid = replace_invalid(action, space, observation, info)
            # Copied because some environments modify their action, and some their earlier observations.
            observation, reward, terminated, truncated, info = env.step(np.array(valid)[()])
            trace.append((copied(observation), reward, terminated, truncated))
            if self._asks_masks and not masked and step == 0 and self._has_mask(env, observation, info):
                raise self._unusable(
                    f"it returns info['{KEY}'] from step() but not from reset(), so the valid first actions "
                    "are unknown: return the mask from reset() as well"
                )
            if terminated or truncated:
                break
        return trace, masked

    def _has_mask(self, env: CheckedEnv, observation: Any, info: Any) -> bool:
        """Return whether `env` returned a mask, in its observation or info. Raises InputError if the mask
        does not fit the action space."""
        space = self.action_space
        carried = carries_mask(self.observation_space, space)
        if (given := observation[KEY] if carried else info.get(KEY)) is None:
            parts = {"info": info, "observation": observation if isinstance(observation, Mapping) else {}}
            places = [f"{part}[{name!r}]" for part in parts for name in LOOKALIKES if name in parts[part]]
            places += [f"its {name}" for name in LOOKALIKES if env.env.has_wrapper_attr(name)]
            self._lookalikes |= dict.fromkeys(places)
            return False
        if not choices(space):
            raise self._unusable(
                f"it returns info['{KEY}'], but its actions are {space}; masks need Discrete or "
                "MultiDiscrete actions, with a flag for each value",
                "unsupported",
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
        except MisfitError as error:
            raise InputError(str(error), code="environment", key=self._make.key) from error
        except LabrlError:
            raise
        except (Exception, SystemExit) as error:
            why, key = f"{what} failed before the run: {described(error)}", self._make.key
            raise InputError.about(self._make.named, why, TRACEBACK, code="environment", key=key) from error

    def _unusable(self, why: str, code: Code = "environment") -> InputError:
        fix, key = "To ignore masks, set env.action_mask=false", "env.action_mask"
        return InputError.about(self._make.named, why, fix, code=code, key=key)


def probe_of(config: GymnasiumConfig) -> EnvProbe:
    """Return the probe for the environments of a configuration, made now if there is none.

    Raises InputError if the environment cannot be made.
    """
    if (known := known_probe(config)) is not None:
        return known
    close_spares()
    return _probes.setdefault(_identity(config), EnvProbe(config))


@contextlib.contextmanager
def probing(config: GymnasiumConfig) -> Iterator[EnvProbe]:
    """Context manager: provide the probe for a configuration. Its environment is closed on exit, unless it is
    kept for a session that will start."""
    probe = probe_of(config)
    yield probe
    if not _spares_are_kept:
        probe.close()


def known_probe(config: GymnasiumConfig) -> EnvProbe | None:
    """Return the probe of the environments of a configuration; None if there is none in this process."""
    return _probes.get(_identity(config))


def _identity(config: GymnasiumConfig) -> Hashable:
    """Return a hashable object that is equal for configurations of the same environment."""
    return EnvFactory(config).identity, config.action_mask, config.fresh_env_per_episode is None


@contextlib.contextmanager
def keeping_spares() -> Iterator[None]:
    """Context manager: keep the environments of probes for the session that will start."""
    global _spares_are_kept
    before, _spares_are_kept = _spares_are_kept, True
    try:
        yield
    finally:
        _spares_are_kept = before
        close_spares()


def close_spares() -> None:
    """Close the environments of all probes, except those that were taken."""
    for probe in _probes.values():
        probe.close()
