"""Rings of frames: each is stored once, however many stacked observations it is a part of."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.observations import array_dtype


def has_image(space: gym.Space[Any]) -> bool:
    """Whether an input has three axes or more, so that a frame is large."""
    if isinstance(space, gym.spaces.Dict):
        return any(map(has_image, space.spaces.values()))
    return len(space.shape or ()) >= 3


class FrameShape:
    """How the observations of a space are made of frames.

    Bytes of three axes or more with a first axis shorter than the next two are a stack of frames, the
    newest last, as the ALE gives them ([stack, height, width]). Everything else is one frame, and so are
    an observation of several inputs, stacks among them too, and a first axis of three or a multiple of it,
    which may be colours: those do not move on by one frame a step.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation: tuple[int, ...] = space.shape or ()
        self.is_image = has_image(space)
        shape = self.observation
        is_image = len(shape) >= 3 and space.dtype == np.uint8
        is_stack = is_image and shape[0] < min(shape[1:3]) and shape[0] % 3 > 0
        self.stack: int = shape[0] if is_stack else 1
        """Frames in an observation, >= 1."""
        self.frame: tuple[int, ...] = shape[1:] if is_stack else shape
        """Shape of a frame."""
        dtype = array_dtype(space)
        self.dtype = np.dtype(np.float32) if dtype == np.float64 else dtype

    @property
    def most_frames(self) -> int:
        """Frames that one step may push: all of what it led to, and of what the next episode begins with."""
        return 2 * self.stack

    def frames_of(self, transitions: int, n_step: int, together: int = 0) -> int:
        """Frames that one environment needs to keep its latest `transitions`.

        Small observations: enough for episodes of one step. Images: one for each transition and a
        sixteenth more for the starts of episodes, at least what the last n_step + 1 may take, and the last
        `together`, which are of use only if all of them are there.
        """
        if not self.is_image:
            return 2 * transitions + 1
        usual = transitions + -(-transitions // 16) + (2 * n_step + 3) * self.stack
        return max(usual, (2 * together + 1) * self.stack)


class FrameRing:
    """The latest frames of every environment.

    A frame is named by how many its environment had pushed before it: a number that only grows. Frames
    of one observation follow each other, so that an observation is named by its newest frame.
    """

    def __init__(self, frames: NDArray, written: NDArray[np.int64], shape: FrameShape, live: int) -> None:
        """frames: zeros, or what a run before this one left [num_envs, length, *frame]; written: for
        each environment the most frames that were ever pushed into `frames` [num_envs]; live: how many
        of the latest are in use, the places of the others may hold what a checkpoint still needs."""
        self.num_envs, self.length = frames.shape[:2]
        self.live = live
        self.head = np.zeros(self.num_envs, np.int64)
        """Frames pushed so far. [num_envs]"""
        self._shape, self._frames, self._written = shape, frames, written
        self._flat = frames.reshape(-1, *shape.frame)
        self._envs = np.arange(self.num_envs)
        self._start = self._envs * self.length  # row of `_flat` where an environment's ring begins
        self._same = np.empty((self.num_envs, shape.stack - 1, *shape.frame), np.bool_)

    @property
    def newest(self) -> NDArray[np.int64]:
        """The newest frame of each environment. [num_envs]"""
        return self.head - 1

    @property
    def oldest(self) -> NDArray[np.int64]:
        """The oldest frame of each environment that is in use. [num_envs]"""
        return self.head - self.live

    def begin(self, observation: NDArray, envs: NDArray[np.int64] | None = None) -> None:
        """Push whole observations, the first of their episodes. [num_envs, *obs], or those of `envs`."""
        envs = self._envs if envs is None else envs
        self._push(envs, self._stacks_of(observation))

    def follow(self, before: NDArray, after: NDArray) -> None:
        """Push what is new in `after`, the observations that came of `before`. [num_envs, *obs] each

        A stack that is not the one before it shifted by a frame is pushed whole.
        """
        new = self._stacks_of(after)
        if self._shape.stack > 1:
            same = np.equal(new[:, :-1], self._stacks_of(before)[:, 1:], out=self._same)
            if not same.all():
                shifted = same.reshape(self.num_envs, -1).all(axis=1)
                self._push(self._envs[~shifted], new[~shifted])
                self._push(self._envs[shifted], new[shifted, -1:])
                return
        self._push(self._envs, new[:, -1:])

    @property
    def most_at_once(self) -> int:
        """Transitions whose observations fit into the ring, however they follow each other, >= 1."""
        return max(self.length // self._shape.most_frames, 1)

    def extend(
        self, before: NDArray, after: NDArray, cut: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Push what consecutive transitions of the only environment began with and led to.

        before, after: at most `most_at_once` observations [n, *obs]; cut: whether the next transition may
        begin with another one than this led to [n]. Returns the newest frames of both. [n] each
        """
        stack, frames = self._shape.stack, self._frames[0]
        olds, news = self._stacks_of(before), self._stacks_of(after)
        shifted = np.ones(len(news), np.bool_)
        if stack > 1:
            shifted = (news[:, :-1] == olds[:, 1:]).reshape(len(news), -1).all(axis=1)
        begins = np.concatenate([[True], cut[:-1]])
        for row in np.flatnonzero(begins)[1:]:  # where only a life was lost, the game went on
            begins[row] = before[row].tobytes() != after[row - 1].tobytes()
        pushed = np.where(shifted, 1, stack)
        following = self.head[0] + (pushed + stack * begins).cumsum() - 1
        newest = following - pushed
        for back in range(stack):
            whole = slice(None) if back == 0 else ~shifted
            frames[(newest[begins] - back) % self.length] = olds[begins, -1 - back]
            frames[(following[whole] - back) % self.length] = news[whole, -1 - back]
        self.head[0] = self._written[0] = following[-1] + 1
        return newest, following

    def current(self) -> NDArray:
        """The newest observation of each environment. [num_envs, *obs]"""
        return self.observations(self._envs, self.newest)

    def observations(self, env: NDArray[np.int64], newest: NDArray[np.int64]) -> NDArray:
        """Observations of `env` that end with the frames `newest`. [batch] each -> [batch, *obs]"""
        return self._gather(env, newest, self._shape.stack).reshape(-1, *self._shape.observation)

    def pairs(
        self, env: NDArray[np.int64], newest: NDArray[np.int64], following: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray]:
        """Observations of `env` that end with the frames `newest`, and that end with `following`.

        [batch] each -> [batch, *obs] each. Two stacks that share frames are parts of one array, where
        each frame is copied once.
        """
        stack, gap = self._shape.stack, int(following[0] - newest[0])
        if gap < stack and (following - newest == gap).all():
            frames = self._gather(env, following, stack + gap)
            return frames[:, :stack], frames[:, gap:]
        frames = self._gather(np.concatenate([env, env]), np.concatenate([newest, following]), stack)
        both = frames.reshape(2, -1, *self._shape.observation)
        return both[0], both[1]

    def newest_of(self, env: NDArray[np.int64], newest: NDArray[np.int64], name: str) -> NDArray:
        """One input of the frames `newest` of `env`. [batch] each -> [batch, *input]"""
        return self._flat[name][newest % self.length + self._start[env]]

    def content(self) -> NDArray:
        """A copy of the part of the ring that was ever used. [num_envs, at most length, *frame]"""
        return self._frames[:, : int(self.head.max())].copy()

    def restore(self, head: NDArray[np.int64], content: NDArray | None) -> None:
        """Go on with `head` frames pushed, and with saved content where it is not in a file."""
        self.head[:] = head
        if content is not None:
            self._frames[:, : content.shape[1]] = content
            self._written[:] = head

    def _gather(self, env: NDArray[np.int64], newest: NDArray[np.int64], count: int) -> NDArray:
        """The `count` frames of each `env` that end with `newest`. [batch] each -> [batch, count, *frame]"""
        places = (newest[:, None] + np.arange(1 - count, 1)) % self.length
        return self._flat.take(places + self._start[env][:, None], axis=0)

    def _stacks_of(self, observation: NDArray) -> NDArray:
        return observation.reshape(len(observation), self._shape.stack, *self._shape.frame)

    def _push(self, envs: NDArray[np.int64], frames: NDArray) -> None:
        """Push the same number of frames in each of `envs`. frames: [len(envs), number, *frame]"""
        head = self.head[envs]
        after = head + frames.shape[1]
        # Before the frames, so that a process that dies in between has not said too little.
        self._written[envs] = np.maximum(self._written[envs], after)
        places = (head[:, None] + np.arange(frames.shape[1])) % self.length
        self._frames[envs[:, None], places] = frames
        self.head[envs] = after
