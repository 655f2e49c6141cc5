"""A deterministic policy over a box, and the noise that it explores with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.action_noise import ActionNoise
from labrl.agents.replay_actor_critic import ReplayActorCritic, ReplayActorCriticConfig
from labrl.agents.target_network import Delayed
from labrl.clock import Clock
from labrl.config.component import Component
from labrl.networks.box_actions import BoxActions
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams
from labrl.step import Step


@dataclass(kw_only=True)
class DeterministicConfig(ReplayActorCriticConfig):
    """Options of agents with a deterministic policy."""

    noise: Component
    """Noise added to actions in training."""
    target: Component
    """How the target networks of policy and critics follow the online ones."""


class TanhActions:
    """tanh of a network's outputs, rescaled to a box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self._box = BoxActions(space)
        self.stored: gym.Space[Any] = self._box.stored
        self.num_outputs = self._box.size

    def best(self, outputs: NDArray) -> NDArray:
        """[n, size]"""
        return np.tanh(outputs)

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """[count, size]"""
        return self._box.random(count, generator)

    def to_env(self, action: NDArray) -> NDArray:
        """[n, *action]"""
        return self._box.to_env(action)


class DeterministicActorCritic(ReplayActorCritic):
    """Acts by tanh of the policy's outputs plus noise; policy and critics have delayed twins."""

    NAME: str

    def __init__(
        self,
        config: DeterministicConfig,
        spaces: Spaces,
        clock: Clock,
        streams: Streams,
        compute: Compute,
    ) -> None:
        assert isinstance(spaces.action, gym.spaces.Box)
        actions = TanhActions(spaces.action)
        super().__init__(config, spaces, clock, streams, compute, actions)
        self._noise: ActionNoise = config.noise.build(num_envs=spaces.num_envs, size=actions.num_outputs)
        self._target_policy = Delayed(self._policy, config.target.build())
        self._target_critics = Delayed(self._critics, config.target.build())

    @classmethod
    def check(cls, config: DeterministicConfig, spaces: Spaces) -> None:
        """Raises InputError for spaces in which it cannot act or that its networks cannot read."""
        cls.check_spaces(cls.NAME, config, spaces)

    @property
    def _delayed(self) -> Mapping[str, Delayed[Any]]:
        return {"target_policy": self._target_policy, "target_critics": self._target_critics}

    def _explore(self, outputs: NDArray) -> NDArray:
        noise = self._noise.sample(self._clock.frame, self._policy_stream)
        return np.clip(np.tanh(outputs) + noise, -1, 1)

    def observe(self, step: Step) -> None:
        """Remember the outcome of the last actions."""
        super().observe(step)
        if step.episode_over.any():
            self._noise.begin(step.episode_over)

    def metrics(self) -> dict[str, float]:
        """Averages over some 100 updates; coefficients at this frame."""
        return {**super().metrics(), "exploration": self._noise.strength(self._clock.frame)}

    def state_dict(self) -> dict[str, Any]:
        """What every such agent remembers, and the noise."""
        return {**super().state_dict(), "noise": self._noise.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        super().load_state_dict(state)
        self._noise.load_state_dict(state["noise"])
