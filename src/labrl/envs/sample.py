"""The environment that is made before a run to see what the others of its configuration will be like.

Making an environment may take seconds, so it is made once: it shows its spaces, whether it gives masks, and
whether a seeded reset determines an episode, and then it plays as the first one of the run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from labrl.envs.checked import Checked, MisfitError
from labrl.envs.masks import KEY, carries_mask, choices, flags_of, made_valid
from labrl.envs.single import AnswerError, EnvFactory
from labrl.errors import Code, InputError
from labrl.observations import copied, example, same

_log = logging.getLogger(__name__)

STEPS = 50
"""Longest episode that is compared."""

_samples: dict[Hashable, Sample] = {}
"""Samples known in this process, by what makes the environment and what was asked of it."""

_spares_are_kept = False


class Sample:
    """Properties that environments of one configuration share, and one of them until it is taken."""

    def __init__(self, make: EnvFactory, masks: bool, history: bool) -> None:
        """Make one environment. Raises InputError where that fails.

        masks, history: what to find out beside the spaces, where the configuration leaves it open.
        """
        self._make, self._asks_masks, self._asks_history = make, masks, history
        self._spare: Checked | None = Checked(make, make.named)
        self._played = False
        self._answers: tuple[bool, bool] | None = None if masks or history else (False, False)
        self.observation_space = self._spare.observation_space
        self.action_space = self._spare.action_space

    @property
    def answered(self) -> bool:
        """Whether all is known that was asked."""
        return self._answers is not None

    @property
    def masked(self) -> bool:
        """Whether environments say which actions are valid.

        Raises InputError for a mask that does not fit the actions, or that does not come with resets, and for
        whatever fails or does not fit in a few short episodes.
        """
        return self._found()[0]

    @property
    def remembers(self) -> bool:
        """Whether an environment must be made anew for each episode to repeat it. Raises what `masked` does.

        If episodes cannot be repeated even so, the log says that no run on it can be exact.
        """
        return self._found()[1]

    @property
    def spare(self) -> gymnasium.Env[Any, Any] | None:
        """The environment, which stays here; None where there is none any more."""
        return None if self._spare is None else self._spare.env

    def take(self) -> gymnasium.Env[Any, Any] | None:
        """Hand over the environment; None where there is none that plays as a new one would."""
        spare = self._spare
        if spare is None or (self._played and (self.remembers or not self._asks_history)):
            self.close()
            return None
        self._spare = None
        return spare.env

    def close(self) -> None:
        """Close the environment, unless somebody has it. Raises InputError where that fails."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with self._failing("close"):
                spare.close()

    def _found(self) -> tuple[bool, bool]:
        if self._answers is None:
            if self._spare is None:
                self._spare = Checked(self._make, self._make.named)
            self._played = True
            # History comes first: only what has played nothing before can show that it plays otherwise later.
            remembers = self._asks_history and self._depends_on_history(self._spare)
            self._answers = self._asks_masks and self._gives_masks(self._spare), remembers
        return self._answers

    def _depends_on_history(self, env: Checked) -> bool:
        """Play an episode, another one, and the first one's seed and actions again."""
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(STEPS)]
        others = [env.action_space.sample() for _ in range(STEPS)]
        first = self._trace(env, 1, actions)
        self._trace(env, 2, others)
        if same(first, self._trace(env, 1, actions)):
            return False
        anew = Checked(self._make, self._make.named)
        try:
            if not same(first, self._trace(anew, 1, actions)):
                _log.warning(
                    "%s does not repeat an episode from its seed and actions, even when made anew:"
                    " runs on it are neither repeatable nor exactly resumable",
                    self._make.named,
                )
        finally:
            anew.close()
        return True

    def _trace(self, env: Checked, seed: int, actions: Sequence[Any]) -> list[Any]:
        observation, info = self._reset(env, seed)
        if self._asks_masks:
            self._mask(observation, info)  # report a mask that does not fit before its consequences
        trace: list[Any] = [copied(observation)]
        for action in actions:
            valid = made_valid(action, env.action_space, observation, info)
            # Both directions: some environments write into their action, and some into what they gave before.
            observation, reward, terminated, truncated, info = self._step(env, np.array(valid)[()])
            trace.append((copied(observation), reward, terminated, truncated))
            if terminated or truncated:
                break
        return trace

    def _gives_masks(self, env: Checked) -> bool:
        """Look for a mask in a reset and a step."""
        space = env.action_space
        observation, info = self._reset(env, 0)
        given = self._mask(observation, info)
        space.seed(0)
        with self._failing("step"):  # there may be no example of an action
            action = made_valid(example(space)[0], space, observation, info)
        after = self._step(env, action)
        if given is None and self._mask(after[0], after[-1]) is not None:
            raise self._unusable(
                f"it gives info['{KEY}'] after steps but not after resets, so that the valid first actions "
                "are unknown: give it in reset(), too",
                "environment",
            )
        return given is not None

    def _mask(self, observation: Any, info: Any) -> Any:
        """Return the mask that is given, None for none. Raises InputError where it does not fit."""
        space = self.action_space
        carried = carries_mask(self.observation_space, space)
        given = observation[KEY] if carried else info.get(KEY)
        if given is None:
            return None
        if not choices(space):
            raise self._unusable(
                f"it gives info['{KEY}'], but its actions are {space}; masks are for Discrete and "
                "MultiDiscrete actions, where each flag stands for a value",
                "unsupported",
            )
        try:
            return flags_of(given, sum(choices(space)))
        except ValueError as error:
            raise self._unusable(str(error), "environment") from None

    def _unusable(self, why: str, code: Code) -> InputError:
        told = f"{self._make.named}: {why} (env.action_mask=false ignores masks)."
        return InputError(told, code=code, key="env.action_mask")

    def _reset(self, env: Checked, seed: int) -> Any:
        with self._failing("reset"):
            # Options are never None in labrl's vector environments either.
            return env.reset(seed=seed, options={})

    def _step(self, env: Checked, action: Any) -> Any:
        with self._failing("step"):
            return env.step(action)

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Raise what fails as InputError."""
        try:
            yield
        except AnswerError as error:
            raise self._refused(f"{self._make.named}: {error}") from error
        except MisfitError as error:  # begins with its name
            raise self._refused(str(error)) from error
        except (Exception, SystemExit) as error:
            told = f"{self._make.named}: its {doing}() failed before the run: {type(error).__name__}: {error}"
            raise self._refused(told) from error

    def _refused(self, told: str) -> InputError:
        return InputError(told, code="environment", key=self._make.key)


def sample_of(make: EnvFactory, masks: bool, history: bool) -> Sample:
    """Return what is known of the environments that `make` makes, or make one to know it.

    masks, history: what to find out beside the spaces. Raises InputError where it cannot be made.
    """
    key = make.identity, masks, history
    if key not in _samples:
        drop_spares()
        _samples[key] = Sample(make, masks, history)
    return _samples[key]


def known_sample(make: EnvFactory, masks: bool, history: bool) -> Sample | None:
    """Return what is known of the environments that `make` makes; None where none was looked at."""
    return _samples.get((make.identity, masks, history))


def done_with(sample: Sample) -> None:
    """Close the environment of a sample, unless it is kept for the run that follows."""
    if not _spares_are_kept:
        sample.close()


@contextlib.contextmanager
def kept_for_the_run() -> Iterator[None]:
    """Keep the environment that is made to look at it for the session that begins within this context."""
    global _spares_are_kept
    before, _spares_are_kept = _spares_are_kept, True
    try:
        yield
    finally:
        _spares_are_kept = before
        drop_spares()


def drop_spares() -> None:
    """Close the environments that nobody has taken. Raises InputError where that fails."""
    for sample in _samples.values():
        sample.close()
