"""Which actions are valid: `info["action_mask"]`, or that entry of an observation that is a dict.

What else such a dict holds is the observation: the entry `observation` if it is the only other one, or all
others as inputs of their own.

A mask has a flag for each value of a Discrete action; those of the choices of a MultiDiscrete one lie side by
side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Space
from numpy.typing import NDArray

from labrl.config.errors import ConfigError
from labrl.envs.single import MakeEnv

KEY = "action_mask"
OBSERVATION = "observation"


class NoValidActionError(RuntimeError):
    """An environment that goes on says that nothing can be done in it."""


def choices(space: Space[Any]) -> list[int]:
    """How many values each choice of an action has; none where masks have no meaning."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec.flat] if isinstance(space, MultiDiscrete) else []


def carries_mask(space: Space[Any]) -> bool:
    """Whether observations are a dict of `action_mask` and something to see."""
    return isinstance(space, Dict) and KEY in space.spaces and len(space.spaces) > 1


def without_mask(space: Space[Any]) -> Space[Any]:
    """The space of what is to be seen."""
    if not isinstance(space, Dict) or not carries_mask(space):
        return space
    seen = {name: inner for name, inner in space.spaces.items() if name != KEY}
    return space[OBSERVATION] if seen.keys() == {OBSERVATION} else Dict(seen)


def seen_in(observation: Mapping[str, Any]) -> Any:
    """What is to be seen in an observation, or a batch of them, that carries a mask."""
    seen = {name: part for name, part in observation.items() if name != KEY}
    return seen[OBSERVATION] if seen.keys() == {OBSERVATION} else seen


def gives_masks(make: MakeEnv, name: str) -> bool:
    """Whether an environment says which actions are valid, found out by one reset.

    Raises ConfigError for a mask that does not fit the actions.
    """
    env = make()
    try:
        needed = sum(choices(env.action_space))
        if not needed:
            return False
        # Options are never None in labrl's vector environments either.
        observation, info = env.reset(seed=0, options={})
        given = observation[KEY] if carries_mask(env.observation_space) else info.get(KEY)
        if given is None:
            return False
        size = _flags(given).size
        if size != needed:
            raise ConfigError(
                f"env.name={name}: its action_mask has {size} flags, its actions {env.action_space} need "
                f"{needed} (set env.action_mask=false to do without)."
            )
        return True
    finally:
        env.close()


def given_masks(
    observation: Any, info: Mapping[str, Any], num_envs: int
) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_]]:
    """Masks [num_envs, flags], None where no environment gave one, and which environments did, [num_envs]."""
    if isinstance(observation, Mapping) and KEY in observation:
        return _flags_of_all(observation[KEY]), np.ones(num_envs, np.bool_)
    if KEY not in info:
        return None, np.zeros(num_envs, np.bool_)
    return _flags_of_all(info[KEY]), info[f"_{KEY}"]


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
    flags = _flags(given)
    starts = np.cumsum([0, *choices(space)[:-1]])
    index = np.ravel(action - space.start) + starts  # type: ignore[attr-defined]
    return action if flags[index].all() else first_valid(flags[None], space)[0]


def refuse_empty(
    mask: NDArray[np.bool_], sizes: list[int], needed: NDArray[np.bool_], told: str, frame: int
) -> None:
    """Raises NoValidActionError where a choice of an environment that needs one has no valid value.

    mask: [num_envs, flags]; sizes: of the choices; needed: [num_envs]; told: how the environment is called.
    """
    starts = np.cumsum([0, *sizes[:-1]])
    empty = needed & ~np.logical_or.reduceat(mask, starts, axis=1).all(axis=1)
    if empty.any():
        raise NoValidActionError(
            f"{told}: environment {int(np.flatnonzero(empty)[0])} has no valid action at frame {frame}: the "
            "action_mask that it gives is all 0, though its episode goes on (env.action_mask=false plays "
            "without masks)."
        )


def _flags_of_all(rows: NDArray) -> NDArray[np.bool_]:
    """[num_envs, ...] -> [num_envs, flags]"""
    if rows.dtype != object:
        return np.array(rows, np.bool_).reshape(len(rows), -1)
    known = {env: _flags(row) for env, row in enumerate(rows) if row is not None}
    flags = np.zeros((len(rows), next(iter(known.values())).size), np.bool_)
    for env, row in known.items():
        flags[env] = row
    return flags


def _flags(given: Any) -> NDArray[np.bool_]:
    """The mask of one environment, which may have a part for each choice. [flags]"""
    parts = given if isinstance(given, tuple | list) else [given]
    return np.concatenate([np.ravel(part) for part in parts]).astype(np.bool_)
