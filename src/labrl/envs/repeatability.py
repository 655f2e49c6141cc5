"""Does a seeded reset determine an episode? Found out by playing, before a run depends on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from labrl.envs.checked import Checked
from labrl.envs.masks import made_valid
from labrl.envs.single import MakeEnv
from labrl.observations import copied

STEPS = 50
"""Longest episode that is compared."""

log = logging.getLogger(__name__)


def depends_on_history(make: MakeEnv, name: str) -> bool:
    """Whether an environment must be made anew for each episode to repeat it.

    Plays an episode, another one, and the first one's seed and actions again. An environment that
    repeats neither so nor when made anew is told of in the log: no run on it can be exact.
    """
    env = Checked(make, name)
    # A copy of the space's sampling, so that nothing but this check draws from it.
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(STEPS)]
    others = [env.action_space.sample() for _ in range(STEPS)]
    try:
        first = _play(env, 1, actions)
        _play(env, 2, others)
        again = _play(env, 1, actions)
    finally:
        env.close()
    if same(first, again):
        return False
    anew = Checked(make, name)
    try:
        if not same(first, _play(anew, 1, actions)):
            log.warning(
                "%s does not repeat an episode from its seed and actions, even when made anew:"
                " runs on it are neither repeatable nor exactly resumable",
                name,
            )
    finally:
        anew.close()
    return True


def same(left: Any, right: Any) -> bool:
    """Whether two observations, or nests of them, are equal bit for bit (NaN equals NaN)."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.names is not None and left.dtype == right.dtype:
        return all(same(left[name], right[name]) for name in left.dtype.names)
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")


def _play(env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any]) -> list[Any]:
    # Options are never None in labrl's vector environments either.
    observation, info = env.reset(seed=seed, options={})
    trace: list[Any] = [copied(observation)]
    for action in actions:
        valid = made_valid(action, env.action_space, observation, info)
        # Both directions: some environments write into their action, and some into what they gave before.
        observation, reward, terminated, truncated, info = env.step(np.array(valid)[()])
        trace.append((copied(observation), reward, terminated, truncated))
        if terminated or truncated:
            break
    return trace
