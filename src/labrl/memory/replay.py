"""Replay buffer of the latest transitions (Lin, 1992, "Self-improving reactive agents"; Mnih et al., 2015).

`Replay` stores rows of transitions and samples them uniformly, `FrameRing` stores each frame of their
observations once, `Workspace` provides the arrays of both, in memory or in files, and `Transitions` are a
minibatch. Prioritized replay, hindsight and replay of sequences derive from `Replay`.

Rows and frames are in rings, one for each environment, which three nouns describe:

- The *head* is the number of rows or frames ever stored; number i is at place i modulo the ring's length.
- The latest ones, up to a fixed number, are *live*: minibatches are drawn from them.
- The other places are *spare*. They keep rows and frames that were live at the last checkpoint until the next
  one, so that a checkpoint of a ring in files needs no copy. Rings in memory have none.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import DamagedFileError, InputError
from labrl.memory import Columns
from labrl.memory.workspace import Layout, Workspace
from labrl.spaces import Goals, array_dtype
from labrl.step import Masks, States, Step
from labrl.types import PositiveInt, Probability

_log = logging.getLogger(__name__)
MAX_BLOCK = 32
"""Largest number of vector steps that are written together."""

_OUTCOME = operator.attrgetter(
    "reward", "terminated", "episode_over", "next_observation", "observation", "next_mask"
)
"""Returns the fields of a `Step` that are stored."""

_WAY_OUT = "Resume from a newer checkpoint, or start a new run."


@dataclass(kw_only=True)
class StorageConfig:
    """Options of the storage of transitions."""

    capacity: PositiveInt
    """Number of latest transitions to keep, divided equally among the environments; >= env.num_envs *
    (agent.n_step + 1). Buffers of images keep a sixteenth more frames than this: with episodes of only a few
    dozen steps, the oldest transitions are dropped early."""
    storage: Literal["ram", "mmap"]
    """Storage of the transitions: ram (in memory; each checkpoint writes all of them) or mmap (in files of
    the run folder; a checkpoint writes only new ones)."""

    def steps_kept(self, n_step: int) -> int:
        """Return the number of steps of an environment to keep, so that one can always be sampled."""
        return n_step + 1

    def reasons(self, num_envs: int, n_step: int) -> str:
        """Return the options that determine the number of steps to keep, for messages."""
        return f"env.num_envs={num_envs}, agent.n_step={n_step}"

    def frames_for(self, batch_size: int, num_envs: int, n_step: int) -> int:
        """Return the number of frames after which a minibatch can be drawn."""
        return batch_size + n_step * num_envs

    def check_capacity(self, num_envs: int, n_step: int) -> None:
        """Raise InputError if the buffer cannot keep enough steps of every environment."""
        steps = self.steps_kept(n_step)
        if self.capacity < num_envs * steps:
            raise InputError.value(
                "agent.memory.capacity",
                self.capacity,
                f"be at least {num_envs * steps}",
                why=f"{steps} steps of each environment are kept ({self.reasons(num_envs, n_step)})",
                fix=f"agent.memory.capacity={num_envs * steps} or more",
                code="contradiction",
            )


@dataclass(kw_only=True)
class ReplayConfig(StorageConfig):
    """Options of replay buffers of single transitions."""

    newest_share: Probability
    """Share of each minibatch, rounded up, that consists of the newest transitions, in [0, 1]; 1 /
    batch_size: combined experience replay (Zhang & Sutton, 2017, arXiv:1712.01275)."""


@dataclass(frozen=True)
class ReplayTraits:
    """Requirements of a class of replay buffers."""

    sequences: bool = False
    """Whether it samples sequences with recurrent states instead of single transitions."""
    goals: bool = False
    """Whether it computes rewards for other goals, so that the environment must have goals."""


@dataclass(frozen=True)
class Transitions(Columns):
    """A minibatch of transitions, each n steps long, or shorter if an episode or a life ended earlier.

    A replay buffer samples arrays, and `as_tensors` converts them for a loss. Read only: `observation` and
    `next_observation` may share the frames that both contain.
    """

    observation: Any
    """[batch, *obs]"""
    action: Any
    """[batch, *action]"""
    reward: Any
    """Discounted sum of the rewards over the window. [batch]"""
    next_observation: Any
    """State at the end of the window: the true final one if an episode was truncated there. [batch, *obs]"""
    discount: Any
    """Factor of the value of `next_observation`: gamma^k after k steps, 0 after a termination. [batch]"""
    weight: Any
    """Importance weights, at most 1; all 1 if sampling is uniform. [batch]"""
    index: NDArray[np.int64]
    """Identifies the transitions for `update_priorities`. [batch]"""
    mask: Any = None
    """Valid actions; None if all are always valid. [batch, actions]"""
    next_mask: Any = None
    """Valid actions in `next_observation`; meaningless where `discount` is 0. [batch, actions]"""
    noise: Any = None
    """Random numbers from which a loss draws actions, [batch, ...]; None if it draws none."""

    def as_tensors(self, learner: Any, layout: Callable[[Any], Any] | None = None) -> Transitions:
        """Return the transitions as tensors on the device of a `Learner`, except `index`.

        layout: converts observations to the layout of the learner's network, None for `learner.layout`.
        Transitions that are tensors already stay as they are.
        """
        if not isinstance(self.reward, np.ndarray):
            return self
        columns, frames = dict(vars(self)), self.observation.base
        if not learner.waits and frames is not None and frames is self.next_observation.base:
            # Move frames that both observations share to the GPU only once.
            moved, stack = learner.tensor(frames), self.observation.shape[1]
            columns["observation"] = moved[:, :stack]
            columns["next_observation"] = moved[:, -stack:]
        for name in ("observation", "next_observation"):
            columns[name] = (layout or learner.layout)(columns[name])
        arrays = {n: each for n, each in columns.items() if n != "index" and isinstance(each, np.ndarray)}
        return Transitions(**{**columns, **learner.tensors(arrays)})


class FrameRing:
    """The latest frames of every environment, each stored once even if several stacks contain it.

    A frame is identified by its number, the head of its environment before it was pushed. The frames of an
    observation are consecutive, so an observation is identified by its newest frame.

    Byte arrays with three or more axes, the first shorter than the next two, are stacks of frames with the
    newest last, as in the ALE ([stack, height, width]). All other observations are a single frame, as are
    observations with several inputs, even if these contain stacks, and arrays whose first axis is a multiple
    of three, which may be colors: their frames do not shift by one in each step.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.shape: tuple[int, ...] = space.shape or ()
        is_image = len(self.shape) >= 3 and space.dtype == np.uint8
        is_stack = is_image and self.shape[0] < min(self.shape[1:3]) and self.shape[0] % 3 > 0
        self.stack: int = self.shape[0] if is_stack else 1
        """Number of frames in an observation, >= 1."""
        self.frame: tuple[int, ...] = self.shape[1:] if is_stack else self.shape
        """Shape of a frame."""
        dtype = array_dtype(space)
        self.dtype = np.dtype(np.float32) if dtype == np.float64 else dtype
        self.is_image = _has_image(space)

    def length_for(self, transitions: int, n_step: int, together: int = 0) -> int:
        """Return the number of frames to keep for the latest `transitions` of one environment.

        For small observations, this is enough for episodes of one step. For images, it is one frame for each
        transition and a sixteenth more for the starts of episodes, at least enough for the last n_step + 1
        transitions and the last `together`, which are useful only as a whole.
        """
        if not self.is_image:
            return 2 * transitions + 1
        usual = transitions + -(-transitions // 16) + (2 * n_step + 3) * self.stack
        return max(usual, (2 * together + 1) * self.stack)

    @property
    def max_step_frames(self) -> int:
        """Largest number of frames that one step pushes: a whole next observation and a whole first one."""
        return 2 * self.stack

    def open(self, frames: NDArray, written: NDArray[np.int64], live: int) -> None:
        """Use an array for the frames from now on.

        frames: zeros, or the content of an earlier process, [num_envs, length, *frame]; written: largest
        head of each environment so far, earlier processes included, [num_envs]; live: number of live frames.
        """
        self.num_envs, self.length = frames.shape[:2]
        self.frames, self.written, self.live = frames, written, live
        self.head = np.zeros(self.num_envs, np.int64)
        """Number of frames pushed so far. [num_envs]"""
        self._flat = frames.reshape(-1, *self.frame)
        self._envs = np.arange(self.num_envs)
        self._start = self._envs * self.length  # first row of each environment's ring in `_flat`
        self._same = np.empty((self.num_envs, self.stack - 1, *self.frame), np.bool_)

    def begin(self, observation: NDArray, envs: NDArray[np.int64] | None = None) -> None:
        """Push the first observations of episodes. [num_envs, *obs], or those of `envs`."""
        self._push(self._envs if envs is None else envs, self.stacks_of(observation))

    def push(
        self,
        before: Sequence[NDArray],
        after: Sequence[NDArray],
        first: Sequence[NDArray],
        over: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Push the new frames of several steps, and the first observations of new episodes.

        before, after, first: observation, next observation and observation to act on next of each step,
        [num_envs, *obs] each; over: whether an episode ended, [steps, num_envs]. Returns the newest frame of
        each observation and of each next observation, [steps, num_envs] each.
        """
        if self.stack > 1:
            newest, following = np.empty((2, *over.shape), np.int64)
            for number, ended in enumerate(over):
                newest[number] = self.head - 1
                self._follow(before[number], after[number])
                following[number] = self.head - 1
                if ended.any():
                    self.begin(first[number][ended], np.flatnonzero(ended))
            return newest, following
        following = self.head + np.arange(len(over))[:, None]
        self.head += len(over)
        some_ended = np.count_nonzero(over) > 0
        if some_ended:  # the first observation of the next episode comes in between
            ended = over.cumsum(axis=0)
            self.head += ended[-1]
            following += ended
            following -= over
        # Update `written` before the frames, so that it is not too small if the process dies in between.
        np.maximum(self.written, self.head, out=self.written)
        new = np.array(after).reshape(*over.shape, *self.frame)
        self._flat[following % self.length + self._start] = new
        if some_ended:
            for number, env in np.argwhere(over).tolist():
                place = (following[number, env] + 1) % self.length
                self.frames[env, place] = first[number][env]
        return following - 1, following

    def _follow(self, before: NDArray, after: NDArray) -> None:
        """Push the new frames of `after`, the stacks that followed `before`. [num_envs, *obs] each

        A stack is pushed whole unless it is the previous one shifted by one frame.
        """
        new = self.stacks_of(after)
        shifted = np.equal(new[:, :-1], self.stacks_of(before)[:, 1:], out=self._same)
        if shifted.all():
            self._push(self._envs, new[:, -1:])
            return
        same = shifted.reshape(self.num_envs, -1).all(axis=1)
        self._push(self._envs[~same], new[~same])
        self._push(self._envs[same], new[same, -1:])

    def observations(self, env: NDArray[np.int64], newest: NDArray[np.int64]) -> NDArray:
        """Return observations of `env` that end with the frames `newest`. [batch] each -> [batch, *obs]"""
        return self._gather(env, newest, self.stack).reshape(-1, *self.shape)

    def pairs(
        self, env: NDArray[np.int64], newest: NDArray[np.int64], following: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray]:
        """Return observations of `env` that end with the frames `newest`, and that end with `following`.

        [batch] each -> [batch, *obs] each. Stacks that share frames are parts of one array, into which each
        frame is copied once.
        """
        if self.stack == 1:
            start = self._start[env]
            here = self._flat.take(newest % self.length + start, axis=0)
            there = self._flat.take(following % self.length + start, axis=0)
            return here.reshape(-1, *self.shape), there.reshape(-1, *self.shape)
        gap = int(following[0] - newest[0])
        if gap < self.stack and (following - newest == gap).all():
            frames = self._gather(env, following, self.stack + gap)
            return frames[:, : self.stack], frames[:, gap:]
        both = self.observations(np.concatenate([env, env]), np.concatenate([newest, following]))
        return both[: len(env)], both[len(env) :]

    def input_of(self, env: NDArray[np.int64], newest: NDArray[np.int64], name: str) -> NDArray:
        """Return one input of the frames `newest` of `env`. [batch] each -> [batch, *input]"""
        return self._flat[name][newest % self.length + self._start[env]]

    def stacks_of(self, observation: NDArray) -> NDArray:
        """Return observations as stacks of frames. [n, *obs] -> [n, stack, *frame]"""
        return observation.reshape(len(observation), self.stack, *self.frame)

    def _gather(self, env: NDArray[np.int64], newest: NDArray[np.int64], count: int) -> NDArray:
        """Return the `count` frames of each `env` that end with `newest`. -> [batch, count, *frame]"""
        places = (newest[:, None] + np.arange(1 - count, 1)) % self.length
        return self._flat.take(places + self._start[env][:, None], axis=0)

    def _push(self, envs: NDArray[np.int64], frames: NDArray) -> None:
        """Push the same number of frames for each of `envs`. frames: [len(envs), number, *frame]"""
        head = self.head[envs]
        after = head + frames.shape[1]
        # Update `written` before the frames, as in `push`.
        self.written[envs] = np.maximum(self.written[envs], after)
        places = (head[:, None] + np.arange(frames.shape[1])) % self.length
        self.frames[envs[:, None], places] = frames
        self.head[envs] = after


class Replay:
    """Replay buffer that samples transitions uniformly.

    The steps of each environment are in a ring of rows of the same length; windows of n steps are assembled
    when sampled. A transition is identified by the number of its vector step and its environment. The steps
    of an environment from `oldest` to before `complete` can be sampled. Written rows never change, except
    that a resume may set `cut` in the last one to break off its episode, which every resume from there does.
    Checkpoints therefore need no copy of rings in files.

    To sample differently, derive a class and override `draw` and `weights`.
    """

    Config: ClassVar[Any] = ReplayConfig
    TRAITS: ClassVar[ReplayTraits] = ReplayTraits()

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
        """Allocate the buffer. Raises InputError for a capacity that is too small or exceeds the room.

        observation_space, action_space: spaces of one environment; generator: one of the session's streams,
        which save it; num_masked: number of flags in an action mask, 0 without masks; state_size, goals:
        needed by buffers whose traits say so.
        """
        self._acting_only = workspace.acting_only
        if self._acting_only:
            least = num_envs * config.steps_kept(n_step)
            config = dataclasses.replace(config, capacity=least, storage="ram")
        config.check_capacity(num_envs, n_step)
        self._config: Any = config
        self.generator, self.num_envs, self.steps = generator, num_envs, 0
        self.live = config.capacity // num_envs
        """Number of transitions of each environment that can be sampled if the buffer is full."""
        self._folder = workspace.folder if config.storage == "mmap" else None
        # Only files are written to while a checkpoint needs their content.
        spare = 0 if self._folder is None else -(-workspace.frames_kept // num_envs)
        ring = self._ring = FrameRing(observation_space)
        live_frames = ring.length_for(self.live, n_step, config.steps_kept(n_step))
        frames = live_frames + (ring.length_for(spare, n_step) if spare else 0)
        dtype = row_dtype(action_space, num_masked)
        layouts = {
            **self._more_layouts(self.live, spare, state_size),
            "frames": Layout((num_envs, frames, *ring.frame), ring.dtype, live_frames, grows=True),
            "transitions": Layout((num_envs, self.live + spare), dtype, self.live, grows=True),
            # Largest heads ever: of the frames of each environment, and of the steps. This file is made last.
            "written": Layout((num_envs + 1,), np.dtype(np.int64)),
        }
        arrays = self._arrays = workspace.arrays(layouts, config.capacity, self._folder is not None)
        self.rows, self._written = arrays["transitions"], arrays["written"]
        """The stored transitions, of `row_dtype`. [num_envs, slots]"""
        ring.open(arrays["frames"], self._written[:num_envs], live_frames)
        self._columns = {name: self.rows[name] for name in self.rows.dtype.names or ()}
        self._by_slot = {name: column.swapaxes(0, 1) for name, column in self._columns.items()}
        self.slots = self.rows.shape[1]
        """Places for transitions of each environment, live and spare ones."""
        self.oldest = np.zeros(num_envs, np.int64)
        """First step of each environment that can be sampled. [num_envs]"""
        self.complete = np.zeros(num_envs, np.int64)
        """First step of each environment whose window is not complete yet. [num_envs]"""
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
        self._reserved = {"frames": 0, "transitions": 0}  # rows for which there is disk
        if self._folder is not None:
            workspace.rooms.append(self)

    @classmethod
    def check(cls, config: StorageConfig, *, batch_size: int, num_envs: int, n_step: int) -> None:
        """Raise InputError if options contradict each other."""
        config.check_capacity(num_envs, n_step)

    @classmethod
    def check_goals(cls, goals: Goals | None, n_step: int) -> None:
        """Raise InputError if the buffer needs goals and the environment has none."""

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled now: those whose window is complete."""
        self._write()
        return int((self.complete - self.oldest).sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of memory or disk that the full buffer takes."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def frames_safe(self) -> int:
        """Number of frames that may follow a checkpoint before its transitions are overwritten."""
        return self.num_envs * (self.slots - self.live)

    def mark(self) -> None:
        """Record that a checkpoint needs the current content."""
        self._write()
        self._marked[:] = self._ring.head

    def spent(self) -> float:
        """Return the fraction of the spare places filled since the last mark, counting the next step."""
        self._write()
        filled = int((self._ring.head - self._marked).max()) + self._ring.max_step_frames
        return filled / max(self._ring.length - self._ring.live, 1)

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: Masks = None, state: States = None
    ) -> None:
        """Store one vector step, unless it is void.

        observation: observation that was acted on, which is `step.observation` of the previous call,
        [num_envs, *obs]; action: action to store, [num_envs, *action]; step: outcome as the learner sees it;
        mask: valid actions, if there are masks, [num_envs, actions]; state: recurrent state before
        `observation`, for sequences. Raises ValueError for another observation.
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
        """Write the waiting steps to the rings: several together take hardly longer than one."""
        if not self._waiting:
            return
        observations, actions, steps, masks = zip(*self._waiting, strict=True)
        rewards, terminations, overs, nexts, firsts, next_masks = zip(*map(_OUTCOME, steps), strict=True)
        self._waiting.clear()
        self._reserve(len(steps))
        first = self.steps - len(steps)
        place = first % self.slots
        slots: Any = slice(place, place + len(steps))  # faster than an array of places
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
        if np.count_nonzero(cut):
            last_cut = (cut * np.arange(first + 1, self.steps + 1)[:, None]).max(axis=0)
            np.maximum(self.complete, last_cut, out=self.complete)
        np.maximum(self.oldest, self.steps - self.live, out=self.oldest)
        if self._may_lack_frames:
            self._drop_without_frames()

    def _reserve(self, steps: int) -> None:
        """Allocate the disk for what the next steps push. Raises LabrlError if the disk is full."""
        if self._folder is None:
            return
        frames = int(self._ring.head.max()) + steps * self._ring.max_step_frames
        for name, needed, length in (
            ("frames", frames, self._ring.length), ("transitions", self.steps + steps, self.slots)
        ):  # fmt: skip
            if min(needed, length) > self._reserved[name]:
                self._reserved[name] = self._workspace.reserve(name, needed, self._config.capacity)

    def sample(self, batch_size: int, frame: int) -> Transitions:
        """Draw a minibatch with replacement at `frame` of the run. Later steps do not change it.

        Raises ValueError if there is nothing to sample.
        """
        self._write()
        if not np.count_nonzero(self.complete > self.oldest):
            raise ValueError("the replay buffer holds no transition that can be sampled yet")
        # Round first, because 0.1 * 30 is slightly more than 3.
        wanted = math.ceil(round(self._config.newest_share * batch_size, 6))
        if wanted:
            newest_env, newest_step = self._newest(wanted)
            env, step = self.draw(batch_size - len(newest_env))
            env, step = np.concatenate([newest_env, env]), np.concatenate([newest_step, step])
        else:
            env, step = self.draw(batch_size)
        return self._gather(env, step, self.weights(env, step, frame))

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Receive the errors of sampled transitions, [batch] each, if a derived class defines this method."""

    def state_dict(self) -> dict[str, Any]:
        """Return counters, and the content unless it is in files, which are flushed; without the generator.

        The content consists of views of the filled parts of the arrays, which change with the next
        transition: writing a checkpoint needs no memory for a second buffer.
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

        Raises InputError for the state of a buffer of another size, and DamagedFileError if files are missing
        or no longer contain the transitions of the state.
        """
        if not self._acting_only:
            self._restore(state)

    def close(self) -> None:
        """Flush the content in files."""
        self._write()
        for array in self._arrays.values():
            if isinstance(array.base, np.memmap):
                array.base.flush()

    def _more_layouts(self, live: int, spare: int, state_size: int) -> dict[str, Layout]:
        """Return layouts of further arrays of a derived buffer. live, spare: steps of each environment."""
        return {}

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw environment and step of `count` transitions. [count] each"""
        counts = self.complete - self.oldest
        if self.num_envs == 1:
            return np.zeros(count, np.int64), self.generator.integers(0, int(counts[0]), count) + self.oldest
        ends = counts.cumsum()
        place = self.generator.integers(0, int(ends[-1]), count)
        env = ends.searchsorted(place, side="right")
        return env, place + (self.oldest + counts - ends)[env]

    def weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        """Return importance weights. [batch]"""
        return np.ones(len(env), np.float32)

    def _newest(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return environment and step of the `count` newest transitions that can be sampled, or of all."""
        # The count newest transitions are among the count newest ones of their environments.
        steps = self.steps - 1 - np.arange(min(count + self._n_step - 1, self.slots))
        there = (steps[:, None] >= self.oldest) & (steps[:, None] < self.complete)
        row, env = np.nonzero(there)
        return env[:count], steps[row[:count]]

    def _windows(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> tuple[NDArray, ...]:
        """Return the windows of `env` that begin at `step`, each of at most n steps. [batch] each

        Returns the rows of the first and the last step, the number of steps between them, and the discounted
        reward and the discount as in `Transitions`.
        """
        if self._n_step == 1:
            row = self.rows.reshape(-1).take(step % self.slots + env * self.slots)
            discount = self._powers[1] * ~row["terminated"]
            return row, row, np.zeros_like(step), row["reward"], discount.astype(np.float32)
        slots = (step[:, None] + self._ahead) % self.slots
        window = self.rows.reshape(-1).take(slots + (env * self.slots)[:, None])  # [batch, n_step]
        # The window ends at the first cut, or with the last row.
        window["cut"][:, -1] = True
        length = window["cut"].argmax(axis=1)
        last = window.reshape(-1).take(length + np.arange(0, window.size, self._n_step))
        counted = self._ahead <= length[:, None]
        reward = (window["reward"] * counted) @ self._powers[:-1]
        discount = self._powers[length + 1] * ~last["terminated"]
        return window[:, 0], last, length, reward.astype(np.float32), discount.astype(np.float32)

    def _gather(
        self, env: NDArray[np.int64], step: NDArray[np.int64], weight: NDArray[np.float32]
    ) -> Transitions:
        """Return the transitions of `env` that begin at `step`. [batch] each"""
        first, last, _, reward, discount = self._windows(env, step)
        observation, next_observation = self._ring.pairs(env, first["frame"], last["next_frame"])
        return Transitions(
            observation,
            first["action"],
            reward,
            next_observation,
            discount,
            weight,
            step * self.num_envs + env,
            first["mask"] if self._masked else None,
            last["next_mask"] if self._masked else None,
        )

    def _check_observation(self, observation: NDArray) -> None:
        """Push the first observation; compare later ones with the next observation of the last step."""
        ring = self._ring
        self._reserve(1)
        if not np.can_cast(observation.dtype, ring.dtype, "same_kind"):
            raise InputError.unsupported(
                "transforms",
                f"observations have become {observation.dtype}, but agent.memory stores {ring.dtype}, the "
                "type of the environment",
                "Remove the transform, or let it keep the type",
            )
        if self.steps == 0:
            self._written[:] = 0
            ring.begin(observation)
            return
        current = ring.observations(self._envs, ring.head - 1)
        if current.tobytes() != observation.astype(ring.dtype, copy=False).tobytes():
            raise ValueError("the observation added must be the one that the last step led to")

    def _break_off(self, first: NDArray) -> None:
        """End all episodes at the last stored step. first: next first observations, [num_envs, *obs]."""
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
                    "agent.memory holds fewer transitions than its capacity: episodes are very short, or "
                    "observations are not stacks of the latest frames."
                )

    def _oldest_frames(self) -> NDArray[np.int64]:
        """Return the first frame of the oldest transition of each environment. [num_envs]"""
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
        """Raise DamagedFileError unless the files still contain everything that the counters require."""
        if self.steps == 0:
            return
        problem, frames, steps = None, self._written[:-1], int(self._written[-1])
        if (frames < self._ring.head).any() or steps < self.steps:
            problem = (
                "contain less than the checkpoint needs: they are new, or belong to another run. Restore the "
                "original files, or start a new run."
            )
        elif steps > int(self.oldest.min()) + self.slots:
            problem = f"no longer contain the transitions of this checkpoint. {_WAY_OUT}"
        elif (frames > self._oldest_frames() + self._ring.length).any():
            problem = f"no longer contain the frames of this checkpoint. {_WAY_OUT}"
        if problem is not None:
            raise DamagedFileError.about(str(self._folder), f"the files of agent.memory {problem}")


def replay_class(memory: Component) -> type[Replay]:
    """Load the class that `memory` names. Raises InputError unless it derives from `Replay`."""
    found = memory.load()
    if isinstance(found, type) and issubclass(found, Replay) and isinstance(memory.config, StorageConfig):
        return found
    raise InputError.value(
        memory.key or "agent.memory",
        memory.target,
        "be a class that derives from labrl.memory.replay.Replay, with a Config that derives from that of "
        "the class it extends",
        fix="Set agent/memory=uniform, or change the class",
        code="target",
    )


def _has_image(space: gym.Space[Any]) -> bool:
    """Return whether an input has three or more axes, so that a frame is large."""
    if isinstance(space, gym.spaces.Dict):
        return any(map(_has_image, space.spaces.values()))
    return len(space.shape or ()) >= 3


def row_dtype(action_space: gym.Space[Any], num_masked: int) -> np.dtype:
    """Return the type of a stored transition. num_masked: number of flags in an action mask."""
    assert action_space.shape is not None, "spaces with several parts are refused earlier"
    action = np.float32 if action_space.dtype == np.float64 else action_space.dtype
    fields: list[Any] = [
        ("frame", np.int64),  # newest frame of the observation
        ("next_frame", np.int64),  # newest frame of the next observation
        ("action", action, action_space.shape),
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("cut", np.bool_),  # the next row does not follow this one, at least not for the learner
    ]
    if num_masked:
        fields += [("mask", np.bool_, (num_masked,)), ("next_mask", np.bool_, (num_masked,))]
    return np.dtype(fields, align=True)
