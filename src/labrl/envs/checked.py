"""Check the answers of one environment: they must fit its spaces, and what Gymnasium asks for.

Unchecked, an observation that does not fit would be stretched or rounded where it is put into an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from labrl.envs.masks import KEY, carries_mask, choices, flags_of
from labrl.envs.single import MakeEnv
from labrl.errors import EnvironmentFailedError

LATE = (
    f"it gives info['{KEY}'], but its first reset and step gave none, so that the agent was built without "
    "masks: give it at every reset and step (env.action_mask=false ignores masks)"
)


class MisfitError(EnvironmentFailedError):
    """An environment gave what does not fit its spaces, or what is no number, flag or dict."""


class AnswerCheck:
    """Check that the answers of one environment fit its spaces and Gymnasium's interface.

    Everything is checked in every step except numbers that are not finite, which `VectorEnv` finds in all
    environments at once. Of `info`, labrl reads the mask only.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        name: str,
        number: int = 0,
        masked: bool | None = None,
        wanted: bool = False,
    ) -> None:
        """name: of the environment, and its `number` among those of its session; masked: it gave a mask when
        it was tried before the run, so that its infos hold the mask as flags, and else nothing; None: they
        come as they are. wanted: whether masks would be used if it gave any."""
        self._name, self._index = name, number
        self._as_given = masked is None
        self._unmasked = wanted and masked is False
        self._num_flags = sum(choices(env.action_space)) if masked else 0
        self._in_dict = carries_mask(env.observation_space, env.action_space)
        self._expected = expected(env.observation_space, "its observation")

    def reset(self, observation: Any, info: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return what a reset gave. Raises MisfitError."""
        return observation, self._looked_at(observation, info, 0)

    def step(
        self, number: int, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Return what step `number` of an episode gave, with the reward as a float and the flags as bools.

        Raises MisfitError.
        """
        if type(reward) is not float:
            reward = self._one_number(reward, number)
        if type(terminated) is not bool:
            terminated = self._flag(terminated, "terminated", number)
        if type(truncated) is not bool:
            truncated = self._flag(truncated, "truncated", number)
        return observation, reward, terminated, truncated, self._looked_at(observation, info, number)

    def _one_number(self, reward: Any, step: int) -> float:
        try:
            if isinstance(reward, str | bytes):
                raise TypeError
            return float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError):
            self._refuse(f"its reward is {_shown(reward)}, it must be one number", step)

    def _flag(self, given: Any, called: str, step: int) -> bool:
        """Return as a bool whatever equals one, such as NumPy's own, and an array of one of these."""
        one = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
        if not isinstance(one, np.bool_ | bool | int | float | np.number) or one not in (0, 1):
            self._refuse(f"its {called} is {_shown(given)}, it must be True or False", step)
        return bool(one)

    def _refuse(self, what: str, step: int) -> Never:
        when = f"after step {step} of its episode" if step else "after its reset"
        raise MisfitError(f"{self._name}: environment {self._index} {when}: {what}", key="env") from None

    def _looked_at(self, observation: Any, info: Any, step: int) -> Mapping[str, Any]:
        """Return the part of `info` that the caller gets."""
        if type(info) is not dict and not isinstance(info, Mapping):
            self._refuse(f"its info is {_shown(info)}, it must be a dict", step)
        try:
            self._expected.check(observation)
            if self._as_given:
                return info
            if self._unmasked and KEY in info:
                raise ValueError(LATE)
            if not self._num_flags:
                return {}
            given = observation[KEY] if self._in_dict else info.get(KEY)
            return {} if given is None else {KEY: flags_of(given, self._num_flags)}
        except ValueError as error:
            self._refuse(str(error), step)


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment whose answers are checked, for worker processes and for trying it before a run."""

    def __init__(
        self, make: MakeEnv, name: str, number: int = 0, masked: bool | None = None, wanted: bool = False
    ) -> None:
        """Take the arguments of `AnswerCheck`, and what makes the environment."""
        super().__init__(make())
        self._check = AnswerCheck(self.env, name, number, masked, wanted)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Pass on the environment's answer."""
        self._steps = 0
        return self._check.reset(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Pass on the environment's answer, with the reward as a float and the flags as bools."""
        self._steps += 1
        return self._check.step(self._steps, *self.env.step(action))


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:80]}..."


class _Array:
    """An array or number of an observation."""

    def __init__(self, space: Space[Any], called: str, batch: int | None) -> None:
        self._space, self._called = space, called
        self._shape, self._dtype = space.shape, np.dtype(space.dtype)
        if batch is not None and space.shape is not None:
            self._shape = (batch, *space.shape)
        self._ends: tuple[Any, Any] | None = None
        """The smallest and largest values of choices. A box may be left a little: of that there is much."""
        self._single = isinstance(space, Discrete) and batch is None
        if isinstance(space, Discrete):
            self._ends = int(space.start), int(space.start) + int(space.n) - 1
        elif isinstance(space, MultiDiscrete):
            self._ends = space.start, space.start + (space.nvec - 1)
        elif isinstance(space, MultiBinary):
            self._ends = 0, 1

    def check(self, given: Any) -> None:
        """Raise ValueError for another shape, and for what the space's type or range does not hold."""
        kind = type(given)
        fits = kind is np.ndarray and given.dtype == self._dtype and given.shape == self._shape
        # Most choices come as a number, and to make an array of it takes longer than all else.
        fits = fits or (self._single and kind in (int, np.int64))
        array = given if fits else self._array(given)
        if self._ends is not None:
            least, most = self._ends
            if not (least <= array <= most if self._single else ((least <= array) & (array <= most)).all()):
                self._refuse(f"is {given}")

    def _array(self, given: Any) -> NDArray:
        try:
            array = np.asarray(given)
        except ValueError:  # lists of several lengths
            self._refuse("is no array")
        if array.shape != self._shape:
            self._refuse(f"has the shape {array.shape}")
        if array.dtype.kind not in "biuf":
            self._refuse(
                f"is of type {array.dtype if isinstance(given, np.ndarray) else type(given).__name__}"
            )
        if self._dtype.kind == "f" or np.can_cast(array.dtype, self._dtype):
            return array
        with np.errstate(invalid="ignore"):
            altered = array.astype(self._dtype) != array
        if np.count_nonzero(altered):
            self._refuse(f"holds {array[altered].flat[0]}, which {self._dtype} does not")
        return array

    def _refuse(self, what: str) -> Never:
        raise ValueError(f"{self._called} {what}; its space is {self._space}")


class _Several:
    """A dict or tuple of these."""

    def __init__(self, space: Dict | Tuple, called: str, batch: int | None) -> None:
        self._kind: Any = Mapping if isinstance(space, Dict) else tuple | list
        self._called = called
        inner = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        self._parts = {key: expected(part, f"{called}[{key!r}]", batch) for key, part in inner}

    def check(self, given: Any) -> None:
        """Raise ValueError where one is missing or does not fit. Further ones are ignored."""
        if not isinstance(given, self._kind):
            kind = "dict" if self._kind is Mapping else "tuple"
            raise ValueError(f"{self._called} is a {type(given).__name__}; its space is a {kind}")
        for key, part in self._parts.items():
            try:
                value = given[key]
            except LookupError:
                raise ValueError(f"{self._called} lacks {key!r}, which its space has") from None
            part.check(value)


class _Anything:
    """Accepts everything; other spaces are refused before a run."""

    def check(self, given: Any) -> None:
        """Nothing is known of it."""


def expected(space: Space[Any], called: str, batch: int | None = None) -> _Array | _Several | _Anything:
    """Return the check for observations of a space, or for batches of that size."""
    if isinstance(space, Dict | Tuple):
        return _Several(space, called, batch)
    return (
        _Array(space, called, batch)
        if isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete)
        else _Anything()
    )
