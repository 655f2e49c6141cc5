"""Observations of several inputs as one array.

Environments may give a dict or a tuple of arrays, nested too. Where it enters labrl it becomes one array with
a named field for each of them ([num_envs], of a structured dtype): `observation["camera"]` is the camera's,
[num_envs, *image], in its own type, and whoever only stores, cuts, copies or compares observations need not
know. Networks take the fields apart again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.errors import InputError

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Inputs of a goal environment: what has been reached, and what is wanted."""


class Goals(Protocol):
    """Rewards that an environment would have given for other goals."""

    def check(self) -> None:
        """Raise InputError where it cannot say."""

    def reward(self, achieved: NDArray, desired: NDArray) -> NDArray[np.float32]:
        """Return the reward of reaching `achieved` where `desired` is the goal. [n, *goal] each -> [n]"""

    def terminated(self, achieved: NDArray, desired: NDArray) -> NDArray[np.bool_] | None:
        """Return whether it ends the episode, [n]; None where the environment has no word on that."""


def flat_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """A Dict or Tuple space as a Dict of what is in it, named `outer/inner`; others as they are.

    Real numbers become float32, as networks and memories have them. Raises InputError for one name twice,
    for none, and for an array without elements.
    """
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        if space.shape is not None and 0 in space.shape:
            raise _unsupported(
                f"the observations are {space}, which hold no number: give at least one, such as 0"
            )
        return space
    inputs = [(name, inner) for name, _, inner in _inputs(space, "", ())]
    if len(dict(inputs)) < len(inputs):
        raise _unsupported(f"two inputs have the same name: {', '.join(name for name, _ in inputs)}")
    if "" in dict(inputs):
        raise _unsupported(f"an input has the empty name '': {space}; give it a name")
    return gym.spaces.Dict({name: _single(inner) for name, inner in inputs})


def _unsupported(what: str) -> InputError:
    return InputError(f"env: {what}", code="unsupported", key="env")


def array_dtype(space: gym.Space[Any]) -> np.dtype:
    """Return the dtype of an element of a flat space; of a Dict, with a field for each input in order."""
    if not isinstance(space, gym.spaces.Dict):
        return np.dtype(space.dtype)
    return np.dtype([(name, inner.dtype, inner.shape or ()) for name, inner in space.spaces.items()])


def places(space: gym.Space[Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Name each input of a space as `flat_space` does, with the keys that lead to it in an observation.

    A space that is no Dict or Tuple is one input, named ''.
    """
    return [(name, path) for name, path, _ in _inputs(space, "", ())]


def packed(observation: Any, dtype: np.dtype, count: int) -> NDArray:
    """A batch of `count` observations as Gymnasium nests them, as an array with fields. [count]"""
    array = np.empty(count, dtype)
    for name, part in parts(observation):
        array[name] = part
    return array


def parts(observation: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each input of an observation, or of a batch, as Gymnasium nests them, with its name.

    name: of the observation itself, '' outside all others.
    """
    if isinstance(observation, Mapping):
        for key, inner in observation.items():
            yield from parts(inner, _below(name, key))
    elif isinstance(observation, tuple):
        for index, inner in enumerate(observation):
            yield from parts(inner, _below(name, index))
    else:
        yield name, observation


def copied(observation: Any) -> Any:
    """A copy of what an environment gave, all arrays in it included: it may write into them later."""
    if isinstance(observation, Mapping):
        return {key: copied(value) for key, value in observation.items()}
    if isinstance(observation, tuple | list):
        return tuple(copied(value) for value in observation)
    return np.array(observation)


def not_finite(batch: NDArray) -> tuple[int, float] | None:
    """The first observation of a batch with a number in it that is not finite, and that; None: there is none.

    batch: [count, *obs], or [count] with a field for each input.
    """
    if batch.dtype.names is not None:
        return next((found for name in batch.dtype.names if (found := not_finite(batch[name]))), None)
    if batch.dtype.kind != "f" or (finite := np.isfinite(batch)).all():
        return None
    where = np.argwhere(~finite)[0]
    return int(where[0]), float(batch[tuple(where)])


def same(left: Any, right: Any) -> bool:
    """Return whether two observations, or nests of them, are equal bit for bit (NaN equals NaN)."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.names is not None and left.dtype == right.dtype:
        return all(same(left[name], right[name]) for name in left.dtype.names)
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")


def example(space: gym.Space[Any]) -> NDArray:
    """A batch with one observation of a space without nests. [1, *obs]"""
    if isinstance(space, gym.spaces.Dict):
        batch = {name: np.asarray(_element(inner))[None] for name, inner in space.spaces.items()}
        return packed(batch, array_dtype(space), 1)
    return np.asarray(_element(space))[None]


def _element(space: gym.Space[Any]) -> Any:
    """One of a space. Of a box it is not drawn: between the largest numbers of a type that fails."""
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return space.sample()


def _inputs(
    space: gym.Space[Any], name: str, path: tuple[Any, ...]
) -> Iterator[tuple[str, tuple[Any, ...], gym.Space[Any]]]:
    if isinstance(space, gym.spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _inputs(inner, _below(name, key), (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _inputs(inner, _below(name, index), (*path, index))
    else:
        yield name, path, space


def _below(name: str, key: Any) -> str:
    # A dot would part the name of a network's weights.
    own = str(key).replace(".", "/")
    return f"{name}/{own}" if name else own


def _single(space: gym.Space[Any]) -> gym.Space[Any]:
    if isinstance(space, gym.spaces.Box) and space.dtype == np.float64:
        # Bounds that float32 does not reach are none.
        with np.errstate(over="ignore"):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return gym.spaces.Box(low, high, dtype=np.float32)
    return space
