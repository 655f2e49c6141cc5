"""Rings of the latest frames of each environment, from which a replay buffer assembles observations.

Three terms describe rings of frames, and rings of transitions in `TransitionRing`:

- The *head* is the number of frames ever pushed; frame i is in slot i modulo the ring's length.
- The latest frames, up to a fixed number, are *live*: observations are assembled from them.
- The other slots are *spare*. They keep frames that were live at the last checkpoint until the next
  checkpoint, so that a checkpoint of a ring in files needs no copy. Rings in memory have no spare slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.spaces import array_dtype, stored_dtype


class FrameRing:
    """The latest frames of every environment, each stored once even if several stacks contain it.

    A frame is identified by its index, which is the head of its environment before the frame was pushed. The
    frames of an observation are consecutive, so an observation is identified by its newest frame.

    Byte arrays with three or more axes, the first shorter than the next two, are stacks of frames with the
    newest frame last, as in the ALE ([stack, height, width]). Every other observation is stored as a single
    frame. This includes observations with several inputs, even if an input is a stack, and arrays whose first
    axis is a multiple of three, because that axis may be colors, which do not shift by one in each step.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.shape: tuple[int, ...] = space.shape or ()
        is_image = len(self.shape) >= 3 and space.dtype == np.uint8
        is_stack = is_image and self.shape[0] < min(self.shape[1:3]) and self.shape[0] % 3 > 0
        self.stack: int = self.shape[0] if is_stack else 1
        """Number of frames in an observation, >= 1."""
        self.frame: tuple[int, ...] = self.shape[1:] if is_stack else self.shape
        """Shape of a frame."""
        self.dtype = stored_dtype(array_dtype(space))
        self.is_image = _has_image(space)

    def length_for(self, transitions: int, n_step: int, together: int = 0) -> int:
        """Return the number of frames to keep for the latest `transitions` of one environment.

        For small observations, the number is large enough for episodes of one step. For images, there is one
        frame for each transition and a sixteenth more for the starts of episodes. Even episodes of one step
        leave room for the last n_step + 1 transitions, and for the last `together` transitions, which are
        useful only if complete.
        """
        if not self.is_image:
            return 2 * transitions + 1
        usual = transitions + -(-transitions // 16) + (2 * n_step + 3) * self.stack
        return max(usual, (2 * together + 1) * self.stack)

    @property
    def max_step_frames(self) -> int:
        """Maximum number of frames that one step adds. A step that ends an episode can add all frames of its
        next observation and of the new episode's first observation."""
        return 2 * self.stack

    def open(self, frames: NDArray, written: NDArray[np.int64], live: int) -> None:
        """Set the array in which the frames are stored.

        frames: array of zeros, or the array that an earlier process filled, [num_envs, length, *frame];
        written: largest head of each environment so far, including earlier processes, [num_envs]; live:
        number of live frames.
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
        """Push the first observations of episodes. observation: [num_envs, *obs], or [len(envs), *obs]."""
        self._push(self._envs if envs is None else envs, self.stacks_of(observation))

    def push(
        self,
        before: Sequence[NDArray],
        after: Sequence[NDArray],
        first: Sequence[NDArray],
        over: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Push the new frames of several steps, and the first observations of new episodes.

        before: observation of each step; after: next observation of each step; first: observation on which
        the agent acts after each step; `before`, `after` and `first` have the shape [num_envs, *obs] for each
        step; over: whether an episode ended, [steps, num_envs]. Returns the newest frame of each observation
        and of each next observation, [steps, num_envs] each.
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
        some_ended = over.nonzero()[0].size > 0
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

        All frames of a stack are pushed unless it is the previous stack shifted by one frame.
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
        """Return observations of `env` that end with the frames `newest` and `following`.

        [batch] each -> [batch, *obs] each. Two stacks that share frames are views of one array, into which
        each frame is copied once.
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
        """Push an equal number of frames for each of `envs`. frames: [len(envs), count, *frame]"""
        head = self.head[envs]
        after = head + frames.shape[1]
        # Update `written` before the frames, as in `push`.
        self.written[envs] = np.maximum(self.written[envs], after)
        places = (head[:, None] + np.arange(frames.shape[1])) % self.length
        self.frames[envs[:, None], places] = frames
        self.head[envs] = after


def _has_image(space: gym.Space[Any]) -> bool:
    """Return whether any input has three or more axes, so that a frame is large."""
    if isinstance(space, gym.spaces.Dict):
        return any(map(_has_image, space.spaces.values()))
    return len(space.shape or ()) >= 3
