"""The transitions of a replay memory: what is stored of each, and which may be sampled."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labrl.errors import DamagedFileError, InputError
from labrl.memory.extent import Extent
from labrl.memory.frames import FrameRing
from labrl.memory.piece import Piece
from labrl.step import Step
from labrl.workspace import Arrays

_log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """A batch of transitions, n steps long or shorter where an episode or a life ended.

    To be read only: `observation` and `next_observation` may share the frames that both have.
    """

    observation: NDArray
    """[batch, *obs]"""
    action: NDArray
    """[batch, *action]"""
    reward: NDArray[np.float32]
    """Discounted sum of the rewards over the window. [batch]"""
    next_observation: NDArray
    """The state at the end of the window: the true final one where an episode was cut. [batch, *obs]"""
    discount: NDArray[np.float32]
    """What the value of `next_observation` counts: gamma^k after k steps, 0 after a termination. [batch]"""
    weight: NDArray[np.float32]
    """Importance weights, the largest is 1; all 1 where sampling is uniform. [batch]"""
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a batch
    """Names the transitions to `update_priorities`. [batch]"""
    mask: NDArray[np.bool_] | None = None
    """Which actions were valid, None where all always are. [batch, actions]"""
    next_mask: NDArray[np.bool_] | None = None
    """Which are valid in `next_observation`; they mean nothing where `discount` is 0. [batch, actions]"""


class Windows(NamedTuple):
    """Steps that each make a transition, at most n long."""

    first: NDArray[np.void]
    """The row of the first step. [batch]"""
    end: NDArray[np.void]
    """The row of the last step. [batch]"""
    length: NDArray[np.int64]
    """Steps from the first to the last, 0 where they are one. [batch]"""
    reward: NDArray[np.float32]
    """As in a Sample. [batch]"""
    discount: NDArray[np.float32]
    """As in a Sample. [batch]"""


class Transitions:
    """Steps of all environments in rings that are as long for each, and windows of n of them on sampling.

    A transition is named by the number of its vector step and its environment. What may be sampled of an
    environment is a range of steps: from `oldest` to before `complete`. Rows never change once written,
    but for the `cut` of the last one where a resume breaks off its episode, as each resume from there does:
    so a checkpoint of rings in files needs no copy of them.
    """

    def __init__(self, arrays: Arrays, extent: Extent, n_step: int, gamma: float) -> None:
        self.num_envs, self.slots = arrays["transitions"].shape
        self.live = extent.live
        """Transitions of each environment that may be sampled, when full."""
        self.steps = 0
        """Vector steps added so far."""
        self.oldest = np.zeros(self.num_envs, np.int64)
        """The first step of each environment that may be sampled. [num_envs]"""
        self.complete = np.zeros(self.num_envs, np.int64)
        """The first step of each environment whose window is not whole yet. [num_envs]"""
        self._arrays, self._extent, self._n_step = arrays, extent, n_step
        self._rows = arrays["transitions"]
        self._columns = {name: self._rows[name] for name in self._rows.dtype.names or ()}
        self.masked = "mask" in self._columns
        """Whether each has a mask of valid actions."""
        self._written = arrays["written"]
        self._ring = FrameRing(
            arrays["frames"], self._written[: self.num_envs], extent.shape, extent.live_frames
        )
        self._marked = np.zeros(self.num_envs, np.int64)  # frames pushed when `mark` was called last
        self._envs = np.arange(self.num_envs)
        self._ahead = np.arange(n_step)
        self._powers = gamma ** np.arange(n_step + 1)  # float64 [n_step + 1]
        self._current: NDArray | None = None  # the observation that is to be acted on
        self._told = False
        # Vectors have frames for episodes of one step, but not for what was broken off besides.
        self._may_lack_frames = extent.shape.is_image

    def __len__(self) -> int:
        return int((self.complete - self.oldest).sum())

    @property
    def frames_safe(self) -> int:
        """Transitions of all environments that may follow a checkpoint, as far as their frames have room."""
        return self.num_envs * (self.slots - self.live)

    def mark(self) -> None:
        """A checkpoint counts on what is there now."""
        self._marked[:] = self._ring.head

    def spent(self) -> float:
        """Part of the room for frames that was filled since the last mark, or may be with the next step."""
        filled = int((self._ring.head - self._marked).max()) + self._extent.shape.most_frames
        return filled / max(self._ring.length - self._ring.live, 1)

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Store one vector step, unless nothing was played in it.

        Raises ValueError when `observation` is not what the last one led to.
        """
        self._check(observation)
        if step.void:
            self._break_off(step.observation)
            return
        ring, slot, over = self._ring, self.steps % self.slots, step.episode_over
        cut = step.terminated | over
        self._written[-1] = max(self._written[-1], self.steps + 1)
        columns = self._columns
        columns["frame"][:, slot] = ring.newest
        ring.follow(observation, step.next_observation)
        columns["next_frame"][:, slot] = ring.newest
        columns["action"][:, slot] = action
        columns["reward"][:, slot] = step.reward
        columns["terminated"][:, slot] = step.terminated
        columns["cut"][:, slot] = cut
        if self.masked:
            columns["mask"][:, slot] = mask
            columns["next_mask"][:, slot] = step.next_mask
        if over.any():
            envs = np.flatnonzero(over)
            ring.begin(step.observation[envs], envs)
        self._current = step.observation
        self.steps += 1
        np.maximum(self.complete, self.steps - self._n_step + 1, out=self.complete)
        self.complete[cut] = self.steps
        np.maximum(self.oldest, self.steps - self._extent.live, out=self.oldest)
        self._drop_without_frames()

    def _break_off(self, first: NDArray) -> None:
        """Let all episodes end with what was stored last. first: of the next ones, [num_envs, *obs]"""
        if self.steps:
            self._columns["cut"][:, (self.steps - 1) % self.slots] = True
        self._ring.begin(first)
        self._current = first
        self.complete[:] = self.steps
        self._may_lack_frames = True
        self._drop_without_frames()

    def extend(self, piece: Piece) -> None:
        """Store a piece at once; only for a single environment, and while there is room in the ring."""
        most = self._ring.most_at_once
        for begin in range(0, len(piece.reward), most):
            self._extend(piece.rows(slice(begin, begin + most)))

    def _extend(self, piece: Piece) -> None:
        columns, first, last = self._columns, self.steps, self.steps + len(piece.reward)
        rows = (0, slice(first, last))
        columns["frame"][rows], columns["next_frame"][rows] = self._ring.extend(
            piece.observation, piece.next_observation, piece.cut
        )
        for name in ("action", "reward", "terminated", "cut"):
            columns[name][rows] = getattr(piece, name)
        if self.masked:
            for name in ("mask", "next_mask"):
                flags = getattr(piece, name)
                columns[name][rows] = True if flags is None else flags
        self._written[-1] = self.steps = last
        ended = first + np.flatnonzero(piece.cut)
        self.complete[0] = max(self.complete[0], last - self._n_step + 1, *(ended[-1:] + 1))
        self._drop_without_frames()

    def windows(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> Windows:
        """The windows of `env` that begin at `step`. [batch] each"""
        slots = (step[:, None] + self._ahead) % self.slots
        window = self._rows.reshape(-1).take(slots + (env * self.slots)[:, None])  # [batch, n_step]
        # The window ends with the first row after which nothing follows, or with the last.
        window["cut"][:, -1] = True
        length = window["cut"].argmax(axis=1)
        end = window.reshape(-1).take(length + np.arange(0, window.size, self._n_step))
        counted = self._ahead <= length[:, None]
        reward = (window["reward"] * counted) @ self._powers[:-1]
        discount = self._powers[length + 1] * ~end["terminated"]
        return Windows(window[:, 0], end, length, reward.astype(np.float32), discount.astype(np.float32))

    def gather(self, env: NDArray[np.int64], step: NDArray[np.int64], weight: NDArray[np.float32]) -> Sample:
        """The transitions of `env` that begin at `step`. [batch] each"""
        first, end, _, reward, discount = self.windows(env, step)
        observation, next_observation = self._ring.pairs(env, first["frame"], end["next_frame"])
        return Sample(
            observation,
            first["action"],
            reward,
            next_observation,
            discount,
            weight,
            step * self.num_envs + env,
            first["mask"] if self.masked else None,
            end["next_mask"] if self.masked else None,
        )

    def frames(
        self, env: NDArray[np.int64], step: NDArray[np.int64], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Names of what was acted on in `count` steps of `env` from `step` on, and of what each led to.

        [batch] -> [batch, count] each; where an episode goes on, what is led to is what is acted on next.
        """
        slots = (step[:, None] + np.arange(count)) % self.slots
        rows = self._rows.reshape(-1).take(slots + (env * self.slots)[:, None])
        return rows["frame"], rows["next_frame"]

    def observations(self, env: NDArray[np.int64], frame: NDArray[np.int64]) -> NDArray:
        """Observations by their names. [batch] each -> [batch, *obs]"""
        return self._ring.observations(env, frame)

    def pairs(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Environment and step of a sample's `index`. [batch] each"""
        step, env = np.divmod(index, self.num_envs)
        return env, step

    def at(self, place: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Environment and step of the `place`-th of all that may be sampled, 0 <= place < len(self)."""
        counts = self.complete - self.oldest
        ends = counts.cumsum()
        env = ends.searchsorted(place, side="right")
        return env, place + (self.oldest + counts - ends)[env]

    def newest(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Environment and step of the `count` newest that may be sampled; of all, if they are fewer."""
        # The count-th newest of all is at most the count-th newest of its own environment.
        steps = self.steps - 1 - np.arange(min(count + self._n_step - 1, self.slots))
        there = (steps[:, None] >= self.oldest) & (steps[:, None] < self.complete)
        row, env = np.nonzero(there)
        return env[:count], steps[row[:count]]

    def reached(self, env: NDArray[np.int64], step: NDArray[np.int64], name: str) -> NDArray:
        """One input of the states that steps led to, the true final ones too. [batch] each -> [batch, *]"""
        return self._ring.newest_of(env, self._columns["next_frame"][env, step % self.slots], name)

    def cut(self, env: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the next step is not what follows, or not to the learner. [batch] each"""
        return self._columns["cut"][env, step % self.slots]

    def ends(self) -> Iterator[tuple[int, int]]:
        """Step and environment of what is kept after which an episode or a life had ended, in order."""
        steps = np.arange(int(self.oldest.min()), self.steps)
        cut = self._columns["cut"][:, steps % self.slots].T & (steps[:, None] >= self.oldest)
        for row, env in np.argwhere(cut).tolist():
            yield int(steps[row]), env

    @property
    def kind(self) -> str:
        """What is kept of a transition, in words that are equal where it is."""
        return repr(self._rows.dtype.descr)

    def state_dict(self) -> dict[str, Any]:
        """Counters, and the content unless it is in files, which are flushed."""
        content = None
        if self._arrays.folder is None:
            # Bytes before they are cut: a copy of rows leaves out what lies between their fields, and has
            # there whatever the process had in that place.
            rows = self._rows.view(np.uint8)[:, : self.steps * self._rows.itemsize]
            content = {"frames": self._ring.content(), "rows": rows.copy()}
        self._arrays.flush()
        return {
            "extent": self._lengths(),
            "kind": self.kind,
            "steps": self.steps,
            "head": self._ring.head.copy(),
            "oldest": self.oldest.copy(),
            "complete": self.complete.copy(),
            "content": content,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state.

        Raises InputError when it is of a memory of another size, DamagedFileError when it needs files that
        are not there or no longer hold what it needs.
        """
        self._check_size(state)
        content = state["content"]
        if content is not None:
            rows = np.ascontiguousarray(content["rows"]).view(self._rows.dtype)
            self._rows[:, : rows.shape[1]] = rows
        self.steps = int(state["steps"])
        self.oldest[:] = state["oldest"]
        self.complete[:] = state["complete"]
        self._ring.restore(state["head"], None if content is None else content["frames"])
        self._current = None
        self._may_lack_frames = True
        if content is None:
            self._check_files()

    def close(self) -> None:
        """Write out what is in files."""
        self._arrays.flush()

    def _check(self, observation: NDArray) -> None:
        """Push the first observation; compare a later one with what the last step led to."""
        if observation is self._current:
            return
        dtype = self._extent.shape.dtype
        if not np.can_cast(observation.dtype, dtype, "same_kind"):
            raise InputError(
                f"transforms: observations have become {observation.dtype}, agent.memory has reserved room "
                f"for {dtype}, which the environment gives. Leave the transform out or let it keep the type.",
                code="unsupported",
                key="transforms",
            )
        if self.steps == 0:
            self._written[:] = 0
            self._ring.begin(observation)
            return
        if self._ring.current().tobytes() != observation.astype(dtype, copy=False).tobytes():
            raise ValueError("the observation added must be the one that the last step led to")

    def _drop_without_frames(self) -> None:
        """Let the oldest transitions go early where short episodes have used up the frames."""
        if not self._may_lack_frames:
            return
        shape, ring = self._extent.shape, self._ring
        while True:
            first = self._columns["frame"][self._envs, self.oldest % self.slots] - shape.stack + 1
            gone = first < ring.oldest
            if not gone.any():
                return
            self.oldest[gone] += 1
            if not self._told:
                self._told = True
                _log.warning(
                    "agent.memory holds fewer transitions than its capacity: episodes are very short, or "
                    "observations are no stacks of the latest frames."
                )

    def _check_size(self, state: Mapping[str, Any]) -> None:
        if (state["content"] is None) != (self._arrays.folder is not None):
            storage = "mmap" if state["content"] is None else "ram"
            raise InputError(
                "agent.memory.storage must stay as it was when the checkpoint was written "
                f"(set agent.memory.storage={storage}).",
                code="changed-past",
                key="agent.memory.storage",
            )
        saved, own = list(state["extent"]), self._lengths()
        if saved != own:
            raise InputError(
                "agent.memory.capacity: the checkpoint's memory has {} environments, {} transitions and {} "
                "frames of each, this one {}, {} and {} (set agent.memory.capacity, env.num_envs and "
                "agent.n_step as they were).".format(*saved, *own),
                code="changed-past",
                key="agent.memory.capacity",
            )

    def _lengths(self) -> list[int]:
        return [self.num_envs, self.slots, self._ring.length]

    def _check_files(self) -> None:
        """Raises DamagedFileError unless the files still hold all that the counters say."""
        if self.steps == 0:
            return
        written, steps = self._written[:-1], int(self._written[-1])
        if (written < self._ring.head).any() or steps < self.steps:
            raise self._damaged(
                "hold less than the checkpoint needs: they are new, or those of another run. Restore the "
                "files that were there, or start a new run."
            )
        if steps > int(self.oldest.min()) + self.slots:
            raise self._damaged(f"no longer hold the transitions of this checkpoint. {WAY_OUT}")
        first = self._columns["frame"][self._envs, self.oldest % self.slots] - self._extent.shape.stack + 1
        if (written > first + self._ring.length).any():
            raise self._damaged(f"no longer hold the frames of this checkpoint. {WAY_OUT}")

    def _damaged(self, what: str) -> DamagedFileError:
        folder = self._arrays.folder
        return DamagedFileError(f"agent.memory: the files in {folder} {what}", key=str(folder))


WAY_OUT = "Resume from a newer checkpoint, or start a new run."
