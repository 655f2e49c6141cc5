"""Spaces of observations and actions, and observations with several inputs as one structured array.

Environments may return dicts or tuples of arrays, possibly nested. labrl converts these to a single array
[num_envs] of a structured dtype with a field for each input: `observation["camera"]` has shape
[num_envs, *image] and the camera's own type. Code that only stores, slices, copies or compares observations
need not distinguish the two cases. Networks use the separate fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.errors import InputError

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Names of two inputs of a goal environment: the goal that was achieved, and the goal to pursue."""


ARRAYS = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
"""Spaces whose elements are a single array or number."""


class Goals(Protocol):
    """Computes the rewards of an environment for arbitrary goals."""

    def check(self) -> None:
        """Raise InputError if the environment cannot compute rewards."""

    def reward(self, achieved: NDArray, desired: NDArray) -> NDArray[np.float32]:
        """Return the reward of achieving `achieved` when the goal is `desired`. [n, *goal] each -> [n]"""

    def terminated(self, achieved: NDArray, desired: NDArray) -> NDArray[np.bool_] | None:
        """Return whether achieving `achieved` when the goal is `desired` ends the episode. [n]

        Returns None if the environment does not define this.
        """


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of an agent, and the number of environments."""

    observation: gym.Space[Any]
    """Observation space of a single environment."""
    action: gym.Space[Any]
    """Action space of a single environment."""
    num_envs: int
    """Number of environments stepped together."""
    masked: bool = False
    """Whether the environment provides action masks."""
    goals: Goals | None = None
    """Object that computes rewards for other goals; None if the environment has no goals."""


def stored_choices(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return `space` with choices in a type that torch accepts as indices."""
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n), start=int(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(space.nvec)
    return space


def alike(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Return whether the elements of two spaces have the same parts, shapes and kinds of numbers.

    Bounds may differ.
    """
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        names = one.spaces.keys() == other.spaces.keys()
        return names and all(alike(one[name], other[name]) for name in one.spaces)
    if type(one) is not type(other) or one.shape != other.shape:
        return False
    if choices_of(one) != choices_of(other):
        return False
    return np.dtype(one.dtype).kind == np.dtype(other.dtype).kind


def why_unsupported(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> str:
    """Return why labrl does not support environments with these spaces; an empty string if it does."""
    inputs = (
        observation_space.spaces
        if isinstance(observation_space, gym.spaces.Dict)
        else {"": observation_space}
    )
    arrays = "one array or number (Box, Discrete, MultiDiscrete, MultiBinary)"
    for name, space in inputs.items():
        if not isinstance(space, ARRAYS):
            place = f" at {name}" if name else ""
            return f"its observations{place} are {space}, but must be {arrays}, or a Dict or Tuple of these"
    if not inputs:
        return f"its observations are empty: {observation_space}"
    if not isinstance(action_space, ARRAYS):
        return f"its actions are {action_space}, but must be {arrays}"
    if 0 in (action_space.shape or ()):
        return f"its action space {action_space} is empty, but an action must have at least one number"
    return ""


def same_actions(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Return whether the same numbers mean the same action in two spaces. Bounds may differ by rounding."""
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        alike_bounds = one.shape == other.shape and np.allclose(one.low, other.low)
        return bool(alike_bounds and np.allclose(one.high, other.high))
    return bool(one == other)


def sees_images(space: gym.Space[Any]) -> bool:
    """Return whether observations are pixels, or have several inputs with pixels among them."""
    return (
        any(map(is_image, space.spaces.values())) if isinstance(space, gym.spaces.Dict) else is_image(space)
    )


def several_images(space: gym.Space[Any]) -> bool:
    """Return whether observations have several inputs with pixels among them."""
    return isinstance(space, gym.spaces.Dict) and sees_images(space)


def is_image(space: gym.Space[Any]) -> bool:
    """Return whether observations are pixels: three axes of bytes."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == "uint8"


def is_vector(space: gym.Space[Any]) -> bool:
    """Return whether observations are real numbers, so that an action can be appended to them."""
    return (
        isinstance(space, gym.spaces.Box) and not is_image(space) and np.issubdtype(space.dtype, np.floating)
    )


def widths(space: gym.spaces.Box) -> NDArray:
    """Return the distance between the bounds of each component, infinite where a bound is missing. [*shape]

    The largest values of a dtype do not count as bounds.
    """
    number = np.result_type(space.dtype, np.float32)  # flags cannot be subtracted, and float16 overflows
    with np.errstate(over="ignore"):
        width = np.subtract(space.high, space.low, dtype=number)
    dtype: Any = space.dtype
    if dtype.kind != "f":
        return width
    largest = np.finfo(dtype).max
    return np.where((space.low <= -largest) | (space.high >= largest), np.inf, width)


def has_bounds(space: gym.spaces.Box) -> bool:
    """Return whether a box is bounded on every side."""
    return bool(np.isfinite(widths(space)).all())


def choices_of(space: gym.Space[Any]) -> list[tuple[int, int]]:
    """Return (first value, number of values) of each discrete component of a space; an empty list if none."""
    if isinstance(space, gym.spaces.Discrete):
        return [(int(space.start), int(space.n))]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [(int(first), int(n)) for first, n in zip(space.start.flat, space.nvec.flat, strict=True)]
    return []


def range_of(space: gym.Space[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]] | float:
    """Return the range of a space of bytes, with which networks scale observations to [0, 1].

    If all components have the same range and it starts at 0, the result is the largest value (255 for most
    pixels and RAM); otherwise, the lower bounds and the widths, two arrays with the shape of `space`. For
    other types, which are not scaled, the result is 1.
    """
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return 1.0
    low = space.low.astype(np.float32)
    width = np.maximum(space.high - low, np.float32(1))  # 1 where a byte never changes
    same = not low.any() and (width == width.flat[0]).all()
    return float(width.flat[0]) if same else (low, width)


def flat_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Flatten a nested Dict or Tuple space to a Dict with names `outer/inner`. Return other spaces unchanged.

    Raises InputError for duplicate or empty names and for arrays without elements.
    """
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        if space.shape is not None and 0 in space.shape:
            raise _unsupported(
                f"the observation space {space} is empty: observations need at least one number, such as 0"
            )
        return space
    inputs = [(name, inner) for name, _, inner in inputs_of(space)]
    if len(dict(inputs)) < len(inputs):
        raise _unsupported(f"two inputs have the same name: {', '.join(name for name, _ in inputs)}")
    if "" in dict(inputs):
        raise _unsupported(f"an input has the empty name '': {space}; give it a name")
    return gym.spaces.Dict(dict(inputs))


def _unsupported(what: str) -> InputError:
    return InputError.unsupported("env", what)


def array_dtype(space: gym.Space[Any]) -> np.dtype:
    """Return the dtype of observations in a flat space; for a Dict, the dtype has a field for each input."""
    if not isinstance(space, gym.spaces.Dict):
        return np.dtype(space.dtype)
    return np.dtype([(name, inner.dtype, inner.shape or ()) for name, inner in space.spaces.items()])


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """Return `dtype` with float32 instead of float64, also in its fields, as networks and memories use it."""
    if dtype.names is None:
        return np.dtype(np.float32) if dtype == np.float64 else dtype
    fields = [(name, dtype[name].base, dtype[name].shape) for name in dtype.names]
    return np.dtype([(name, stored_dtype(base), shape) for name, base, shape in fields])


def packed(observation: Any, dtype: np.dtype, count: int) -> NDArray:
    """Convert a nested batch of `count` observations to a structured array, [count]."""
    array = np.empty(count, dtype)
    for name, part in parts(observation):
        array[name] = part
    return array


def parts(observation: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each input of a nested observation or batch.

    name: name of the observation itself, '' at the top level.
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
    """Return a deep copy of an environment's observation, which the environment may modify later."""
    if isinstance(observation, Mapping):
        return {key: copied(value) for key, value in observation.items()}
    if isinstance(observation, tuple | list):
        return tuple(copied(value) for value in observation)
    return np.array(observation)


def not_finite(batch: NDArray) -> tuple[int, float] | None:
    """Return the index of the first observation that contains a non-finite number, and the number.

    batch: [count, *obs], or [count] with a field for each input. Returns None if all numbers are finite.
    """
    if batch.dtype.names is not None:
        return next((found for name in batch.dtype.names if (found := not_finite(batch[name]))), None)
    if batch.dtype.kind != "f" or (finite := np.isfinite(batch)).all():
        return None
    where = np.argwhere(~finite)[0]
    return int(where[0]), float(batch[tuple(where)])


def same(left: Any, right: Any) -> bool:
    """Return whether two observations, or nested containers of them, are equal (NaN equals NaN)."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.names is not None and left.dtype == right.dtype:
        return all(same(left[name], right[name]) for name in left.dtype.names)
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")


def example(space: gym.Space[Any]) -> NDArray:
    """Return a batch with one observation of a flat space. [1, *obs]"""
    if isinstance(space, gym.spaces.Dict):
        batch = {name: np.asarray(_element(inner))[None] for name, inner in space.spaces.items()}
        return packed(batch, array_dtype(space), 1)
    return np.asarray(_element(space))[None]


def _element(space: gym.Space[Any]) -> Any:
    """Return an element of a space.

    An element of a Box is not sampled, because sampling fails if the bounds are the largest values of the
    dtype.
    """
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return space.sample()


def inputs_of(
    space: gym.Space[Any], name: str = "", path: tuple[Any, ...] = ()
) -> Iterator[tuple[str, tuple[Any, ...], gym.Space[Any]]]:
    """Yield the name of each input of a space, as in `flat_space`, its path of keys in an observation, and
    its space.

    A space that is neither a Dict nor a Tuple has a single input, named ''. name, path: those of `space`.
    """
    if isinstance(space, gym.spaces.Dict):
        for key, inner in space.spaces.items():
            yield from inputs_of(inner, _below(name, key), (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from inputs_of(inner, _below(name, index), (*path, index))
    else:
        yield name, path, space


def _below(name: str, key: Any) -> str:
    # A dot would split the names of weights.
    own = str(key).replace(".", "/")
    return f"{name}/{own}" if name else own
