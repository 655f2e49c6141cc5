"""Datasets of Minari (https://minari.farama.org), which contain recorded episodes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import InputError
from labrl.memory.offline import OfflineConfig, OfflineData, Piece, Wanted
from labrl.mistakes.spelling import did_you_mean
from labrl.spaces import array_dtype, flat_space, packed


@dataclass(kw_only=True)
class OfflineMinariConfig(OfflineConfig):
    """Options of a Minari dataset to learn from."""

    dataset: str
    """Id of a local dataset, such as D4RL/door/human-v2 (`minari list local` lists them)."""


class OfflineMinari(OfflineData):
    """Episodes with raw rewards. Actions are converted to the form in which the agent stores them."""

    Config = OfflineMinariConfig

    def __init__(
        self, config: OfflineMinariConfig, *, wanted: Wanted, generator: np.random.Generator
    ) -> None:
        """wanted: what the agent needs. Raises InputError if the dataset does not provide it."""
        self.check(config)
        import minari

        dataset: Any = minari.load_dataset(config.dataset)
        seen, done = flat_space(dataset.observation_space), dataset.action_space
        for what, own, theirs in (
            ("observations", wanted.observation, seen),
            ("actions", wanted.action, done),
        ):
            if not _alike(own, theirs):
                raise InputError(
                    f"agent.offline.dataset={config.dataset}: its {what} are {theirs}, but those of this "
                    f"environment are {own}. Choose a dataset of this environment (`minari list local` lists "
                    "the local ones).",
                    code="contradiction",
                    key="agent.offline.dataset",
                )
        super().__init__(config, _pieces(dataset, wanted), int(dataset.total_steps), wanted, generator)

    @classmethod
    def check(cls, config: OfflineMinariConfig) -> None:
        """Raise InputError if Minari is not installed or the dataset is not available locally."""
        if importlib.util.find_spec("minari") is None:
            raise InputError(
                'agent.offline: Minari is not installed. Install it with: pip install "labrl[offline]"',
                code="not-installed",
                key="agent.offline",
            )
        import minari

        local = list(minari.list_local_datasets())
        if config.dataset not in local:
            raise InputError(
                f"agent.offline.dataset={config.dataset} is not among the local datasets"
                f" ({', '.join(local) or 'there are none'})."
                f"{did_you_mean(config.dataset, local)} `minari download <id>` downloads one.",
                code="not-found",
                key="agent.offline.dataset",
            )

    @classmethod
    def transforms(cls, config: OfflineMinariConfig) -> list[dict[str, Component]]:
        """Return the transforms of observations and rewards: none."""
        return [{}]


def _alike(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Return whether the elements of two spaces have the same parts, shapes and kinds of numbers. Bounds may
    differ."""
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        names = one.spaces.keys() == other.spaces.keys()
        return names and all(_alike(one[name], other[name]) for name in one.spaces)
    if type(one) is not type(other) or one.shape != other.shape:
        return False
    if isinstance(one, gym.spaces.Discrete) and isinstance(other, gym.spaces.Discrete):
        return (one.n, one.start) == (other.n, other.start)
    return np.dtype(one.dtype).kind == np.dtype(other.dtype).kind


def _pieces(dataset: Any, wanted: Wanted) -> Iterator[Piece]:
    dtype = array_dtype(wanted.observation)
    for episode in dataset.iterate_episodes():
        length = len(episode.rewards)
        if isinstance(wanted.observation, gym.spaces.Dict):
            seen = packed(episode.observations, dtype, length + 1)
        else:
            seen = np.asarray(episode.observations).astype(dtype, copy=False)
        terminated = np.asarray(episode.terminations, np.bool_)
        cut = terminated | np.asarray(episode.truncations, np.bool_)
        cut[-1:] = True  # even if the flags of its last step are false
        action = stored_actions(np.asarray(episode.actions), wanted)
        reward = np.asarray(episode.rewards, np.float32)
        yield Piece(seen[:-1], action, reward, seen[1:], terminated, cut)


def stored_actions(action: NDArray, wanted: Wanted) -> NDArray:
    """Convert actions of the environment to actions as the agent stores them."""
    space = wanted.action
    if isinstance(space, gym.spaces.Discrete):
        return action - int(space.start)
    assert isinstance(space, gym.spaces.Box), "agents with a replay buffer support no other spaces"
    middle, half = (space.low + space.high) / 2, (space.high - space.low) / 2
    apart = action - middle
    scaled = np.divide(apart, half, out=np.zeros_like(apart), where=half > 0)  # 0 if only one is possible
    return np.clip(scaled, -1, 1).reshape(len(action), *(wanted.stored.shape or ())).astype(np.float32)
