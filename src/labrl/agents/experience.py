"""Learning from a replay memory: what is remembered, and how many updates are due when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.clock import Clock
from labrl.config.component import Component
from labrl.config.types import NonNegativeInt, PositiveInt, PositiveRatio, Probability
from labrl.errors import InputError
from labrl.memory.offline import OfflineData, Wanted
from labrl.memory.replay import Replay, Sample, check_capacity
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces, stored_choices
from labrl.seeding import Streams
from labrl.step import Step


@dataclass(kw_only=True)
class ExperienceConfig:
    """Options of every agent that learns from a replay memory."""

    memory: Component
    """Replay buffer: where transitions are stored and how they are sampled."""
    n_step: PositiveInt
    """Rewards in a target before the bootstrap, >= 1."""
    gamma: Probability
    """Discount factor: the weight of the next step's value, in [0, 1]."""
    batch_size: PositiveInt
    """Transitions in a minibatch, >= 1."""
    learning_starts: NonNegativeInt
    """Frames before the first update, >= 0; there is none before a whole minibatch is stored."""
    warmup_actions: Literal["random", "policy"]
    """Actions during these frames: uniformly random, or those of the exploring policy."""
    updates_per_frame: PositiveRatio
    """Updates per frame from then on, > 0, kept exactly: a number or a quotient such as "1/3"."""
    offline: Component | None
    """Transitions that were collected elsewhere; with them, updates begin at frame 0; null: none."""
    collect_from: NonNegativeInt
    """Frames before the environments are played, >= 0; until then, the agent learns from `offline` alone."""
    collect_until: NonNegativeInt | None
    """Frame from which on the environments are no longer played, >= 0, and learning continues from what is
    stored; null: they are played to the end."""


def _keeps_sequences(config: ExperienceConfig) -> bool:
    return getattr(config.memory.load(), "SEQUENCES", False)


def _frames_for_a_minibatch(config: ExperienceConfig, num_envs: int) -> int:
    if _keeps_sequences(config):
        return int(config.memory.config.frames_for(config.batch_size, num_envs, config.n_step))
    return config.batch_size + config.n_step * num_envs


def first_update(config: ExperienceConfig, num_envs: int) -> int:
    """Frame from which on updates fall due: the memory can give a minibatch then."""
    return max(config.learning_starts, _frames_for_a_minibatch(config, num_envs))


def check_experience(config: ExperienceConfig, env: Any, sequences: bool = False) -> None:
    """Raises InputError if memory, minibatch and budget contradict each other.

    env: its configuration; sequences: whether the agent learns from these, rather than from single steps.
    """
    if _keeps_sequences(config) != sequences:
        kept, wanted = (
            ("sequences", "single transitions") if not sequences else ("single transitions", "sequences")
        )
        raise InputError(
            f"agent.memory: {config.memory.target} keeps {kept}, and this agent learns from {wanted}. Set "
            f"{'agent/memory=sequences' if sequences else 'agent/memory=uniform or agent/memory=prioritized'}"
            f", or agent={'dqn' if sequences else 'recurrent_dqn'}.",
            code="unsupported",
            key="agent.memory",
        )
    capacity = getattr(config.memory.config, "capacity", None)
    if sequences:
        config.memory.config.check(config.batch_size, env.num_envs, config.n_step)
    elif capacity is not None:
        check_capacity(config.memory.config, env.num_envs, config.n_step)
    if capacity is not None:
        for name in ("batch_size", "learning_starts"):
            if capacity < getattr(config, name):
                raise InputError(
                    f"agent.memory.capacity must be at least agent.{name}={getattr(config, name)}, got "
                    f"{capacity}. Set agent.memory.capacity={getattr(config, name)} or more.",
                    code="contradiction",
                    key="agent.memory.capacity",
                )
    _check_collecting(config, env)
    start = first_update(config, env.num_envs)
    if env.max_frame <= start and config.offline is None:
        raise InputError(
            f"agent.learning_starts={config.learning_starts} leaves no update within env.max_frame="
            f"{env.max_frame}: with agent.batch_size={config.batch_size}, the first update is after frame "
            f"{start}. Set env.max_frame={2 * start} or more, or a smaller agent.learning_starts.",
            code="contradiction",
            key="agent.learning_starts",
        )


def _check_collecting(config: ExperienceConfig, env: Any) -> None:
    """Raises InputError if there would be nothing to learn from."""
    begin, end = config.collect_from, config.collect_until
    if config.offline is not None and _keeps_sequences(config):
        raise InputError(
            "agent.offline cannot be used with agent/memory=sequences: transitions that were collected "
            "elsewhere have no recurrent states. Set agent/offline=none or agent=dqn.",
            code="contradiction",
            key="agent.offline",
        )
    if config.offline is None:
        if begin:
            raise InputError(
                f"agent.collect_from={begin} leaves nothing to learn from until then. Set "
                "agent.collect_from=0, or give a source of transitions: agent/offline=run or "
                "agent/offline=minari.",
                code="contradiction",
                key="agent.collect_from",
            )
        least = first_update(config, env.num_envs)
        if end is not None and end < least:
            raise InputError(
                f"agent.collect_until must be at least {least}, the frame of the first update with "
                f"agent.learning_starts={config.learning_starts} and agent.batch_size={config.batch_size}, "
                f"got {end}. Set agent.collect_until={least}, or give a source of transitions: "
                "agent/offline=run or agent/offline=minari.",
                code="contradiction",
                key="agent.collect_until",
            )
    if end and end <= begin:
        raise InputError(
            f"agent.collect_until must be more than agent.collect_from={begin}, got {end}. To collect "
            "nothing, set agent.collect_until=0.",
            code="contradiction",
            key="agent.collect_until",
        )
    if begin >= env.max_frame:
        raise InputError(
            f"agent.collect_from must be less than env.max_frame={env.max_frame}, got {begin}. To learn "
            "without collecting, set agent.collect_from=0 agent.collect_until=0.",
            code="contradiction",
            key="agent.collect_from",
        )


def check_memory(config: ExperienceConfig, spaces: Spaces) -> None:
    """Raises InputError if the memory, or the source of offline transitions, does not fit the environment."""
    memory = config.memory.load()
    if hasattr(memory, "check"):
        memory.check(config.memory.config, spaces.goals, config.n_step)
    if config.offline is not None and hasattr(config.offline.load(), "check"):
        config.offline.load().check(config.offline.config)


class Experience:
    """A replay memory, and the clock's word on when to learn from it."""

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
        """stored_action: the space of stored actions; None: the environment's; num_masked: flags in an action
        mask, 0 without masks; state_size: numbers in a recurrent state, 0 without one."""
        self.config, self._clock = config, clock
        self.frames_per_step = spaces.num_envs * compute.ranks.size
        """Frames of a vector step, those of all ranks."""
        # config is the rank's share, and the clock counts for all.
        own = _frames_for_a_minibatch(config, spaces.num_envs)
        self.first_update = max(config.learning_starts, own * compute.ranks.size)
        if config.offline is not None:
            self.first_update = 0
        self.ratio = config.updates_per_frame
        self.updates = 0
        """Updates so far; whoever makes one counts it."""
        stored = stored_choices(spaces.action) if stored_action is None else stored_action
        self._offline: OfflineData | None = None
        if config.offline is not None and not compute.workspace.acting_only:
            step = config.gamma, config.n_step
            wanted = Wanted(spaces.observation, spaces.action, stored, *step, num_masked)
            self._offline = config.offline.build(wanted=wanted, generator=streams.numpy("offline"))
        self.memory: Replay = config.memory.build(
            observation_space=spaces.observation,
            action_space=stored,
            num_envs=spaces.num_envs,
            n_step=config.n_step,
            gamma=config.gamma,
            workspace=compute.workspace,
            generator=streams.numpy("replay"),
            **({"num_masked": num_masked} if num_masked else {}),
            **({"goals": spaces.goals} if getattr(config.memory.load(), "reads_goals", False) else {}),
            **({"state_size": state_size} if state_size else {}),
        )

    @property
    def acts_at_random(self) -> bool:
        """Whether chance alone acts now."""
        frame = self._clock.frame - self.config.collect_from
        return frame < self.config.learning_starts and self.config.warmup_actions == "random"

    @property
    def collecting(self) -> bool:
        """Whether environments are to be played now."""
        end = self.config.collect_until
        return self._clock.frame >= self.config.collect_from and (end is None or self._clock.frame < end)

    @property
    def frames_played(self) -> int:
        """Frames so far in which environments were played."""
        step, frame, end = self.frames_per_step, self._clock.frame, self.config.collect_until
        begin = -(-self.config.collect_from // step) * step
        until = frame if end is None else min(frame, -(-end // step) * step)
        return max(until - begin, 0)

    def add(
        self,
        observation: NDArray,
        action: NDArray,
        step: Step,
        mask: NDArray[np.bool_] | None = None,
        state: NDArray | None = None,
    ) -> None:
        """Remember what `action`, chosen at `observation` among `mask`, led to. [num_envs, ...] each

        state: of a network that carries one, before `observation`.
        """
        known = {"mask": mask, "state": state}
        given = {name: value for name, value in known.items() if value is not None}
        self.memory.add(observation, action, step, **given)

    def due(self) -> int:
        """Updates that fall due by the vector step that is being taken in: the clock ticks afterwards."""
        frames = max(self._clock.frame + self.frames_per_step - self.first_update, 0)
        return max(frames * self.ratio.numerator // self.ratio.denominator - self.updates, 0)

    def sample(self) -> Sample:
        """A minibatch."""
        frame = self._clock.frame
        if self._offline is None:
            return self.memory.sample(self.config.batch_size, frame)
        joined = frame >= self.config.collect_from + self.config.learning_starts
        return self._offline.mixed(self.memory, self.config.batch_size, frame, self.updates, joined)

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Tell the memory the errors of its part of a minibatch. [batch] each"""
        own = slice(None) if self._offline is None else slice(int((index >= 0).sum()))
        self.memory.update_priorities(index[own], error[own])

    def state_dict(self) -> dict[str, Any]:
        """The memory and the number of updates."""
        offline = None if self._offline is None else self._offline.state_dict()
        return {"memory": self.memory.state_dict(), "updates": self.updates, "offline": offline}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self.memory.load_state_dict(state["memory"])
        self.updates = int(state["updates"])
        if self._offline is not None:
            self._offline.load_state_dict(state["offline"])

    def close(self) -> None:
        """Let go of the memory."""
        self.memory.close()
