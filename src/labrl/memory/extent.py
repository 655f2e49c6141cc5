"""How much a replay memory holds, and in which arrays."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from labrl.memory.frames import FrameShape
from labrl.workspace import Layout


class Extent:
    """How many transitions and frames each environment keeps.

    Only the live ones are in use; the places beyond hold what checkpoints may still need.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        num_envs: int,
        capacity: int,
        n_step: int,
        frames_kept: int,
        together: int = 0,
    ) -> None:
        """capacity: transitions; frames_kept: those that may be added without harm to a checkpoint where they
        take no more frames than usual; both over all environments; together: steps of an environment that
        are sampled as one."""
        self.shape = FrameShape(space)
        """How observations are made of frames."""
        self.num_envs = num_envs
        spare = -(-frames_kept // num_envs)
        self.live = capacity // num_envs
        """Transitions that may be sampled."""
        self.slots = self.live + spare
        """Places for transitions."""
        self.live_frames = self.shape.frames_of(self.live, n_step, together)
        """Frames that transitions may refer to."""
        self.frames = self.live_frames + (self.shape.frames_of(spare, n_step) if spare else 0)
        """Places for frames."""

    def layouts(self, action_space: gym.Space[Any], num_masked: int) -> dict[str, Layout]:
        """The arrays that hold it all. num_masked: actions that have a flag in a mask."""
        assert action_space.shape is not None, "spaces in several parts are refused before"
        action = np.float32 if action_space.dtype == np.float64 else action_space.dtype
        fields: list[Any] = [
            ("frame", np.int64),  # the newest of the observation
            ("next_frame", np.int64),  # the newest of what it led to
            ("action", action, action_space.shape),
            ("reward", np.float32),
            ("terminated", np.bool_),
            ("cut", np.bool_),  # the next row is not what follows, or not to the learner
        ]
        if num_masked:
            fields += [("mask", np.bool_, (num_masked,)), ("next_mask", np.bool_, (num_masked,))]
        frames = (self.num_envs, self.frames, *self.shape.frame)
        return {
            "frames": Layout(frames, self.shape.dtype, self.live_frames),
            "transitions": Layout((self.num_envs, self.slots), np.dtype(fields, align=True), self.live),
            # The most frames that each environment ever pushed, and the most steps.
            "written": Layout((self.num_envs + 1,), np.dtype(np.int64)),
        }
