"""Masks of valid actions: `info["action_mask"]`, or that entry of a dict observation.

The rest of such a dict is the observation: the entry `observation` if it is the only other one, otherwise all
others as several inputs.

A mask has a flag for each value of a Discrete action; those of the choices of a MultiDiscrete one lie side by
side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Space
from numpy.typing import NDArray

from labrl.errors import EnvironmentFailedError, InputError

KEY = "action_mask"
OBSERVATION = "observation"


class NoValidActionError(EnvironmentFailedError):
    """An environment's mask allows no action although its episode continues."""


def choices(space: Space[Any]) -> list[int]:
    """Return the number of values of each choice of an action; none where masks have no meaning."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec.flat] if isinstance(space, MultiDiscrete) else []


def carries_mask(space: Space[Any], actions: Space[Any]) -> bool:
    """Return whether observations are a dict of `action_mask` and something to see, and actions have choices.

    Raises InputError where there is nothing to see.
    """
    if not isinstance(space, Dict) or KEY not in space.spaces or not choices(actions):
        return False
    if len(space.spaces) == 1:
        raise InputError(
            f"env: the observations are {space}, which hold the mask of valid actions and nothing else. Add "
            f"the observation itself as the entry {OBSERVATION!r}.",
            code="unsupported",
            key="env",
        )
    return True


def without_mask(space: Space[Any], actions: Space[Any]) -> Space[Any]:
    """The space of what is to be seen. Raises InputError where that is nothing."""
    if not isinstance(space, Dict) or not carries_mask(space, actions):
        return space
    seen = {name: inner for name, inner in space.spaces.items() if name != KEY}
    return space[OBSERVATION] if seen.keys() == {OBSERVATION} else Dict(seen)


def seen_in(observation: Mapping[str, Any]) -> Any:
    """Return the observation, or batch of observations, without its mask."""
    seen = {name: part for name, part in observation.items() if name != KEY}
    return seen[OBSERVATION] if seen.keys() == {OBSERVATION} else seen


def first_valid(mask: NDArray[np.bool_], space: Space[Any]) -> NDArray:
    """The first valid value of each choice. mask: [n, flags]. Returns actions of `space`, [n, *action]."""
    parts = np.split(mask, np.cumsum(choices(space))[:-1], axis=1)
    firsts = np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(
        len(mask), *(space.shape or ())
    )
    values = firsts + space.start  # type: ignore[attr-defined]  # both spaces that have masks have it
    return values.astype(space.dtype, copy=False)


def made_valid(action: Any, space: Space[Any], observation: Any, info: Mapping[str, Any]) -> Any:
    """`action`, or the first valid one where one environment's mask leaves something of it out."""
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
    """Return where the flags of each choice begin. [choices]"""
    return np.cumsum([0, *choices(space)[:-1]])


def refuse_empty(
    mask: NDArray[np.bool_], starts: NDArray[np.intp], needed: NDArray[np.bool_], told: str, frame: int
) -> None:
    """Raise NoValidActionError where a choice of an environment that needs one has no valid value.

    mask: [num_envs, flags]; starts: the first flag of each choice; needed: [num_envs]; told: how the
    environment is called.
    """
    empty = needed & ~np.logical_or.reduceat(mask, starts, axis=1).all(axis=1)
    if empty.any():
        raise NoValidActionError(
            f"{told}: environment {int(np.flatnonzero(empty)[0])} has no valid action at frame {frame}: its "
            "action_mask is all 0 although its episode continues (env.action_mask=false ignores masks).",
            key="env.action_mask",
        )


def flags_of(given: Any, needed: int) -> NDArray[np.bool_]:
    """The mask of one environment, which may have a part for each choice. [flags]

    Raises ValueError for another number than `needed`, and for other values: what is added to logits, 0
    where an action is valid, would be read the wrong way round.
    """
    whole = isinstance(given, np.ndarray) and given.ndim == 1
    parts = given if isinstance(given, tuple | list) else [given]
    values = given if whole else np.concatenate([np.ravel(part) for part in parts])
    if len(values) != needed:
        raise ValueError(f"its {KEY} has {len(values)} flags, and its actions need {needed}")
    if values.dtype == np.bool_:
        return values
    flags = values == 1
    # NaN is neither; text is not compared at all.
    if values.dtype.kind not in "iuf" or np.count_nonzero(flags) + np.count_nonzero(values == 0) < len(
        values
    ):
        raise ValueError(f"its {KEY} is {given}; flags are 1 where an action is valid and 0 where it is not")
    return flags
