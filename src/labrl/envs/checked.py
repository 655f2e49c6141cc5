"""Check that the return values of an environment fit its spaces and Gymnasium's interface.

Without the check, an observation that does not fit would be broadcast or rounded when it is copied into an
array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from labrl.envs.info import numbers_of
from labrl.envs.masks import KEY, carries_mask, choices, flags_of
from labrl.envs.single import MakeEnv
from labrl.errors import EnvironmentFailedError

LATE = (
    f"it returns info['{KEY}'], but its first reset and step did not, so the agent was built without "
    "masks: return the mask from every reset and step, or set env.action_mask=false to ignore masks"
)


class MisfitError(EnvironmentFailedError):
    """An environment returned a value that does not fit its spaces or Gymnasium's interface."""


class AnswerCheck:
    """Check that the return values of one environment fit its spaces and Gymnasium's interface.

    Every step is checked, except for numbers that are not finite, which `VectorEnv` detects for all
    environments at once. Of `info`, labrl uses only the mask and the numbers of `env.info_keys`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        name: str,
        number: int = 0,
        masked: bool | None = None,
        wanted: bool = False,
        numbers: Sequence[str] = (),
    ) -> None:
        """name: name of the environment; number: its number in the session; masked: whether it returned a
        mask in the check before the run; if not None, infos are reduced to the mask, as flags, and the
        numbers; wanted: whether masks would be used if the environment returned any; numbers: names of the
        numbers to keep of the infos of steps."""
        self._name, self._index = name, number
        self._as_given = masked is None
        self._unmasked, self._numbers = wanted and masked is False, numbers
        self._num_flags = sum(choices(env.action_space)) if masked else 0
        self._in_dict = carries_mask(env.observation_space, env.action_space)
        self._expected = expected(env.observation_space, "its observation")

    def reset(self, observation: Any, info: Any) -> tuple[Any, Mapping[str, Any]]:
        """Check and return the result of a reset. Raises MisfitError."""
        return observation, self._checked(observation, info, 0)

    def step(
        self, number: int, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Check and return the result of step `number` of an episode, with a float reward and bool flags.

        Raises MisfitError.
        """
        if type(reward) is not float:
            reward = self._one_number(reward, number)
        if type(terminated) is not bool:
            terminated = self._flag(terminated, "terminated", number)
        if type(truncated) is not bool:
            truncated = self._flag(truncated, "truncated", number)
        kept = self._checked(observation, info, number)
        if self._numbers:
            kept = {**numbers_of(info, self._numbers, terminated or truncated), **kept}
        return observation, reward, terminated, truncated, kept

    def _one_number(self, reward: Any, step: int) -> float:
        try:
            if isinstance(reward, str | bytes):
                raise TypeError
            return float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError):
            self._refuse(f"its reward is {_shown(reward)}, but must be one number", step)

    def _flag(self, given: Any, called: str, step: int) -> bool:
        """Return a value equal to True or False as a bool, also from NumPy or in an array of one element."""
        one = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
        if not isinstance(one, np.bool_ | bool | int | float | np.number) or one not in (0, 1):
            self._refuse(f"its {called} is {_shown(given)}, but must be True or False", step)
        return bool(one)

    def _refuse(self, what: str, step: int) -> Never:
        when = f"after step {step} of its episode" if step else "after its reset"
        raise MisfitError(f"{self._name}: environment {self._index} {when}: {what}", key="env") from None

    def _checked(self, observation: Any, info: Any, step: int) -> Mapping[str, Any]:
        """Check an observation and an info. Return the part of the info for the caller."""
        if type(info) is not dict and not isinstance(info, Mapping):
            self._refuse(f"its info is {_shown(info)}, but must be a dict", step)
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
    """Environment whose return values are checked, for worker processes and for the check before a run."""

    def __init__(
        self,
        make: MakeEnv,
        name: str,
        number: int = 0,
        masked: bool | None = None,
        wanted: bool = False,
        numbers: Sequence[str] = (),
    ) -> None:
        """make: function that makes the environment; others: arguments of `AnswerCheck`."""
        super().__init__(make())
        self._check = AnswerCheck(self.env, name, number, masked, wanted, numbers)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment. Raises MisfitError."""
        self._steps = 0
        # Gymnasium's worker processes pass the dict that is left without the mask of the environments.
        return self._check.reset(*self.env.reset(seed=seed, options=options or None))

    def step(self, action: Any) -> Any:
        """Step the environment. The reward is returned as a float and the flags as bools."""
        self._steps += 1
        return self._check.step(self._steps, *self.env.step(action))


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:80]}..."


class _Array:
    """Check of an array or number in an observation."""

    def __init__(self, space: Space[Any], called: str, batch: int | None) -> None:
        self._space, self._called = space, called
        self._shape, self._dtype = space.shape, np.dtype(space.dtype)
        if batch is not None and space.shape is not None:
            self._shape = (batch, *space.shape)
        self._ends: tuple[Any, Any] | None = None
        """Smallest and largest values of discrete spaces. The bounds of a Box are not checked, because many
        environments exceed them slightly."""
        self._single = isinstance(space, Discrete) and batch is None
        if isinstance(space, Discrete):
            self._ends = int(space.start), int(space.start) + int(space.n) - 1
        elif isinstance(space, MultiDiscrete):
            self._ends = space.start, space.start + (space.nvec - 1)
        elif isinstance(space, MultiBinary):
            self._ends = 0, 1

    def check(self, given: Any) -> None:
        """Raise ValueError for a wrong shape, and for values outside the type or range of the space."""
        kind = type(given)
        fits = kind is np.ndarray and given.dtype == self._dtype and given.shape == self._shape
        # Most discrete observations are plain numbers; converting them to arrays would dominate the cost.
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
            self._refuse("is not an array")
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
            self._refuse(f"contains {array[altered].flat[0]}, which {self._dtype} cannot represent")
        return array

    def _refuse(self, what: str) -> Never:
        raise ValueError(f"{self._called} {what}; its space is {self._space}")


class _Several:
    """Check of a dict or tuple of arrays."""

    def __init__(self, space: Dict | Tuple, called: str, batch: int | None) -> None:
        self._kind: Any = Mapping if isinstance(space, Dict) else tuple | list
        self._called = called
        inner = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        self._parts = {key: expected(part, f"{called}[{key!r}]", batch) for key, part in inner}

    def check(self, given: Any) -> None:
        """Raise ValueError if an entry is missing or does not fit. Additional entries are ignored."""
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
    """Check that accepts everything, for unsupported spaces, which are refused before a run."""

    def check(self, given: Any) -> None:
        """Do nothing."""


def expected(space: Space[Any], called: str, batch: int | None = None) -> _Array | _Several | _Anything:
    """Return the check for observations in a space, or for batches of `batch` observations."""
    if isinstance(space, Dict | Tuple):
        return _Several(space, called, batch)
    return (
        _Array(space, called, batch)
        if isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete)
        else _Anything()
    )
