"""Ring of the latest transitions of each environment, in memory or in files.

`TransitionRing` stores rows of transitions, and the frames of their observations in a `FrameRing`. Both rings
have a head, live slots and spare slots, as `frame_ring.py` explains. `Replay` samples from a
`TransitionRing`.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.errors import DamagedFileError, InputError
from labrl.memory.frame_ring import FrameRing
from labrl.memory.workspace import Layout, Workspace
from labrl.spaces import Goals
from labrl.step import Masks, States, Step
from labrl.types import PositiveInt

_log = logging.getLogger(__name__)
MAX_BLOCK = 32
"""Maximum number of vector steps that are written together."""

_OUTCOME = operator.attrgetter(
    "reward", "terminated", "episode_over", "next_observation", "observation", "next_mask"
)
"""Returns the fields of a `Step` that are stored."""

_WAY_OUT = "Resume from a newer checkpoint, or start a new run."


@dataclass(kw_only=True)
class StorageConfig:
    """Options for storing transitions."""

    capacity: PositiveInt
    """Number of latest transitions to keep, divided equally among the environments; >= env.num_envs *
    (agent.n_step + 1). Buffers of images have room for a sixteenth more frames than transitions; if episodes
    last only a few dozen steps, the oldest transitions are dropped early."""
    storage: Literal["ram", "mmap"]
    """Storage of the transitions: ram (in memory; each checkpoint writes all transitions) or mmap (in files
    of the run folder; a checkpoint writes only new transitions)."""

    def steps_kept(self, n_step: int) -> int:
        """Return the number of steps of each environment to keep, so that one step can always be sampled."""
        return n_step + 1

    def frames_for(self, batch_size: int, num_envs: int, n_step: int) -> int:
        """Return the number of frames after which a minibatch can be drawn."""
        return batch_size + n_step * num_envs


class TransitionRing:
    """Stores the latest steps of every environment as rows of transitions.

    The steps of each environment are in a ring of rows; all rings have the same length. The steps of an
    environment from `oldest` up to, but not including, `complete` are transitions: all rewards of their n
    steps are known. Written rows never change, with one exception: a resume may set `cut` in the last row to
    break off its episode, and every other resume from that row sets it, too. Checkpoints therefore need no
    copy of rings in files.
    """

    def __init__(
        self,
        config: StorageConfig,
        *,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int,
        n_step: int,
        gamma: float,
        workspace: Workspace,
        generator: np.random.Generator,
        num_masked: int = 0,
        state_size: int = 0,
        goals: Goals | None = None,
    ) -> None:
        """Allocate the buffer. Raises InputError if the capacity is too small, or if there is not enough room
        for it.

        observation_space, action_space: spaces of one environment; generator: one of the session's random
        streams, so that its state is saved with them; num_masked: number of flags in an action mask, 0
        without masks; state_size: size of the recurrent state, for buffers of sequences; goals: goals of the
        environment, for buffers that compute rewards for other goals.
        """
        self._acting_only = workspace.acting_only
        if self._acting_only:
            least = num_envs * config.steps_kept(n_step)
            config = dataclasses.replace(config, capacity=least, storage="ram")
        self._config: Any = config
        self.generator, self.num_envs, self.steps = generator, num_envs, 0
        self.live = config.capacity // num_envs
        """Number of transitions of each environment that can be sampled once the buffer is full."""
        self._folder = workspace.folder if config.storage == "mmap" else None
        # Only files need spare slots, because a checkpoint needs their content while new steps are written.
        spare = 0 if self._folder is None else -(-workspace.frames_kept // num_envs)
        ring = self._ring = FrameRing(observation_space)
        live_frames = ring.length_for(self.live, n_step, config.steps_kept(n_step))
        frames = live_frames + (ring.length_for(spare, n_step) if spare else 0)
        dtype = row_dtype(action_space, num_masked)
        layouts = {
            **self._more_layouts(self.live, spare, state_size),
            "frames": Layout((num_envs, frames, *ring.frame), ring.dtype, live_frames, grows=True),
            "transitions": Layout((num_envs, self.live + spare), dtype, self.live, grows=True),
            # Largest heads ever: of the frames of each environment, then of the steps. This file comes last.
            "written": Layout((num_envs + 1,), np.dtype(np.int64)),
        }
        arrays = self._arrays = workspace.arrays(layouts, config.capacity, self._folder is not None)
        self.rows, self._written = arrays["transitions"], arrays["written"]
        """The stored transitions, of `row_dtype`. [num_envs, slots]"""
        ring.open(arrays["frames"], self._written[:num_envs], live_frames)
        self._columns = {name: self.rows[name] for name in self.rows.dtype.names or ()}
        self._by_slot = {name: column.swapaxes(0, 1) for name, column in self._columns.items()}
        self.slots = self.rows.shape[1]
        """Number of slots for transitions of each environment, including spare ones."""
        self.oldest = np.zeros(num_envs, np.int64)
        """Index of the first step of each environment that can be sampled. [num_envs]"""
        self.complete = np.zeros(num_envs, np.int64)
        """Index of the first step of each environment whose window is not complete yet. [num_envs]"""
        self._masked, self._n_step = num_masked > 0, n_step
        self._marked = np.zeros(num_envs, np.int64)  # heads of the frames at the last call of `mark`
        self._envs = np.arange(num_envs)
        self._ahead = np.arange(n_step)
        self._powers = gamma ** np.arange(n_step + 1)  # float64 [n_step + 1]
        self._current: NDArray | None = None  # observation to act on next
        self._waiting: list[tuple[NDArray, NDArray, Step, NDArray[np.bool_] | None]] = []
        # Images dominate the time of copying, and would take memory while waiting.
        self._block = 1 if ring.is_image or ring.stack > 1 else min(MAX_BLOCK, self.live - n_step)
        self._warned = False
        # Rings of vectors have enough frames for episodes of one step, but not for broken off ones as well.
        self._may_lack_frames = ring.is_image
        self._workspace = workspace
        self._reserved = {"frames": 0, "transitions": 0}  # rows for which disk space is allocated
        if self._folder is not None:
            workspace.rooms.append(self)

    @property
    def num_bytes(self) -> int:
        """Size of the full buffer in bytes, in memory or on disk."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def frames_safe(self) -> int:
        """Number of frames that may follow a checkpoint before its transitions are overwritten."""
        return self.num_envs * (self.slots - self.live)

    def mark(self) -> None:
        """Record that a checkpoint needs the buffer's current content."""
        self._write()
        self._marked[:] = self._ring.head

    def spent(self) -> float:
        """Return the fraction of the spare slots filled since the last `mark`, including the next step."""
        self._write()
        filled = int((self._ring.head - self._marked).max()) + self._ring.max_step_frames
        return filled / max(self._ring.length - self._ring.live, 1)

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: Masks = None, state: States = None
    ) -> None:
        """Store one vector step, unless it is void.

        observation: observation that was acted on, which must be `step.observation` of the previous call,
        [num_envs, *obs]; action: action to store, [num_envs, *action]; step: outcome as the learner sees it;
        mask: valid actions, if there are masks, [num_envs, actions]; state: recurrent state before
        `observation`, for buffers of sequences. Raises ValueError if the observation is a different one.
        """
        if observation is not self._current:
            self._write()
            self._check_observation(observation)
        if step.void:
            self._write()
            self._break_off(step.observation)
            return
        self._waiting.append((observation, action.copy(), step, mask))
        self._current = step.observation
        self.steps += 1
        if len(self._waiting) == self._block:
            self._write()

    def _write(self) -> None:
        """Write the waiting steps to the rings together, which takes hardly longer than writing one."""
        if not self._waiting:
            return
        observations, actions, steps, masks = zip(*self._waiting, strict=True)
        rewards, terminations, overs, nexts, firsts, next_masks = zip(*map(_OUTCOME, steps), strict=True)
        self._waiting.clear()
        self._reserve(len(steps))
        first = self.steps - len(steps)
        place = first % self.slots
        slots: Any = slice(place, place + len(steps))  # faster than an array of slots
        if slots.stop > self.slots:
            slots = np.arange(first, self.steps) % self.slots
        over = np.array(overs)  # [steps, num_envs], like the following arrays
        terminated = np.array(terminations)
        cut = terminated | over
        self._written[-1] = max(self._written[-1], self.steps)  # before the rows, as with frames
        columns = self._by_slot
        columns["frame"][slots], columns["next_frame"][slots] = self._ring.push(
            observations, nexts, firsts, over
        )
        columns["action"][slots] = actions
        columns["reward"][slots] = rewards
        columns["terminated"][slots] = terminated
        columns["cut"][slots] = cut
        if self._masked:
            columns["mask"][slots] = masks
            columns["next_mask"][slots] = next_masks
        np.maximum(self.complete, self.steps - self._n_step + 1, out=self.complete)
        if cut.nonzero()[0].size:
            last_cut = (cut * np.arange(first + 1, self.steps + 1)[:, None]).max(axis=0)
            np.maximum(self.complete, last_cut, out=self.complete)
        np.maximum(self.oldest, self.steps - self.live, out=self.oldest)
        if self._may_lack_frames:
            self._drop_without_frames()

    def _reserve(self, steps: int) -> None:
        """Allocate disk space for what the next steps push. Raises LabrlError if the disk is full."""
        if self._folder is None:
            return
        frames = int(self._ring.head.max()) + steps * self._ring.max_step_frames
        for name, needed, length in (
            ("frames", frames, self._ring.length), ("transitions", self.steps + steps, self.slots)
        ):  # fmt: skip
            if min(needed, length) > self._reserved[name]:
                self._reserved[name] = self._workspace.reserve(name, needed, self._config.capacity)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and, unless it is in files, the content, but not the generator. Flushes files.

        The content consists of views of the filled parts of the arrays, so that writing a checkpoint needs no
        memory for a second buffer. The views change with the next transition.
        """
        self._write()
        content = None
        if self._folder is None:
            # Use bytes, because copies of rows would omit the padding between their fields.
            used = self.steps * self.rows.itemsize
            heads = zip(self._ring.frames, self._ring.head.tolist(), strict=True)
            content = {
                "frames": [frames[:head] for frames, head in heads],
                "rows": [rows[:used] for rows in self.rows.view(np.uint8)],
            }
        self.close()
        counters = {
            "extent": self._lengths(),
            "kind": repr(self.rows.dtype.descr),
            "steps": self.steps,
            "head": self._ring.head.copy(),
            "oldest": self.oldest.copy(),
            "complete": self.complete.copy(),
        }
        return {"transitions": {**counters, "content": content}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.

        Raises InputError if the state is of a buffer of a different size, and DamagedFileError if files are
        missing or no longer contain the transitions of the state.
        """
        if not self._acting_only:
            self._restore(state)

    def close(self) -> None:
        """Flush the buffer's files."""
        self._write()
        for array in self._arrays.values():
            if isinstance(array.base, np.memmap):
                array.base.flush()

    def _more_layouts(self, live: int, spare: int, state_size: int) -> dict[str, Layout]:
        """Return layouts of further arrays of a derived buffer. live, spare: steps per environment."""
        return {}

    def _check_observation(self, observation: NDArray) -> None:
        """Push the first observation; compare later ones with the next observation of the last step."""
        ring = self._ring
        self._reserve(1)
        if not np.can_cast(observation.dtype, ring.dtype, "same_kind"):
            raise InputError.unsupported(
                "transforms",
                f"observations have become {observation.dtype}, but agent.memory stores {ring.dtype}, the "
                "type of the environment",
                "Remove the transform, or make it keep the type",
            )
        if self.steps == 0:
            self._written[:] = 0
            ring.begin(observation)
            return
        current = ring.observations(self._envs, ring.head - 1)
        if current.tobytes() != observation.astype(ring.dtype, copy=False).tobytes():
            raise ValueError("the added observation must be the one that the last step led to")

    def _break_off(self, first: NDArray) -> None:
        """End all episodes at the last stored step.

        first: first observations of the next episodes, [num_envs, *obs].
        """
        self._reserve(1)
        if self.steps:
            self._columns["cut"][:, (self.steps - 1) % self.slots] = True
        self._ring.begin(first)
        self._current = first
        self.complete[:] = self.steps
        self._may_lack_frames = True
        self._drop_without_frames()

    def _drop_without_frames(self) -> None:
        """Drop the oldest transitions early if short episodes have used up the frames."""
        while True:
            gone = self._oldest_frames() < self._ring.head - self._ring.live
            if not gone.any():
                return
            self.oldest[gone] += 1
            if not self._warned:
                self._warned = True
                _log.warning(
                    "agent.memory holds fewer transitions than its capacity, because episodes are very short "
                    "or observations are not stacks of the latest frames."
                )

    def _oldest_frames(self) -> NDArray[np.int64]:
        """Return the index of the first frame of the oldest transition of each environment. [num_envs]"""
        return self._columns["frame"][self._envs, self.oldest % self.slots] - self._ring.stack + 1

    def _lengths(self) -> list[int]:
        return [self.num_envs, self.slots, self._ring.length]

    def _restore(self, state: Mapping[str, Any]) -> None:
        saved, ring = state["transitions"], self._ring
        content = saved["content"]
        if (content is None) != (self._folder is not None):
            storage = "mmap" if content is None else "ram"
            raise InputError.about(
                "agent.memory.storage",
                f"it was {storage} when the checkpoint was written",
                f"agent.memory.storage={storage}",
                code="changed-past",
            )
        if list(saved["extent"]) != self._lengths():
            raise InputError(
                "agent.memory.capacity: the replay buffer of the checkpoint has {} environments with {} "
                "transitions and {} frames each, but this one has {}, {} and {} (set agent.memory.capacity, "
                "env.num_envs and agent.n_step to their earlier values).".format(
                    *saved["extent"], *self._lengths()
                ),
                code="changed-past",
                key="agent.memory.capacity",
            )
        self.steps = int(saved["steps"])
        self.oldest[:] = saved["oldest"]
        self.complete[:] = saved["complete"]
        ring.head[:] = saved["head"]
        self._current = None
        self._waiting.clear()
        self._may_lack_frames = True
        if content is None:
            self._check_files()
            return
        for place, (rows, frames) in enumerate(zip(content["rows"], content["frames"], strict=True)):
            self.rows.view(np.uint8)[place, : len(rows)] = rows
            ring.frames[place, : len(frames)] = frames
        ring.written[:] = ring.head

    def _check_files(self) -> None:
        """Raise DamagedFileError unless the files still contain what the restored counters require."""
        if self.steps == 0:
            return
        problem, frames, steps = None, self._written[:-1], int(self._written[-1])
        if (frames < self._ring.head).any() or steps < self.steps:
            problem = (
                "contain less than the checkpoint needs, because they are new or belong to another run. "
                "Restore the original files, or start a new run."
            )
        elif steps > int(self.oldest.min()) + self.slots:
            problem = f"no longer contain the transitions of this checkpoint. {_WAY_OUT}"
        elif (frames > self._oldest_frames() + self._ring.length).any():
            problem = f"no longer contain the frames of this checkpoint. {_WAY_OUT}"
        if problem is not None:
            raise DamagedFileError.about(str(self._folder), f"the files of agent.memory {problem}")


def row_dtype(action_space: gym.Space[Any], num_masked: int) -> np.dtype:
    """Return the dtype of a stored transition. num_masked: number of flags in an action mask."""
    assert action_space.shape is not None, "spaces with several parts are rejected earlier"
    action = np.float32 if action_space.dtype == np.float64 else action_space.dtype
    fields: list[Any] = [
        ("frame", np.int64),  # newest frame of the observation
        ("next_frame", np.int64),  # newest frame of the next observation
        ("action", action, action_space.shape),
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("cut", np.bool_),  # the next row does not follow this row, at least not for the learner
    ]
    if num_masked:
        fields += [("mask", np.bool_, (num_masked,)), ("next_mask", np.bool_, (num_masked,))]
    return np.dtype(fields, align=True)
