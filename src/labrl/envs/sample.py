"""Make one environment before a run to find out the properties of all environments of its configuration.

These are its spaces, whether it provides action masks, and whether a seeded reset determines an episode.
Because making an environment may take seconds, it is then used as the first environment of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from labrl.envs.checked import Checked, MisfitError
from labrl.envs.masks import KEY, carries_mask, choices, flags_of, replace_invalid
from labrl.envs.protocol import Repeats
from labrl.envs.single import AnswerError, EnvFactory
from labrl.errors import Code, InputError
from labrl.spaces import copied, example, same

STEPS = 50
"""Number of steps for which episodes are compared."""

_samples: dict[Hashable, Sample] = {}
"""Samples made in this process, by the identity of the environment and the properties to find out."""

_spares_are_kept = False


class Sample:
    """Properties of the environments of one configuration, and one of them until it is taken."""

    def __init__(self, make: EnvFactory, masks: bool, history: bool) -> None:
        """Make one environment. Raises InputError if that fails.

        masks, history: whether to find out if it provides action masks, and if a seeded reset depends on
        earlier episodes. Both are False if the configuration already says so.
        """
        self._make, self._asks_masks, self._asks_history = make, masks, history
        self._spare: Checked | None = Checked(make, make.named)
        self._played = False
        self._answers: tuple[bool, Repeats] | None = None if masks or history else (False, "always")
        self.observation_space = self._spare.observation_space
        self.action_space = self._spare.action_space

    @property
    def answered(self) -> bool:
        """Whether all requested properties are known."""
        return self._answers is not None

    @property
    def masked(self) -> bool:
        """Whether environments provide action masks.

        Raises InputError if a mask does not fit the actions or is missing after resets, and if anything fails
        or does not fit in a few short episodes.
        """
        return self._found()[0]

    @property
    def repeats(self) -> Repeats:
        """When seed and actions repeat an episode. Raises like `masked`."""
        return self._found()[1]

    def lend(self) -> gymnasium.Env[Any, Any] | None:
        """Return the environment to play in it, without taking it; None if there is none left."""
        if self._spare is None:
            return None
        self._found()  # only an unused environment can show a dependence on earlier episodes
        self._played = True
        return self._spare.env

    def take(self) -> gymnasium.Env[Any, Any] | None:
        """Take the environment; None if there is none that behaves like a new one."""
        spare = self._spare
        if spare is None or (self._played and (self.repeats != "always" or not self._asks_history)):
            self.close()
            return None
        self._spare = None
        return spare.env

    def close(self) -> None:
        """Close the environment unless it was taken. Raises InputError if that fails."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with self._failing("close"):
                spare.close()

    def _found(self) -> tuple[bool, Repeats]:
        if self._answers is None:
            if self._spare is None:
                self._spare = Checked(self._make, self._make.named)
            self._played = True
            # Only an unused environment can show a dependence on earlier episodes.
            repeats = self._compare(self._spare) if self._asks_history else "always"
            self._answers = self._asks_masks and self._gives_masks(self._spare), repeats
        return self._answers

    def _compare(self, env: Checked) -> Repeats:
        """Play an episode, another one, and the first one again. Return whether the repetition is equal."""
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(STEPS)]
        others = [env.action_space.sample() for _ in range(STEPS)]
        first = self._trace(env, 1, actions)
        self._trace(env, 2, others)
        if same(first, self._trace(env, 1, actions)):
            return "always"
        fresh = Checked(self._make, self._make.named)
        try:
            return "if new" if same(first, self._trace(fresh, 1, actions)) else "never"
        finally:
            fresh.close()

    def _trace(self, env: Checked, seed: int, actions: Sequence[Any]) -> list[Any]:
        observation, info = self._reset(env, seed)
        if self._asks_masks:
            self._mask(observation, info)  # report a mask that does not fit before its consequences
        trace: list[Any] = [copied(observation)]
        for action in actions:
            valid = replace_invalid(action, env.action_space, observation, info)
            # Copied because some environments modify their action, and some their earlier observations.
            observation, reward, terminated, truncated, info = self._step(env, np.array(valid)[()])
            trace.append((copied(observation), reward, terminated, truncated))
            if terminated or truncated:
                break
        return trace

    def _gives_masks(self, env: Checked) -> bool:
        """Return whether a reset and a step provide a mask."""
        space = env.action_space
        observation, info = self._reset(env, 0)
        given = self._mask(observation, info)
        space.seed(0)
        with self._failing("step"):  # the space may have no example
            action = replace_invalid(example(space)[0], space, observation, info)
        after = self._step(env, action)
        if given is None and self._mask(after[0], after[-1]) is not None:
            raise self._unusable(
                f"it returns info['{KEY}'] from step() but not from reset(), so the valid first actions are "
                "unknown: return it from reset(), too",
                "environment",
            )
        return given is not None

    def _mask(self, observation: Any, info: Any) -> Any:
        """Return the mask, or None if there is none. Raises InputError if it does not fit the actions."""
        space = self.action_space
        carried = carries_mask(self.observation_space, space)
        given = observation[KEY] if carried else info.get(KEY)
        if given is None:
            return None
        if not choices(space):
            raise self._unusable(
                f"it returns info['{KEY}'], but its actions are {space}; masks need Discrete or "
                "MultiDiscrete actions, with a flag for each value",
                "unsupported",
            )
        try:
            return flags_of(given, sum(choices(space)))
        except ValueError as error:
            raise self._unusable(str(error), "environment") from None

    def _unusable(self, why: str, code: Code) -> InputError:
        message = f"{self._make.named}: {why} (env.action_mask=false ignores masks)."
        return InputError(message, code=code, key="env.action_mask")

    def _reset(self, env: Checked, seed: int) -> Any:
        with self._failing("reset"):
            return env.reset(seed=seed)

    def _step(self, env: Checked, action: Any) -> Any:
        with self._failing("step"):
            return env.step(action)

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Convert exceptions of the environment to InputError."""
        try:
            yield
        except AnswerError as error:
            raise self._refused(f"{self._make.named}: {error}") from error
        except MisfitError as error:  # its message starts with the name
            raise self._refused(str(error)) from error
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise self._refused(f"{self._make.named}: {doing}() failed before the run: {reason}") from error

    def _refused(self, message: str) -> InputError:
        return InputError(message, code="environment", key=self._make.key)


def sample_of(make: EnvFactory, masks: bool, history: bool) -> Sample:
    """Return the sample of the environments made by `make`, making one if needed.

    masks, history: see `Sample`. Raises InputError if the environment cannot be made.
    """
    key = make.identity, masks, history
    if key not in _samples:
        drop_spares()
        _samples[key] = Sample(make, masks, history)
    return _samples[key]


def known_sample(make: EnvFactory, masks: bool, history: bool) -> Sample | None:
    """Return the sample of the environments made by `make`; None if there is none in this process."""
    return _samples.get((make.identity, masks, history))


def done_with(sample: Sample) -> None:
    """Close the environment of a sample unless it is kept for the run."""
    if not _spares_are_kept:
        sample.close()


@contextlib.contextmanager
def kept_for_the_run() -> Iterator[None]:
    """Within this context, keep the environments of samples for the session that will start."""
    global _spares_are_kept
    before, _spares_are_kept = _spares_are_kept, True
    try:
        yield
    finally:
        _spares_are_kept = before
        drop_spares()


def drop_spares() -> None:
    """Close the environments of all samples that were not taken. Raises InputError if that fails."""
    for sample in _samples.values():
        sample.close()
