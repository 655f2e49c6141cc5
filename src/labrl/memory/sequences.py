"""Replay of sequences, each with the recurrent state before it (Kapturowski et al., 2019, R2D2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.errors import InputError
from labrl.memory import Columns
from labrl.memory.replay import Replay, ReplayTraits
from labrl.memory.transition_ring import StorageConfig
from labrl.memory.workspace import Layout
from labrl.step import Masks, States, Step
from labrl.types import NonNegativeInt, PositiveInt


@dataclass(kw_only=True)
class SequenceReplayConfig(StorageConfig):
    """Options of a replay buffer of sequences. A sequence may extend beyond the end of an episode."""

    sequence_length: PositiveInt
    """Number of steps in a sequence, including the burn-in, >= 1; m in the paper."""
    burn_in: NonNegativeInt
    """Number of initial steps of a sequence that only update the network's state, >= 0 and less than
    sequence_length. Consecutive sequences overlap by this number, so that every step is learned from equally
    often."""

    @property
    def learned(self) -> int:
        """Number of steps of a sequence to learn from; also the distance between the starts of sequences."""
        return self.sequence_length - self.burn_in

    def steps_for(self, n_step: int) -> int:
        """Return the number of consecutive steps that one sequence and its targets need."""
        return self.sequence_length + n_step - 1

    def frames_for(self, batch_size: int, num_envs: int, n_step: int) -> int:
        """Return the number of frames after which there are `batch_size` steps to learn from."""
        rounds = -(-batch_size // (self.learned * num_envs))
        return num_envs * (self.steps_for(n_step) + (rounds - 1) * self.learned)

    def steps_kept(self, n_step: int) -> int:
        """Return the number of steps that always contain a complete sequence."""
        return self.steps_for(n_step) + self.learned


@dataclass(frozen=True)
class Rows:
    """Observations in the rows of sequences, one sequence after the other."""

    observation: Any
    """Observations of the rows. [rows, *obs]"""
    start: NDArray[np.bool_]
    """Whether each row is the first of its episode. [rows] A state before a sequence is already reset."""
    begin: NDArray[np.int64]
    """Index of the first row of each sequence, followed by the number of rows. [sequences + 1]"""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.begin) - 1

    def __getitem__(self, sequences: slice) -> Rows:
        """Return the rows of a slice of the sequences."""
        begin = self.begin[sequences.start : sequences.stop + 1]
        rows = slice(begin[0], begin[-1])
        return Rows(self.observation[rows], self.start[rows], begin - begin[0])


@dataclass(frozen=True)
class SequenceSample(Columns):
    """A minibatch of sequences, which `as_tensors` converts for a loss. Read only."""

    state: Any
    """Recurrent state before each sequence, computed by the network that acted. [sequences, state_size]"""
    burn_in: Rows
    """Rows of the burn-in."""
    rows: Rows
    """Rows of the steps to learn from, of the later steps that targets need, and of the true final
    observations of episodes."""
    at: Any
    """Row of each step to learn from, relative to the first row of the step's sequence. [sequences, learned]
    """
    following: Any
    """Row of the state at the end of each step's window, relative to the first row of the step's sequence.
    [sequences, learned]"""
    action: Any
    """Actions of the steps to learn from. [sequences * learned, *action]"""
    reward: Any
    """Discounted sum of the rewards over the window. [sequences * learned]"""
    discount: Any
    """Factor that multiplies the value at `following`. [sequences * learned]"""
    weight: Any
    """Importance weights, at most 1. [sequences]"""
    index: NDArray[np.int64]
    """Indices that identify the sequences for `update_priorities`. [sequences]"""
    next_mask: Any
    """Valid actions at `following`; None if all actions are always valid. [sequences * learned, actions]"""

    def as_tensors(self, learner: Any, layout: Callable[[Any], Any]) -> SequenceSample:
        """Return the sequences as tensors on the device of a `Learner`, except `index`.

        layout: converts observations to the layout of the learner's network.
        """
        columns = dict(vars(self))
        for name in ("burn_in", "rows"):
            inputs = learner.tensor(layout(columns[name].observation))
            columns[name] = replace(columns[name], observation=inputs)
        arrays = {n: each for n, each in columns.items() if n != "index" and isinstance(each, np.ndarray)}
        return SequenceSample(**{**columns, **learner.tensors(arrays)})


class SequenceReplay(Replay):
    """Replay buffer that samples sequences uniformly.

    Sequences of an environment start every `learned` steps, regardless of episodes, and may extend beyond the
    end of an episode, where the network's state is reset and targets end. A sequence is identified by its
    environment and its index there.
    """

    Config = SequenceReplayConfig
    TRAITS = ReplayTraits(sequences=True)

    def __init__(self, config: SequenceReplayConfig, *, n_step: int, **runtime: Any) -> None:
        """Take the same arguments as `Replay`."""
        self._period, self._count = config.learned, config.steps_for(n_step)
        super().__init__(config, n_step=n_step, **runtime)
        self._states = self._arrays["states"]  # [num_envs, places, state_size]

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: Masks = None, state: States = None
    ) -> None:
        """Store one vector step and, if a sequence starts, the recurrent state, [num_envs, state_size]."""
        number, rest = divmod(self.steps, self._period)
        if rest == 0:
            self._states[:, number % self._states.shape[1]] = state
        super().add(observation, action, step, mask)

    def sample(self, batch_size: int, frame: int) -> SequenceSample:  # type: ignore[override]
        """Draw sequences with `batch_size` steps to learn from, with replacement.

        Raises ValueError if there is nothing to sample.
        """
        if not len(self):
            raise ValueError("the replay buffer holds no sequence that can be sampled yet")
        env, number = self.draw(batch_size // self._period)
        weight = self.weights(env, number, frame)
        burn_in, learned = self._config.burn_in, self._period
        # Frames of the observation and of the next observation of each step. [sequences, steps]
        slots = ((number * learned)[:, None] + np.arange(self._count)) % self.slots
        steps = self.rows.reshape(-1).take(slots + (env * self.slots)[:, None])
        frames, led_to = steps["frame"], steps["next_frame"]
        start = np.zeros(frames.shape, np.bool_)
        start[:, 1:] = frames[:, 1:] != led_to[:, :-1]  # the first observation of a new episode lies between
        before = Rows(
            self._ring.observations(np.repeat(env, burn_in), frames[:, :burn_in].ravel()),
            start[:, :burn_in].ravel(),
            np.arange(len(env) + 1) * burn_in,
        )
        # Insert the next observation after the last step of each episode and of each sequence.
        frames, led_to, start = frames[:, burn_in:], led_to[:, burn_in:], start[:, burn_in:]
        ends = np.ones_like(start)
        ends[:, :-1] = start[:, 1:]
        after, count = np.flatnonzero(ends) + 1, frames.shape[1] + ends.sum(axis=1)
        rows = Rows(
            self._ring.observations(np.repeat(env, count), np.insert(frames.ravel(), after, led_to[ends])),
            np.insert(start.ravel(), after, False),
            np.append(0, count.cumsum()),
        )
        # Row of each step, relative to the first row of its sequence. [sequences, steps]
        at = np.arange(frames.shape[1]) + ends.cumsum(axis=1) - ends
        begins = (number * learned + burn_in)[:, None] + np.arange(learned)
        first, last, length, reward, discount = self._windows(np.repeat(env, learned), begins.ravel())
        final = np.arange(learned) + length.reshape(-1, learned)  # last step of each window
        return SequenceSample(
            state=self._states[env, number % self._states.shape[1]],
            burn_in=before,
            rows=rows,
            at=at[:, :learned],
            following=np.take_along_axis(at, final, axis=1) + 1,
            action=first["action"],
            reward=reward,
            discount=discount,
            weight=weight,
            index=number * self.num_envs + env,
            next_mask=last["next_mask"] if self._masked else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state except the generator. Recurrent states in memory are not copied."""
        used = -(-self.steps // self._period)
        return {
            **super().state_dict(),
            "states": [states[:used] for states in self._states] if self._folder is None else None,
            "sequence_length": self._config.sequence_length,
            "burn_in": self._config.burn_in,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        own = {"sequence_length": self._config.sequence_length, "burn_in": self._config.burn_in}
        for name, length in own.items():
            if state[name] != length:
                raise InputError.value(
                    f"agent.memory.{name}",
                    length,
                    f"remain {state[name]}, as it was when the checkpoint was written",
                    fix=f"agent.memory.{name}={state[name]}",
                    code="changed-past",
                )
        super()._restore(state)
        if state["states"] is not None:
            for own_states, states in zip(self._states, state["states"], strict=True):
                own_states[: len(states)] = states

    def _more_layouts(self, live: int, spare: int, state_size: int) -> dict[str, Layout]:
        # States need as large a proportion of spare slots as transitions, so that both are kept equally long.
        places, least = (live + spare) // self._period + 2, live // self._period + 2
        return {"states": Layout((self.num_envs, places, state_size), np.dtype(np.float32), least)}

    def _available(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index of the first sequence of each environment, and how many sequences are complete.

        A sequence is complete if the steps that its targets need have been stored too.
        """
        first = -(-self.oldest // self._period)
        return first, np.maximum((self.steps - self._count) // self._period + 1 - first, 0)
