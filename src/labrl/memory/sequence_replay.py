"""Replay of sequences with the state of a recurrent network before each (Kapturowski et al., 2019, R2D2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.config.types import NonNegativeInt, PositiveInt
from labrl.errors import InputError
from labrl.memory.replay import StorageConfig, arrays_of, extent_of, transitions_in
from labrl.step import Step
from labrl.workspace import Layout, Workspace


@dataclass(kw_only=True)
class SequenceReplayConfig(StorageConfig):
    """Options of a replay memory of sequences, each of one environment's steps, whatever ends in them."""

    sequence_length: PositiveInt
    """Steps of a sequence, those of the burn-in included, >= 1; m in the paper."""
    burn_in: NonNegativeInt
    """First steps of a sequence that only bring the network's state up to date, >= 0 and less than
    sequence_length. Sequences overlap by as many, so that every step is learned from alike."""

    def __post_init__(self) -> None:
        if self.burn_in >= self.sequence_length:
            raise ValueError(
                f"burn_in must be less than sequence_length {self.sequence_length}, or there is no step to "
                f"learn from: got {self.burn_in} (set agent.memory.burn_in={self.sequence_length // 2} or a "
                "longer sequence)"
            )

    @property
    def learned(self) -> int:
        """Steps of a sequence that are learned from; sequences begin as many steps apart."""
        return self.sequence_length - self.burn_in

    def steps_for(self, n_step: int) -> int:
        """Steps of an environment that have to be there for one sequence and its targets."""
        return self.sequence_length + n_step - 1

    def frames_for(self, batch_size: int, num_envs: int, n_step: int) -> int:
        """Frames after which there are as many sequences as a minibatch of `batch_size` steps has."""
        rounds = -(-batch_size // (self.learned * num_envs))
        return num_envs * (self.steps_for(n_step) + (rounds - 1) * self.learned)

    def steps_kept(self, n_step: int) -> int:
        """Steps of an environment among which there is a whole sequence, wherever the next one begins."""
        return self.steps_for(n_step) + self.learned

    def least_capacity(self, num_envs: int, n_step: int) -> int:
        """Frames that hold a whole sequence of each environment."""
        return num_envs * self.steps_kept(n_step)

    def check(self, batch_size: int, num_envs: int, n_step: int) -> None:
        """Raises InputError where no sequence would fit, or a minibatch would not be of whole ones."""
        least = self.least_capacity(num_envs, n_step)
        if self.capacity < least:
            raise InputError(
                f"agent.memory.capacity must be at least {least}, so that each of {num_envs} environments "
                f"keeps a whole sequence (agent.memory.sequence_length {self.sequence_length}, agent.n_step "
                f"{n_step}), got {self.capacity} (set agent.memory.capacity={least} or more).",
                code="contradiction",
                key="agent.memory.capacity",
            )
        if batch_size % self.learned:
            raise InputError(
                f"agent.batch_size counts steps and must be a multiple of the {self.learned} that each "
                f"sequence is learned from (agent.memory.sequence_length {self.sequence_length} less "
                f"agent.memory.burn_in {self.burn_in}), got {batch_size} (set "
                f"agent.batch_size={-(-batch_size // self.learned) * self.learned}).",
                code="contradiction",
                key="agent.batch_size",
            )


class Rows(NamedTuple):
    """Observations of some sequences, one sequence after the other."""

    observation: NDArray
    """[rows, *obs]"""
    start: NDArray[np.bool_]
    """Which are the first of their episodes, but for the first of a sequence. [rows]"""
    begin: NDArray[np.int64]
    """The row that each sequence begins with, and the number of rows. [sequences + 1]"""

    def part(self, share: slice) -> Rows:
        """Of some sequences alone."""
        begin = self.begin[share.start : share.stop + 1]
        rows = slice(begin[0], begin[-1])
        return Rows(self.observation[rows], self.start[rows], begin - begin[0])


class SequenceSample(NamedTuple):
    """A batch of sequences. To be read only."""

    state: NDArray[np.float32]
    """Of the network that acted, before each sequence. [sequences, state_size]"""
    burn_in: Rows
    """The steps before those that are learned from."""
    rows: Rows
    """The steps that are learned from, the few after them that their targets reach to, and where an episode
    ends the true final observation."""
    fresh: NDArray[np.bool_]
    """Whether the first of `rows` begins an episode. [sequences]"""
    at: NDArray[np.int64]
    """The row of each step that is learned from, counted from its sequence's first. [sequences, learned]"""
    following: NDArray[np.int64]
    """The row of the state at the end of its window, likewise. [sequences, learned]"""
    action: NDArray
    """[sequences * learned, *action]"""
    reward: NDArray[np.float32]
    """Discounted sum of the rewards over the window. [sequences * learned]"""
    discount: NDArray[np.float32]
    """What the value at `following` counts. [sequences * learned]"""
    weight: NDArray[np.float32]
    """Importance weights, the largest is 1. [sequences]"""
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a batch
    """Names the sequences to `update_priorities`. [sequences]"""
    next_mask: NDArray[np.bool_] | None
    """Which actions are valid at `following`, None where all are. [sequences * learned, actions]"""


class SequenceReplay:
    """Every sequence is as likely as any other.

    Sequences of an environment begin every `learned` steps, in the middle of episodes or not, and may go on
    over an episode's end: there the network's state begins anew, and no target reaches beyond.
    """

    Config = SequenceReplayConfig
    SEQUENCES = True

    def __init__(
        self,
        config: SequenceReplayConfig,
        *,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int,
        n_step: int,
        gamma: float,
        workspace: Workspace,
        generator: np.random.Generator,
        state_size: int,
        num_masked: int = 0,
    ) -> None:
        """As Replay; state_size: numbers that the network carries for each environment."""
        self._acting_only = workspace.acting_only
        if self._acting_only:
            least = config.least_capacity(num_envs, n_step)
            config = dataclasses.replace(config, capacity=least, storage="ram")
        self.num_envs, self._config, self._generator = num_envs, config, generator
        self._period, self._count = config.learned, config.steps_for(n_step)
        kept = config.steps_kept(n_step)
        extent, mapped = extent_of(config, observation_space, num_envs, n_step, workspace, kept)
        # As many more as the transitions have spare places, so that they outlast these.
        places, least = extent.slots // self._period + 2, extent.live // self._period + 2
        layouts = extent.layouts(action_space, num_masked)
        # Before the last one, whose file says that all are made.
        states = Layout((num_envs, places, state_size), np.dtype(np.float32), least)
        arrays = arrays_of(config, {"states": states, **layouts}, workspace, mapped)
        self._arrays, self._states = arrays, arrays["states"]
        self._transitions = transitions_in(arrays, extent, n_step, gamma, workspace)

    def __len__(self) -> int:
        """Sequences that can be sampled now."""
        return int(self._counts().sum())

    @property
    def num_bytes(self) -> int:
        """Of memory or disk that all of it takes when full."""
        return self._arrays.num_bytes

    def add(
        self,
        observation: NDArray,
        action: NDArray,
        step: Step,
        mask: NDArray[np.bool_] | None = None,
        *,
        state: NDArray,
    ) -> None:
        """Store one vector step, as Replay; state: before `observation`, [num_envs, state_size]."""
        number, rest = divmod(self._transitions.steps, self._period)
        if rest == 0:
            self._states[:, number % self._states.shape[1]] = state
        self._transitions.add(observation, action, step, mask)

    def sample(self, batch_size: int, frame: int) -> SequenceSample:
        """Sequences with `batch_size` steps to learn from, drawn with replacement at `frame` of the run.

        Raises ValueError when there is nothing to sample.
        """
        if not len(self):
            raise ValueError("the replay memory holds no sequence that can be sampled yet")
        env, number = self._draw(batch_size // self._period)
        return self._gather(env, number, self._weights(env, number, frame))

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Nothing to do: all sequences are alike. index: [sequences]; error: [sequences * learned]"""

    def state_dict(self) -> dict[str, Any]:
        """All but the generator."""
        in_memory = self._arrays.folder is None
        used = -(-self._transitions.steps // self._period)
        return {
            "transitions": self._transitions.state_dict(),
            "states": self._states[:, :used].copy() if in_memory else None,
            "sequence_length": self._config.sequence_length,
            "burn_in": self._config.burn_in,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state. Raises InputError when it does not fit, or files are gone."""
        if not self._acting_only:
            self._restore(state)

    def close(self) -> None:
        """Write out what is in files."""
        self._transitions.close()

    def _restore(self, state: Mapping[str, Any]) -> None:
        for name in ("sequence_length", "burn_in"):
            if state[name] != getattr(self._config, name):
                raise InputError(
                    f"agent.memory.{name} must stay {state[name]}, as it was when the checkpoint was "
                    f"written, got {getattr(self._config, name)}.",
                    code="changed-past",
                    key=f"agent.memory.{name}",
                )
        self._transitions.load_state_dict(state["transitions"])
        if state["states"] is not None:
            self._states[:, : state["states"].shape[1]] = state["states"]

    def _first(self) -> NDArray[np.int64]:
        """The number of the oldest sequence of each environment. [num_envs]"""
        return -(-self._transitions.oldest // self._period)

    def _counts(self) -> NDArray[np.int64]:
        """Sequences of each environment that are there with all that their targets need. [num_envs]"""
        end = (self._transitions.steps - self._count) // self._period + 1
        return np.maximum(end - self._first(), 0)

    def _draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Environment and number of `count` sequences."""
        counts, first = self._counts(), self._first()
        ends = counts.cumsum()
        place = self._generator.integers(0, ends[-1], count)
        env = ends.searchsorted(place, side="right")
        return env, place - (ends - counts - first)[env]

    def _weights(self, env: NDArray[np.int64], number: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        """Importance weights. [sequences]"""
        return np.ones(len(env), np.float32)

    def _gather(
        self, env: NDArray[np.int64], number: NDArray[np.int64], weight: NDArray[np.float32]
    ) -> SequenceSample:
        transitions, burn_in, learned = self._transitions, self._config.burn_in, self._period
        frame, led_to = transitions.frames(env, number * learned, self._count)
        start = np.zeros(frame.shape, np.bool_)
        start[:, 1:] = frame[:, 1:] != led_to[:, :-1]  # a new episode's first observation was pushed between
        before = Rows(
            transitions.observations(np.repeat(env, burn_in), frame[:, :burn_in].ravel()),
            start[:, :burn_in].ravel(),
            np.arange(len(env) + 1) * burn_in,
        )
        rows, at = self._rows(env, frame[:, burn_in:], led_to[:, burn_in:], start[:, burn_in:])
        steps = (number * learned + burn_in)[:, None] + np.arange(learned)
        window = transitions.windows(np.repeat(env, learned), steps.ravel())
        ends = np.arange(learned) + window.length.reshape(-1, learned)
        return SequenceSample(
            state=self._states[env, number % self._states.shape[1]],
            burn_in=before,
            rows=rows,
            fresh=start[:, burn_in],
            at=at[:, :learned],
            following=np.take_along_axis(at, ends, axis=1) + 1,
            action=window.first["action"],
            reward=window.reward,
            discount=window.discount,
            weight=weight,
            index=number * self.num_envs + env,
            next_mask=window.end["next_mask"] if transitions.masked else None,
        )

    def _rows(
        self,
        env: NDArray[np.int64],
        frame: NDArray[np.int64],
        led_to: NDArray[np.int64],
        start: NDArray[np.bool_],
    ) -> tuple[Rows, NDArray[np.int64]]:
        """Steps, and after the last of each episode and of each sequence what it led to.

        Returns the rows, and which of its sequence's rows each step is. [sequences, steps]
        """
        begins = start.copy()
        begins[:, 0] = False
        last = np.ones_like(start)
        last[:, :-1] = begins[:, 1:]
        after = np.flatnonzero(last) + 1
        names = np.insert(frame.ravel(), after, led_to[last])
        count = frame.shape[1] + last.sum(axis=1)
        begin = np.append(0, count.cumsum())
        observation = self._transitions.observations(np.repeat(env, count), names)
        rows = Rows(observation, np.insert(begins.ravel(), after, False), begin)
        return rows, np.arange(frame.shape[1]) + begins.cumsum(axis=1)
