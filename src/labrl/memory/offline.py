"""Transitions that were not collected by this session, and minibatches that mix both kinds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from labrl.config.types import PositiveInt, Probability
from labrl.errors import InputError
from labrl.memory.piece import Piece
from labrl.memory.replay import Replay, ReplayConfig, Sample
from labrl.workspace import Workspace


@dataclass(kw_only=True)
class OfflineConfig:
    """How much is learned from transitions that were collected elsewhere."""

    share: Probability
    """Share of a batch that is theirs, rounded, in [0, 1], while there are some of this session too."""
    online_every: PositiveInt
    """This session's transitions take part in every so many updates, >= 1; the others do without."""
    max_transitions: PositiveInt | None
    """At most so many are kept, the first that come, >= 1; null: all."""


class Wanted(NamedTuple):
    """What a source must give."""

    observation: gym.Space[Any]
    """Of one environment, without nests."""
    action: gym.Space[Any]
    """As the environment takes them."""
    stored: gym.Space[Any]
    """As the agent remembers them."""
    gamma: float
    n_step: int
    num_masked: int = 0
    """Actions that masks have a flag for, 0 for an agent that does not support masks."""


class OfflineData:
    """A source's transitions in memory, drawn uniformly; they never change."""

    def __init__(
        self,
        config: OfflineConfig,
        pieces: Iterable[Piece],
        total: int,
        wanted: Wanted,
        generator: np.random.Generator,
    ) -> None:
        """pieces: read one after the other, never all at once; total: transitions in all of them;
        generator: of the session's streams, which save it. Raises InputError where there is nothing."""
        self._config = config
        total = min(total, config.max_transitions or total)
        if total <= wanted.n_step:
            raise InputError(
                f"agent.offline: the source has {total} transitions, and learning needs more than "
                f"{wanted.n_step}.",
                code="unsupported",
                key="agent.offline",
            )
        self._memory = Replay(
            ReplayConfig(capacity=total + wanted.n_step, storage="ram", newest_share=0.0),
            observation_space=wanted.observation,
            action_space=wanted.stored,
            num_envs=1,
            n_step=wanted.n_step,
            gamma=wanted.gamma,
            workspace=Workspace(),
            generator=generator,
            num_masked=wanted.num_masked,
        )
        self._checksum = 0
        for piece in _first(pieces, total):
            for array in (piece.action, piece.reward, piece.next_observation):
                self._checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), self._checksum)
            self._memory.extend(piece)

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
        """Raises InputError where the source has other transitions than when the state was saved."""
        if dict(state) != self.state_dict():
            raise InputError(
                "agent.offline: the source does not hold the transitions that it held when the checkpoint "
                "was written. Restore them, or start a new run.",
                code="changed-past",
                key="agent.offline",
            )


def _first(pieces: Iterable[Piece], left: int) -> Iterable[Piece]:
    """As many as hold `left` transitions, the last one cut short."""
    for piece in pieces:
        if left < len(piece.reward):
            piece = piece.rows(slice(left))
            piece.cut[-1:] = True
        yield piece
        left -= len(piece.reward)
        if left == 0:
            return


def _joined(one: Sample, other: Sample) -> Sample:
    """One minibatch of two."""
    columns: dict[str, Any] = {}
    for name, left, right in zip(Sample._fields, one, other, strict=True):
        columns[name] = None if left is None else np.concatenate([left, right])
    return Sample(**columns)
