"""An example agent: PPO with random network distillation (Burda et al., 2018, arXiv:1810.12894)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from labrl.agents.ppo import PPO, PPOConfig
from labrl.clock import Clock
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Step
from labrl.types import NonNegativeFloat, PositiveFloat


@dataclass(kw_only=True)
class RNDPPOConfig(PPOConfig):
    """Options of the agent, in addition to those of PPO."""

    novelty_coef: NonNegativeFloat
    """Weight of the reward for novel observations, >= 0."""
    predictor_lr: PositiveFloat
    """Learning rate of the predictor, > 0."""


class RNDPPO(PPO):
    """Add a reward for observations for which the output of a random network is still hard to predict."""

    Config = RNDPPOConfig

    def __init__(
        self, config: RNDPPOConfig, spaces: Spaces, clock: Clock, streams: Streams, compute: Compute
    ) -> None:
        super().__init__(config, spaces, clock, streams, compute)
        size = gym.spaces.flatdim(spaces.observation)
        with torch.random.fork_rng(devices=[]):  # leaves the global generator as it was
            torch.manual_seed(streams.seed_of("rnd"))
            self._random, self._predictor = (
                nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2)
            )
        self._optimizer = torch.optim.Adam(self._predictor.parameters(), config.predictor_lr)

    def observe(self, step: Step) -> None:
        """Add the error of the predictor to the rewards of the learner, and reduce this error."""
        seen = torch.from_numpy(step.next_observation).float().flatten(1)
        error = (self._predictor(seen) - self._random(seen).detach()).square().mean(1)  # [num_envs]
        self._optimizer.zero_grad()
        error.mean().backward()
        self._optimizer.step()
        novelty = self.config.novelty_coef * error.detach().numpy()
        super().observe(dataclasses.replace(step, reward=step.reward + novelty))

    def modules(self) -> dict[str, nn.Module]:
        """Return all networks; the summary counts their weights."""
        return {**super().modules(), "predictor": self._predictor}

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return the networks that choose actions."""
        return super().modules()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that affects the future. The random network follows from the seed."""
        predictor, optimizer = self._predictor.state_dict(), self._optimizer.state_dict()
        return {**super().state_dict(), "predictor": predictor, "predictor_optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._predictor.load_state_dict(state["predictor"])
        self._optimizer.load_state_dict(state["predictor_optimizer"])
