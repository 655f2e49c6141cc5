"""Hindsight experience replay (Andrychowicz et al., 2017, arXiv:1707.01495): what was reached was wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labrl.config.types import Probability
from labrl.errors import InputError
from labrl.memory.replay import Replay, ReplayConfig, Sample
from labrl.observations import ACHIEVED, DESIRED, Goals
from labrl.step import Step


@dataclass(kw_only=True)
class HindsightReplayConfig(ReplayConfig):
    """Options of hindsight experience replay."""

    strategy: Literal["future", "final", "episode"]
    """Which state of the same episode has the goal, section 4.5: one that came of this step or a later one,
    the last one, or any."""
    relabelled: Probability
    """Share of the transitions that get another goal, in [0, 1]; k / (k + 1) in the paper's terms."""


class HindsightReplay(Replay):
    """Transitions are drawn uniformly, and most of them get a goal that their own episode has reached.

    Reward and termination are then those that the environment computes for that goal. Transitions of an
    episode that still goes on keep their own goal.
    """

    Config = HindsightReplayConfig
    reads_goals = True

    def __init__(
        self, config: HindsightReplayConfig, *, n_step: int, goals: Goals | None = None, **runtime: Any
    ) -> None:
        """goals: of the environment; all else as Replay."""
        if goals is None and not runtime["workspace"].acting_only:
            raise _no_goals()
        super().__init__(config, n_step=n_step, **runtime)
        self._strategy, self._share, self._goals = config.strategy, config.relabelled, goals
        self._gamma = np.float32(runtime["gamma"])
        shape = self._transitions.num_envs, self._transitions.slots
        self._first = np.zeros(shape, np.int64)
        self._last = np.full(shape, -1, np.int64)
        """By place, the first and the last step of the episode that a step is of; -1: it goes on."""
        self._begin = np.zeros(shape[0], np.int64)  # of the running episode [num_envs]

    @classmethod
    def check(cls, config: HindsightReplayConfig, goals: Goals | None, n_step: int) -> None:
        """Raises InputError where there are no goals, and for windows of several steps."""
        if goals is None:
            raise _no_goals()
        goals.check()
        if n_step > 1:
            raise InputError(
                f"agent.n_step must be 1 with agent/memory=hindsight, got {n_step}: another goal changes the "
                "reward of every step of a window. Set agent.n_step=1.",
                code="contradiction",
                key="agent.n_step",
            )

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Store one vector step; the episodes that it ends can be given other goals from now on."""
        super().add(observation, action, step, mask)
        latest = self._transitions.steps - 1
        if step.void:
            for env in np.flatnonzero(self._begin <= latest):
                self._end(int(env), latest)
            return
        # Not the episode that had the place before, of which a memory that comes back would not know.
        self._last[:, latest % self._transitions.slots] = -1
        for env in np.flatnonzero(step.terminated | step.episode_over):
            self._end(int(env), latest)

    def sample(self, batch_size: int, frame: int) -> Sample:
        """As Replay, then with other goals."""
        sample = super().sample(batch_size, frame)
        env, step = self._transitions.pairs(sample.index)
        place = step % self._transitions.slots
        last = self._last[env, place]
        wanted = (self._generator.random(batch_size) < self._share) & (last >= step)
        first = np.maximum(self._first[env, place], self._transitions.oldest[env])
        reached = self._chosen(step, first, last)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return sample
        goal = self._transitions.reached(env[rows], reached[rows], ACHIEVED)
        return self._relabelled(sample, rows, goal)

    def _chosen(
        self, step: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The step that led to the state whose goal is taken. [batch] each"""
        if self._strategy == "final":
            return last
        begin = step if self._strategy == "future" else first
        return self._generator.integers(begin, np.maximum(last, begin) + 1)

    def _relabelled(self, sample: Sample, rows: NDArray[np.int64], goal: NDArray) -> Sample:
        assert self._goals is not None
        sample.observation[DESIRED][rows] = goal
        sample.next_observation[DESIRED][rows] = goal
        achieved = sample.next_observation[ACHIEVED][rows]
        sample.reward[rows] = self._goals.reward(achieved, goal)
        terminated = self._goals.terminated(achieved, goal)
        if terminated is not None:
            sample.discount[rows] = np.where(terminated, np.float32(0), self._gamma)
        return sample

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        # The first episode of each environment may have begun before what is left of it: no matter.
        transitions = self._transitions
        self._last.fill(-1)
        self._begin[:] = transitions.oldest
        for step, env in transitions.ends():
            self._end(env, step)

    def _end(self, env: int, last: int) -> None:
        """An episode of `env` has ended with step `last`."""
        slots = self._transitions.slots
        first = max(int(self._begin[env]), last + 1 - slots)
        places = np.arange(first, last + 1) % slots
        self._first[env, places] = first
        self._last[env, places] = last
        self._begin[env] = last + 1


def _no_goals() -> InputError:
    return InputError(
        "agent.memory: hindsight needs a goal environment, whose observations are a dict with achieved_goal "
        "and desired_goal, and a method compute_reward(achieved_goal, desired_goal, info). Set "
        "agent/memory=uniform.",
        code="unsupported",
        key="agent.memory",
    )
