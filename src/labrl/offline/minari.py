"""Datasets of Minari (https://minari.farama.org), which contain recorded episodes."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import InputError
from labrl.memory.offline import Chunk, OfflineConfig, OfflineData, Requirements
from labrl.mistakes.spelling import did_you_mean
from labrl.spaces import alike, array_dtype, flat_space, has_bounds, packed, same_actions

_log = logging.getLogger(__name__)

TOLERANCE = 1e-5
"""Fraction of the action range by which an action may exceed a bound because of rounding."""


@dataclass(kw_only=True)
class OfflineMinariConfig(OfflineConfig):
    """Options of a Minari dataset to learn from."""

    dataset: str
    """Id of a local dataset, such as D4RL/door/human-v2 (`minari list local` lists them)."""


class OfflineMinari(OfflineData):
    """Episodes of a dataset, with raw rewards and with actions in the form in which the agent stores them."""

    Config = OfflineMinariConfig

    def __init__(
        self, config: OfflineMinariConfig, *, wanted: Requirements, generator: np.random.Generator
    ) -> None:
        """wanted: requirements of the agent. Raises InputError if the dataset does not meet them.

        Actions outside the bounds of the environment are clipped, with a warning.
        """
        self.check(config)
        import minari

        dataset: Any = minari.load_dataset(config.dataset)
        seen, done = flat_space(dataset.observation_space), dataset.action_space
        bounded = not isinstance(done, gym.spaces.Box) or has_bounds(done)
        for what, own, theirs, fits in (
            ("observations", wanted.observation, seen, True),
            ("actions", wanted.action, done, not bounded or same_actions(wanted.action, done)),
        ):
            if not (fits and alike(own, theirs)):
                raise InputError.contradiction(
                    f"agent.offline.dataset={config.dataset}",
                    "the environment",
                    f"the {what} of the dataset are {theirs}, but those of this environment are {own}",
                    "Choose a dataset for this environment (`minari list local` lists the local ones)",
                )
        clipped: dict[str, int] = {}
        chunks = _chunks(dataset, wanted, f"dataset {config.dataset}", clipped)
        super().__init__(config, chunks, int(dataset.total_steps), wanted, generator)
        if clipped:
            _log.warning(
                "agent.offline: %d of %d actions were clipped to the bounds of %s; the first is in %s",
                sum(clipped.values()),
                len(self),
                wanted.action,
                next(iter(clipped)),
            )

    @classmethod
    def check(cls, config: OfflineMinariConfig) -> None:
        """Raise InputError if Minari is not installed or the dataset is not available locally."""
        if importlib.util.find_spec("minari") is None:
            raise InputError.not_installed("agent.offline", "Minari", "offline")
        import minari

        local = list(minari.list_local_datasets())
        if config.dataset not in local:
            raise InputError.not_found(
                f"agent.offline.dataset={config.dataset}",
                f"it is not among the local datasets ({', '.join(local) or 'there are none'})",
                f"{did_you_mean(config.dataset, local)} To download one, run minari download <id>",
            )

    @classmethod
    def transforms(cls, config: OfflineMinariConfig) -> list[dict[str, Component]]:
        """Return the transforms of observations and rewards: none."""
        return [{}]


def _chunks(dataset: Any, wanted: Requirements, origin: str, clipped: dict[str, int]) -> Iterator[Chunk]:
    """Yield the episodes of a dataset.

    clipped: dict that receives, for each episode with clipped actions, the place of the first one and their
    number. Raises InputError for numbers that are not finite, and for a discrete action that does not exist.
    """
    dtype, space = array_dtype(wanted.observation), wanted.action
    for episode in dataset.iterate_episodes():
        length = len(episode.rewards)
        with np.errstate(over="ignore"):  # numbers beyond single precision become infinite and are refused
            reward = np.asarray(episode.rewards, np.float32)
            if isinstance(wanted.observation, gym.spaces.Dict):
                seen = packed(episode.observations, dtype, length + 1)
            else:
                seen = np.asarray(episode.observations).astype(dtype, copy=False)
        terminated = np.asarray(episode.terminations, np.bool_)
        cut = terminated | np.asarray(episode.truncations, np.bool_)
        cut[-1:] = True  # even if the flags of its last step are false
        action, where = np.asarray(episode.actions), f"{origin}, episode {episode.id}"
        given = Chunk(seen[:-1], action, reward, seen[1:], terminated, cut, origin=where)
        given.check()  # before actions are clipped, which makes infinite ones finite
        if isinstance(space, gym.spaces.Box):
            slack = TOLERANCE * (space.high - space.low)
            outside = ((action < space.low - slack) | (action > space.high + slack)).reshape(length, -1)
            if (rows := np.flatnonzero(outside.any(axis=1))).size:
                clipped[f"{where}, step {rows[0]} (counted from 0)"] = rows.size
        elif isinstance(space, gym.spaces.Discrete):
            known = (action >= space.start) & (action < space.start + space.n)
            if (rows := np.flatnonzero(~known)).size:
                raise given.refused(rows[0], f"action is {action[rows[0]]}, which {space} does not have")
        yield given._replace(action=stored_actions(action, wanted))


def stored_actions(action: NDArray, wanted: Requirements) -> NDArray:
    """Convert actions of the environment to the form in which the agent stores them."""
    space = wanted.action
    if isinstance(space, gym.spaces.Discrete):
        return action - int(space.start)
    assert isinstance(space, gym.spaces.Box), "agents with a replay buffer support no other spaces"
    middle, half = (space.low + space.high) / 2, (space.high - space.low) / 2
    apart = action - middle
    scaled = np.divide(apart, half, out=np.zeros_like(apart), where=half > 0)  # 0 if only one is possible
    return np.clip(scaled, -1, 1).reshape(len(action), *(wanted.stored.shape or ())).astype(np.float32)
