"""Masks of valid actions, from `info["action_mask"]` or from the entry `action_mask` of a dict observation.

The rest of the dict is the observation: the entry `observation` if there is no other entry, otherwise all
other entries as several inputs.

A mask has one flag for each value of a Discrete action. For a MultiDiscrete action, the flags of its
components are concatenated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space
from numpy.typing import NDArray

from labrl.errors import EnvironmentFailedError, InputError
from labrl.spaces import choices_of

KEY = "action_mask"
OBSERVATION = "observation"


class NoValidActionError(EnvironmentFailedError):
    """The mask of an environment allows no action although its episode continues."""


def choices(space: Space[Any]) -> list[int]:
    """Return the number of values of each component of an action; empty for spaces that cannot have masks."""
    return [count for _, count in choices_of(space)]


def carries_mask(space: Space[Any], actions: Space[Any]) -> bool:
    """Return whether observations are a dict with the entry `action_mask`, and actions can have masks.

    Raises InputError if the dict has no other entry.
    """
    if not isinstance(space, Dict) or KEY not in space.spaces or not choices(actions):
        return False
    if len(space.spaces) == 1:
        why = f"the observation space {space} contains only the mask of valid actions"
        fix = f"Add the observation itself as the entry {OBSERVATION!r}"
        raise InputError.unsupported("env", why, fix)
    return True


def without_mask(space: Space[Any], actions: Space[Any]) -> Space[Any]:
    """Return the observation space without its mask. Raises InputError if it contains nothing else."""
    if not isinstance(space, Dict) or not carries_mask(space, actions):
        return space
    seen = {name: inner for name, inner in space.spaces.items() if name != KEY}
    return space[OBSERVATION] if seen.keys() == {OBSERVATION} else Dict(seen)


def observation_of(observation: Mapping[str, Any]) -> Any:
    """Return an observation, or a batch of observations, without its mask."""
    seen = {name: part for name, part in observation.items() if name != KEY}
    return seen[OBSERVATION] if seen.keys() == {OBSERVATION} else seen


def first_valid(mask: NDArray[np.bool_], space: Space[Any]) -> NDArray:
    """Return actions that take the first valid value of each component.

    mask: [n, flags]. Returns actions of `space`, [n, *action].
    """
    parts = np.split(mask, np.cumsum(choices(space))[:-1], axis=1)
    firsts = np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(
        len(mask), *(space.shape or ())
    )
    values = firsts + space.start  # type: ignore[attr-defined]  # Discrete and MultiDiscrete have it
    return values.astype(space.dtype, copy=False)


def replace_invalid(action: Any, space: Space[Any], observation: Any, info: Mapping[str, Any]) -> Any:
    """Return `action`, or the first valid action if the environment's mask excludes `action`."""
    given = observation.get(KEY) if isinstance(observation, Mapping) else None
    given = info.get(KEY) if given is None else given
    if given is None or not choices(space):
        return action
    try:
        flags = flags_of(given, sum(choices(space)))
    except ValueError:  # not a mask; a run that uses masks refuses it
        return action
    index = np.ravel(action - space.start) + first_flags(space)  # type: ignore[attr-defined]
    return action if flags[index].all() else first_valid(flags[None], space)[0]


def first_flags(space: Space[Any]) -> NDArray[np.intp]:
    """Return the index of the first flag of each component. [components]"""
    return np.cumsum([0, *choices(space)[:-1]])


def refuse_empty(
    mask: NDArray[np.bool_], starts: NDArray[np.intp], needed: NDArray[np.bool_], name: str, frame: int
) -> None:
    """Raise NoValidActionError if a component of an action has no valid value.

    mask: [num_envs, flags]; starts: index of the first flag of each component; needed: environments that
    need a valid action, [num_envs]; name, frame: name of the environment and current frame, for the message.
    """
    empty = needed & ~np.logical_or.reduceat(mask, starts, axis=1).all(axis=1)
    if empty.any():
        raise NoValidActionError(
            f"{name}: environment {int(np.flatnonzero(empty)[0])} has no valid action at frame {frame}: its "
            "action_mask is all 0 although its episode continues (env.action_mask=false ignores masks).",
            key="env.action_mask",
        )


def flags_of(given: Any, needed: int) -> NDArray[np.bool_]:
    """Return the mask of one environment as flags. [flags]

    given: an array, or a tuple or list with an array for each component. Raises ValueError unless there are
    `needed` flags, all of them 0 or 1. This refuses masks that are meant to be added to logits, with 0 for
    valid actions and large negative numbers for others.
    """
    whole = isinstance(given, np.ndarray) and given.ndim == 1
    parts = given if isinstance(given, tuple | list) else [given]
    values = given if whole else np.concatenate([np.ravel(part) for part in parts])
    if len(values) != needed:
        raise ValueError(f"its {KEY} has {len(values)} flags, but its actions need {needed}")
    if values.dtype == np.bool_:
        return values
    flags = values == 1
    # NaN equals neither 0 nor 1; text is refused by its type.
    if values.dtype.kind not in "iuf" or np.count_nonzero(flags) + np.count_nonzero(values == 0) < len(
        values
    ):
        raise ValueError(f"its {KEY} is {given}; flags must be 1 for valid actions and 0 for others")
    return flags
