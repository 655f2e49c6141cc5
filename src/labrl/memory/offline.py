"""Transitions that were not collected by this session, and minibatches that mix both kinds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.config.errors import ConfigError
from labrl.config.types import PositiveInt, Probability
from labrl.memory.replay import Replay, ReplayConfig, Sample
from labrl.observations import array_dtype
from labrl.step import Step
from labrl.workspace import Workspace


@dataclass(kw_only=True)
class OfflineConfig:
    """How much is learned from transitions that were collected elsewhere."""

    share: Probability = 0.5
    """Share of a batch that is theirs, rounded, in [0, 1], while there are some of this session too."""
    online_every: PositiveInt = 1
    """This session's transitions take part in every so many updates, >= 1; the others do without."""
    max_transitions: PositiveInt | None = None
    """At most so many are kept, the first that come, >= 1; null: all."""


class Wanted(NamedTuple):
    """What a source must give."""

    observation: gym.Space[Any]
    """Of one environment, without nests."""
    action: gym.Space[Any]
    """As the environment takes them."""
    stored: gym.Space[Any]
    """As the agent remembers them."""
    discount: float
    n_step: int


class Piece(NamedTuple):
    """Consecutive transitions of one environment."""

    observation: NDArray
    """[n, *obs]"""
    action: NDArray
    """As the agent remembers them. [n, *stored]"""
    reward: NDArray
    """[n]"""
    next_observation: NDArray
    """What each led to. [n, *obs]"""
    terminated: NDArray[np.bool_]
    """[n]"""
    cut: NDArray[np.bool_]
    """Whether the next one is not what follows. [n]"""


class OfflineData:
    """A source's transitions in memory, drawn uniformly; they never change."""

    def __init__(
        self, config: OfflineConfig, pieces: Iterable[Piece], wanted: Wanted, generator: np.random.Generator
    ) -> None:
        """generator: of the session's streams, which save it. Raises ConfigError where there is nothing."""
        self._config = config
        kept = list(_first(pieces, config.max_transitions))
        total = sum(len(piece.reward) for piece in kept)
        if total <= wanted.n_step:
            raise ConfigError(f"agent.offline: its source holds {total} transitions, too few to learn from.")
        self._memory = Replay(
            ReplayConfig(capacity=total + wanted.n_step),
            observation_space=wanted.observation,
            action_space=wanted.stored,
            num_envs=1,
            n_step=wanted.n_step,
            discount=wanted.discount,
            workspace=Workspace(),
            generator=generator,
        )
        self._checksum = 0
        dtype = array_dtype(wanted.observation)
        for piece, following in zip(kept, [*kept[1:], kept[0]], strict=True):
            self._add(piece, following.observation[:1], dtype)

    def __len__(self) -> int:
        """Transitions."""
        return len(self._memory)

    def mixed(self, online: Replay, batch_size: int, frame: int, update: int, joined: bool) -> Sample:
        """A minibatch of both kinds; those of the source come last and have an index below 0.

        update: its number from 0; joined: whether the session's transitions may take part yet.
        """
        own = batch_size - round(self._config.share * batch_size)
        if not joined or update % self._config.online_every or len(online) < own:
            own = 0
        theirs = self._memory.sample(batch_size - own, frame) if own < batch_size else None
        if theirs is not None:
            theirs = theirs._replace(index=np.full_like(theirs.index, -1))
        if not own:
            assert theirs is not None
            return theirs
        sample = online.sample(own, frame)
        return sample if theirs is None else _joined(sample, theirs)

    def state_dict(self) -> dict[str, Any]:
        """What it is known by again: the transitions are their source's."""
        return {"transitions": len(self), "checksum": self._checksum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ConfigError where the source has other transitions than when the state was saved."""
        if dict(state) != self.state_dict():
            raise ConfigError(
                "agent.offline: its source holds other transitions than when the checkpoint was written: a "
                "run that goes on must find them as they were. Bring them back, or start afresh."
            )

    def _add(self, piece: Piece, first: NDArray, dtype: np.dtype) -> None:
        """first: the observation that comes after the piece. [1, *obs]"""
        for array in (piece.action, piece.reward, piece.next_observation):
            self._checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), self._checksum)
        following = np.concatenate([piece.observation[1:], first]).astype(dtype, copy=False)
        observation, reached = (
            array.astype(dtype, copy=False) for array in (piece.observation, piece.next_observation)
        )
        cut, reward = piece.cut.copy(), piece.reward.astype(np.float32)
        cut[-1] = True
        for row in range(len(reward)):
            at = slice(row, row + 1)
            next_one = following[at] if cut[row] else reached[at]
            truncated = cut[at] & ~piece.terminated[at]
            step = Step(next_one, reached[at], reward[at], piece.terminated[at], truncated, cut[at])
            self._memory.add(observation[at], piece.action[at], step)


def _first(pieces: Iterable[Piece], most: int | None) -> Iterable[Piece]:
    """As many as hold `most` transitions, the last one cut short."""
    left = most
    for piece in pieces:
        if left is None:
            yield piece
            continue
        yield Piece(*(array[:left] for array in piece))
        left -= len(piece.reward[:left])
        if left == 0:
            return


def _joined(one: Sample, other: Sample) -> Sample:
    """One minibatch of two. Masks of valid actions are those of the first; to the other, all are valid."""
    columns: dict[str, Any] = {}
    for name in Sample._fields:
        left, right = getattr(one, name), getattr(other, name)
        if left is not None and right is None:
            right = np.ones((len(other.reward), *left.shape[1:]), np.bool_)
        columns[name] = None if left is None else np.concatenate([left, right])
    return Sample(**columns)
