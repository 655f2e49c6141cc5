"""Hindsight experience replay (Andrychowicz et al., 2017, arXiv:1707.01495): learning from achieved goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labrl.memory import Transitions
from labrl.memory.replay import Replay, ReplayConfig, ReplayTraits
from labrl.spaces import ACHIEVED, DESIRED, Goals
from labrl.step import Masks, States, Step
from labrl.types import Probability


@dataclass(kw_only=True)
class HindsightReplayConfig(ReplayConfig):
    """Options of hindsight experience replay."""

    strategy: Literal["future", "final", "episode"]
    """State of the transition's episode whose achieved goal becomes the new goal (section 4.5). future: a
    random state reached by the transition or a later one; final: the last state; episode: any state."""
    relabelled: Probability
    """Fraction of transitions that receive a new goal, in [0, 1]; k / (k + 1) in the paper's notation."""


class HindsightReplay(Replay):
    """Samples transitions uniformly and replaces many of their goals with goals achieved in the same episode.

    The environment computes the reward and the termination for the new goal. Transitions of unfinished
    episodes keep their original goal.
    """

    Config = HindsightReplayConfig
    TRAITS = ReplayTraits(goals=True)

    def __init__(
        self, config: HindsightReplayConfig, *, gamma: float, goals: Goals | None = None, **runtime: Any
    ) -> None:
        """Take the same arguments as `Replay`. goals: the environment's goals, from which rewards for new
        goals come."""
        if goals is None and not runtime["workspace"].acting_only:
            raise ValueError("hindsight needs goals")
        super().__init__(config, gamma=gamma, **runtime)
        self._goals, self._gamma = goals, np.float32(gamma)
        # First and last step of the episode of the step in each slot; last is -1 in unfinished episodes.
        self._first = np.zeros((self.num_envs, self.slots), np.int64)
        self._last = np.full((self.num_envs, self.slots), -1, np.int64)
        self._begin = np.zeros(self.num_envs, np.int64)  # first step of the unfinished episode [num_envs]

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: Masks = None, state: States = None
    ) -> None:
        """Store one vector step. From then on, the goals of episodes that this step ends can be replaced."""
        super().add(observation, action, step, mask, state)
        latest = self.steps - 1
        if step.void:
            ended = self._begin <= latest
        else:
            ended = step.terminated | step.episode_over
            # Forget the episode that used the slot before, which a restored buffer would not know.
            self._last[:, latest % self.slots] = -1
        for env in np.flatnonzero(ended):
            self._end(int(env), latest)

    def sample(self, batch_size: int, frame: int) -> Transitions:
        """Draw a minibatch like `Replay.sample`, then replace goals."""
        sample = super().sample(batch_size, frame)
        step, env = np.divmod(sample.index, self.num_envs)
        last = self._last[env, step % self.slots]
        wanted = (self.generator.random(batch_size) < self._config.relabelled) & (last >= step)
        # The step that led to the state with the new goal.
        reached = last
        if self._config.strategy != "final":
            first = np.maximum(self._first[env, step % self.slots], self.oldest[env])
            begin = step if self._config.strategy == "future" else first
            reached = self.generator.integers(begin, np.maximum(last, begin) + 1)
        rows = np.flatnonzero(wanted)
        if len(rows):
            env, reached = env[rows], reached[rows]
            frames = self._columns["next_frame"][env, reached % self.slots]
            goal = self._ring.input_of(env, frames, ACHIEVED)
            sample.observation[DESIRED][rows] = goal
            sample.next_observation[DESIRED][rows] = goal
            # Reward and termination of the rows follow from the new goal.
            achieved = sample.next_observation[ACHIEVED][rows]
            assert self._goals is not None
            sample.reward[rows] = self._goals.reward(achieved, goal)
            terminated = self._goals.terminated(achieved, goal)
            if terminated is not None:
                sample.discount[rows] = np.where(terminated, np.float32(0), self._gamma)
        return sample

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        # The oldest episode of each environment may have begun before its oldest step, which is harmless.
        self._last.fill(-1)
        self._begin[:] = self.oldest
        steps = np.arange(int(self.oldest.min()), self.steps)
        cut = self._columns["cut"][:, steps % self.slots].T & (steps[:, None] >= self.oldest)
        for row, env in np.argwhere(cut).tolist():
            self._end(env, int(steps[row]))

    def _end(self, env: int, last: int) -> None:
        """Record that the current episode of `env` ended with step `last`."""
        first = max(int(self._begin[env]), last + 1 - self.slots)
        places = np.arange(first, last + 1) % self.slots
        self._first[env, places] = first
        self._last[env, places] = last
        self._begin[env] = last + 1
