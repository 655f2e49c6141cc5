"""Transitions that were collected elsewhere, and minibatches that mix them with a session's transitions."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import InputError
from labrl.memory import Transitions
from labrl.memory.replay import Replay, ReplayConfig
from labrl.memory.workspace import Workspace
from labrl.spaces import not_finite
from labrl.step import Masks
from labrl.types import PositiveInt, Probability

AT_ONCE = 4096
"""Number of transitions that are read at once."""


@dataclass(kw_only=True)
class OfflineConfig:
    """Options of learning from transitions that were collected elsewhere."""

    share: Probability
    """Fraction of a minibatch that is drawn from the source, in [0, 1], once this session has collected
    transitions."""
    online_every: PositiveInt
    """Interval, in updates, between updates that use this session's transitions, >= 1; 1: every update."""
    max_transitions: PositiveInt | None
    """Maximum number of transitions to read, from the start of the source, >= 1; null: all."""


class Requirements(NamedTuple):
    """Requirements that a source of transitions must meet."""

    observation: gym.Space[Any]
    """Flat observation space of one environment."""
    action: gym.Space[Any]
    """Action space of the environment."""
    stored: gym.Space[Any]
    """Space of the actions that the agent stores."""
    gamma: float
    n_step: int
    num_masked: int = 0
    """Number of flags in an action mask, 0 for an agent that does not support masks."""


class Chunk(NamedTuple):
    """Consecutive transitions of one environment."""

    observation: NDArray
    """Observations before each step. [n, *obs]"""
    action: NDArray
    """Actions as the agent stores them. [n, *stored]"""
    reward: NDArray
    """Rewards of each step. [n]"""
    next_observation: NDArray
    """Observations after each step. [n, *obs]"""
    terminated: NDArray[np.bool_]
    """Whether the step ended the episode by a termination. [n]"""
    cut: NDArray[np.bool_]
    """Whether the next transition does not follow this one. [n]"""
    mask: Masks = None
    """Valid actions; None if there are no masks. [n, actions]"""
    next_mask: Masks = None
    """Valid actions in `next_observation`. [n, actions]"""
    origin: str = "the source"
    """Description of where the transitions are from, for messages."""
    first: int = 0
    """Index of the first step in its episode or environment, from 0."""

    def part(self, rows: slice) -> Chunk:
        """Return the chunk of a slice of the transitions."""
        columns: dict[str, Any] = {
            name: column[rows] for name, column in self._asdict().items() if isinstance(column, np.ndarray)
        }
        return self._replace(**columns, first=self.first + (rows.start or 0))

    def check(self) -> None:
        """Raise InputError if a number is not finite."""
        numbers = {"observation": self.observation, "action": self.action, "reward": self.reward}
        for name, column in {**numbers, "next observation": self.next_observation}.items():
            if (found := not_finite(column)) is not None:
                raise self.refused(found[0], f"{name} contains {found[1]}, but learning needs finite numbers")

    def refused(self, row: int, why: str) -> InputError:
        """Return the error for the transition at `row`."""
        return InputError.about(
            "agent.offline",
            f"{self.origin}, step {self.first + row} (counted from 0): its {why}",
            "Correct the data, or choose other data",
            code="range",
        )


class ChunkReplay(Replay):
    """Replay buffer that is written and read in chunks, which is many times faster than step by step."""

    def extend(self, chunk: Chunk) -> None:
        """Store a chunk in a buffer of a single environment that has room for it."""
        # The frames of this many transitions always fit into the ring.
        most = max(self._ring.length // self._ring.max_step_frames, 1)
        for begin in range(0, len(chunk.reward), most):
            part, first = chunk.part(slice(begin, begin + most)), self.steps
            columns, last = self._columns, first + len(part.reward)
            rows = (0, slice(first, last))
            columns["frame"][rows], columns["next_frame"][rows] = self._push(part)
            columns["action"][rows], columns["reward"][rows] = part.action, part.reward
            columns["terminated"][rows], columns["cut"][rows] = part.terminated, part.cut
            if self._masked:
                columns["mask"][rows] = True if part.mask is None else part.mask
                columns["next_mask"][rows] = True if part.next_mask is None else part.next_mask
            self._written[-1] = self.steps = last
            ended = first + np.flatnonzero(part.cut)
            self.complete[0] = max(self.complete[0], last - self._n_step + 1, *(ended[-1:] + 1))
            if self._may_lack_frames:
                self._drop_without_frames()

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield all transitions in chunks of at most `size` transitions of one environment."""
        for env in range(self.num_envs):
            for begin in range(int(self.oldest[env]), self.steps, size):
                step = np.arange(begin, min(begin + size, self.steps))
                envs = np.full(len(step), env)
                sample = self._gather(envs, step, np.ones(len(step), np.float32))
                cut = self._columns["cut"][env, step % self.slots]
                cut[-1] |= step[-1] == self.steps - 1
                yield Chunk(
                    sample.observation,
                    sample.action,
                    sample.reward,
                    sample.next_observation,
                    sample.discount == 0,
                    cut,
                    sample.mask,
                    sample.next_mask,
                    f"environment {env}",
                    begin,
                )

    def _push(self, chunk: Chunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Push the frames of a chunk. Returns the newest frames of its observations and next observations."""
        ring, stack = self._ring, self._ring.stack
        frames, before, after = ring.frames[0], chunk.observation, chunk.next_observation
        olds, news = ring.stacks_of(before), ring.stacks_of(after)
        shifted = np.ones(len(news), np.bool_)
        if stack > 1:
            shifted = (news[:, :-1] == olds[:, 1:]).reshape(len(news), -1).all(axis=1)
        begins = np.concatenate([[True], chunk.cut[:-1]])
        for row in np.flatnonzero(begins)[1:]:  # after a lost life, the game continues
            begins[row] = before[row].tobytes() != after[row - 1].tobytes()
        pushed = np.where(shifted, 1, stack)
        following = ring.head[0] + (pushed + stack * begins).cumsum() - 1
        newest = following - pushed
        for back in range(stack):
            whole = slice(None) if back == 0 else ~shifted
            frames[(newest[begins] - back) % ring.length] = olds[begins, -1 - back]
            frames[(following[whole] - back) % ring.length] = news[whole, -1 - back]
        ring.head[0] = ring.written[0] = following[-1] + 1
        return newest, following


class OfflineData:
    """The transitions of a source, which are kept in memory, sampled uniformly and never changed."""

    def __init__(
        self,
        config: OfflineConfig,
        chunks: Iterable[Chunk],
        total: int,
        wanted: Requirements,
        generator: np.random.Generator,
    ) -> None:
        """chunks: the source's chunks, read one at a time, never all at once; total: number of transitions in
        all chunks; generator: one of the session's random streams, so that its state is saved with them.
        Raises InputError if there are too few transitions or a number is not finite.
        """
        self._config = config
        total = min(total, config.max_transitions or total)
        if total <= wanted.n_step:
            raise InputError.unsupported(
                "agent.offline",
                f"the source has {total} transitions, but learning needs more than {wanted.n_step}",
            )
        self._memory = ChunkReplay(
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
        self._checksum, left = 0, total
        for chunk in chunks:
            if left < len(chunk.reward):
                chunk = chunk.part(slice(left))
                chunk.cut[-1:] = True
            left -= len(chunk.reward)
            chunk.check()
            for array in (chunk.action, chunk.reward, chunk.next_observation):
                self._checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), self._checksum)
            self._memory.extend(chunk)
            if left == 0:
                break

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise InputError if the source does not exist. Nothing is built yet."""

    @classmethod
    def environments(cls, config: Any) -> list[Component]:
        """Return the known environments among those in which the transitions were collected."""
        return []

    @classmethod
    def transforms(cls, config: Any) -> list[dict[str, Component]]:
        """Return the transforms of observations and rewards, by name, for each part of the source.

        Returns an empty list if the transforms are not known.
        """
        return []

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self._memory)

    def observation_statistics(self) -> tuple[NDArray, NDArray]:
        """Return the mean and standard deviation of each component of the observations. [*obs] each"""
        count, total, squares = 0, np.zeros(()), np.zeros(())
        for chunk in self._memory.chunks(AT_ONCE):
            count += len(chunk.observation)
            total = total + chunk.observation.sum(0, dtype=np.float64)
        mean = total / count
        # Make a second pass, because differences between sums of squares lose digits where the mean is large.
        for chunk in self._memory.chunks(AT_ONCE):
            squares = squares + np.square(chunk.observation - mean).sum(0)
        return mean, np.sqrt(squares / count)

    def mixed(self, online: Replay, batch_size: int, frame: int, update: int, joined: bool) -> Transitions:
        """Draw a minibatch of online transitions, then transitions of the source, whose indices are negative.

        update: index of the update, from 0; joined: whether the session's transitions may be used yet.
        """
        own = batch_size - round(self._config.share * batch_size)
        if not joined or update % self._config.online_every or len(online) < own:
            own = 0
        if own == batch_size:
            return online.sample(own, frame)
        theirs = self._memory.sample(batch_size - own, frame)
        theirs = replace(theirs, index=np.full_like(theirs.index, -1))
        if not own:
            return theirs
        columns = dict(vars(online.sample(own, frame)))
        for name, column in columns.items():
            if column is not None:
                columns[name] = np.concatenate([column, vars(theirs)[name]])
        return Transitions(**columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the number and checksum of the transitions. The transitions themselves are not included."""
        return {"transitions": len(self), "checksum": self._checksum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise InputError if the source's transitions have changed since the state was saved."""
        if dict(state) != self.state_dict():
            raise InputError.about(
                "agent.offline",
                "the source no longer contains the transitions that it contained when the checkpoint was "
                "written",
                "Restore them, or start a new run",
                code="changed-past",
            )
