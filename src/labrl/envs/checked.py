"""One environment that keeps to its spaces, or is told where it does not.

Whoever puts observations of several environments into one array would stretch them, round them or break.
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

LATE = (
    f"it gives info['{KEY}'], and at its first reset and step it gave none, so that the agent was made "
    "without: give it at every reset and step (env.action_mask=false plays without masks)"
)


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Of what an environment tells beside, labrl reads the mask only; it comes as flags, the rest goes."""

    def __init__(self, make: MakeEnv, name: str, number: int, masked: bool, heeded: bool) -> None:
        """name: of the environment, and its `number` among those of its session; masked: it gave a mask when
        it was tried before the run; heeded: masks would not be left aside."""
        super().__init__(make())
        self._name, self._number = name, number
        self._unmasked = heeded and not masked
        self._num_flags = sum(choices(self.env.action_space)) if masked else 0
        self._in_dict = carries_mask(self.env.observation_space, self.env.action_space)
        self._expected = expected(self.env.observation_space, "its observation")
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As the environment's. Raises ValueError for what does not fit its spaces, as `step` does."""
        self._steps = 0
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._looked_at(observation, info)

    def step(self, action: Any) -> Any:
        """As the environment's."""
        self._steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        if type(reward) is not float and reward is not None:  # what is no number at all is told as such later
            self._check_reward(reward)
        return observation, reward, terminated, truncated, self._looked_at(observation, info)

    def _check_reward(self, reward: Any) -> None:
        """Raises ValueError for several numbers in one, and for text."""
        try:
            if isinstance(reward, str):
                raise TypeError
            float(reward)
        except (TypeError, ValueError):
            self._refuse(f"its reward is {reward!r}, it must be one number")

    def _refuse(self, what: str) -> Never:
        when = f"after step {self._steps} of its episode" if self._steps else "after its reset"
        raise ValueError(f"{self._name}: environment {self._number} {when}: {what}") from None

    def _looked_at(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        """What is told beside."""
        try:
            self._expected.check(observation)
            if self._unmasked and KEY in info:
                raise ValueError(LATE)
            if not self._num_flags:
                return {}
            given = observation[KEY] if self._in_dict else info.get(KEY)
            return {} if given is None else {KEY: flags_of(given, self._num_flags)}
        except ValueError as error:
            self._refuse(str(error))


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
        """Raises ValueError for another shape, and for what the space's type or range does not hold."""
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
        """Raises ValueError where one is missing or does not fit. More of them are left aside."""
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
    """Of another space, which is refused before a run."""

    def check(self, given: Any) -> None:
        """Nothing is known of it."""


def expected(space: Space[Any], called: str, batch: int | None = None) -> _Array | _Several | _Anything:
    """What checks observations of a space, or batches of so many."""
    if isinstance(space, Dict | Tuple):
        return _Several(space, called, batch)
    return (
        _Array(space, called, batch)
        if isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete)
        else _Anything()
    )
