"""Learning from a replay buffer: its options and checks, and the number of updates that are due."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import divide_option
from labrl.clock import Clock
from labrl.component import Component
from labrl.learning.compute import Compute
from labrl.learning.learner import Learner
from labrl.memory.offline import OfflineData, Requirements
from labrl.memory.replay import Replay
from labrl.seeding import Streams
from labrl.spaces import Spaces, stored_choices
from labrl.types import NonNegativeInt, PositiveInt, PositiveRatio, Probability


@dataclass(kw_only=True)
class ExperienceConfig:
    """Options of all agents that learn from a replay buffer."""

    memory: Component
    """Replay buffer: storage and sampling of transitions."""
    n_step: PositiveInt
    """Number of rewards in a target before the bootstrapped value, >= 1."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""
    batch_size: PositiveInt
    """Number of transitions in a minibatch, >= 1."""
    learning_starts: NonNegativeInt
    """Number of frames before the first update, >= 0; updates also wait until the replay buffer can
    fill a minibatch."""
    warmup_actions: Literal["random", "policy"]
    """Actions before `learning_starts`: random (uniformly random) or policy (chosen by the exploring
    policy)."""
    updates_per_frame: PositiveRatio
    """Number of updates per frame after `learning_starts`, > 0: a number or a quotient such as "1/3"; it is
    kept exactly."""
    offline: Component | None
    """Source of transitions that were collected elsewhere. With it, updates begin at frame 0. null: none."""
    collect_from: NonNegativeInt
    """Frame at which data collection starts, >= 0; before that frame, the agent learns only from
    `offline`."""
    collect_until: NonNegativeInt | None
    """Frame at which data collection ends, >= 0; after that frame, the agent learns only from
    stored transitions; null: data collection does not end."""


Options = TypeVar("Options", bound=ExperienceConfig)


class Experience:
    """A replay buffer, transitions that were collected elsewhere, and the schedule of updates."""

    def __init__(
        self,
        config: ExperienceConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
        stored_action: gym.Space[Any] | None = None,
        num_masked: int = 0,
        state_size: int = 0,
    ) -> None:
        """stored_action: space of stored actions, None for the environment's action space; num_masked: number
        of flags in an action mask, 0 without masks; state_size: size of the recurrent state, 0 without one.
        """
        self.config, self._clock = config, clock
        self.frames_per_step = spaces.num_envs * compute.ranks.size
        """Number of frames in a vector step, over all ranks."""
        self.first_update = first_update(config, spaces.num_envs, compute.ranks.size)
        self._ratio = config.updates_per_frame.numerator, config.updates_per_frame.denominator
        self.updates = 0
        """Number of updates so far, which the agent increments."""
        stored = stored_choices(spaces.action) if stored_action is None else stored_action
        self._offline: OfflineData | None = None
        if config.offline is not None:
            self.first_update = 0
            if not compute.workspace.acting_only:
                step = config.gamma, config.n_step
                wanted = Requirements(spaces.observation, spaces.action, stored, *step, num_masked)
                self._offline = config.offline.build(wanted=wanted, generator=streams.numpy("offline"))
        self.memory: Replay = config.memory.build(
            observation_space=spaces.observation,
            action_space=stored,
            num_envs=spaces.num_envs,
            n_step=config.n_step,
            gamma=config.gamma,
            workspace=compute.workspace,
            generator=streams.numpy("replay"),
            num_masked=num_masked,
            goals=spaces.goals,
            state_size=state_size,
        )
        self.prioritized = type(self.memory).update_priorities is not Replay.update_priorities
        """Whether sampling depends on errors, so that `update_priorities` must follow each update."""

    @property
    def acts_at_random(self) -> bool:
        """Whether actions are currently uniformly random."""
        frame = self._clock.frame - self.config.collect_from
        return frame < self.config.learning_starts and self.config.warmup_actions == "random"

    @property
    def pauses(self) -> Experience | None:
        """This object if the environments are not stepped in some frames; otherwise None."""
        return self if self.config.collect_from > 0 or self.config.collect_until is not None else None

    @property
    def collecting(self) -> bool:
        """Whether the environments are currently played."""
        end = self.config.collect_until
        return self._clock.frame >= self.config.collect_from and (end is None or self._clock.frame < end)

    @property
    def frames_played(self) -> int:
        """Number of frames so far in which the environments were played."""
        step, frame, end = self.frames_per_step, self._clock.frame, self.config.collect_until
        begin = -(-self.config.collect_from // step) * step
        until = frame if end is None else min(frame, -(-end // step) * step)
        return max(until - begin, 0)

    def due(self) -> int:
        """Return the number of updates that are due after the current vector step, before the clock counts
        it."""
        frames = self._clock.frame + self.frames_per_step - self.first_update
        if frames <= 0:
            return 0
        count = frames * self._ratio[0] // self._ratio[1] - self.updates
        return count if count > 0 else 0

    def sample(self, learner: Learner[Any], layout: Callable[[NDArray], Any] | None = None) -> Any:
        """Draw a minibatch as tensors: `Transitions`, or a `SequenceSample` from a buffer of sequences.

        learner: learner of the network that reads the observations; the tensors are on its device; layout:
        function that converts observations to the network's layout; None: the learner's own.
        """
        frame = self._clock.frame
        if self._offline is None:
            drawn = self.memory.sample(self.config.batch_size, frame)
        else:
            joined = frame >= self.config.collect_from + self.config.learning_starts
            drawn = self._offline.mixed(self.memory, self.config.batch_size, frame, self.updates, joined)
        return drawn.as_tensors(learner, layout or learner.layout)

    def observation_statistics(self) -> tuple[NDArray, NDArray] | None:
        """Return the mean and standard deviation of the observations of `offline`, [*obs] each.

        Returns None if there are no such transitions, as in a copy that only acts.
        """
        return None if self._offline is None else self._offline.observation_statistics()

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Set the errors of the transitions in a minibatch that this session collected. [batch] each"""
        own = slice(None) if self._offline is None else slice(int((index >= 0).sum()))
        self.memory.update_priorities(index[own], error[own])

    def state_dict(self) -> dict[str, Any]:
        """Return the replay buffer and the number of updates."""
        offline = None if self._offline is None else self._offline.state_dict()
        return {"memory": self.memory.state_dict(), "updates": self.updates, "offline": offline}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.memory.load_state_dict(state["memory"])
        self.updates = int(state["updates"])
        if self._offline is not None:
            self._offline.load_state_dict(state["offline"])

    def close(self) -> None:
        """Close the replay buffer, which flushes its files."""
        self.memory.close()


def first_update(config: ExperienceConfig, num_envs: int, ranks: int = 1) -> int:
    """Return the first frame, counted over all ranks, at which updates are due and a minibatch is stored.

    config, num_envs: options and number of environments of one rank.
    """
    frames: int = config.memory.config.frames_for(config.batch_size, num_envs, config.n_step)
    return max(config.learning_starts, frames * ranks)


def experience_for_rank(config: Options, ranks: int, sequence_length: int = 1) -> Options:
    """Return one rank's share of the options.

    sequence_length: number of steps in a sequence that the agent learns from. Raises InputError if
    minibatch or replay buffer cannot be divided equally.
    """
    config = divide_option(config, "batch_size", ranks, sequence_length=sequence_length)
    buffer = divide_option(config.memory.config, "capacity", ranks, "agent.memory")
    return dataclasses.replace(config, memory=dataclasses.replace(config.memory, config=buffer))
