"""TD3+BC (Fujimoto & Gu, 2021, arXiv:2106.06860): TD3 for offline data (`agent/offline`).

The policy maximizes the first critic's values and stays close to the actions of the data. Observations are
normalized with the mean and standard deviation of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Actor
from labrl.agents.replay_agent import ReplayActor
from labrl.agents.td3 import TD3, TD3Config
from labrl.memory import Transitions
from labrl.networks.critics import PolicyNetwork
from labrl.types import NonNegativeFloat

EPSILON = 1e-3
"""Number added to the standard deviation of each component of the observation."""


@dataclass(kw_only=True)
class TD3BCConfig(TD3Config):
    """Options of TD3+BC."""

    alpha: NonNegativeFloat
    """Weight of the value relative to imitation, alpha in eq. 5, >= 0; 0: behavior cloning."""
    normalize_observations: bool
    """Whether observations are normalized with the mean and standard deviation of the data of `offline`, if
    there is any."""


def cloning_loss(value: Tensor, action: Tensor, stored: Tensor, alpha: float) -> Tensor:
    """Compute -lambda mean Q(s, pi(s)) + mean (pi(s) - a)^2 with lambda = alpha / mean |Q(s, pi(s))|, eq. 5.

    value: Q of the policy's actions, [batch]; action, stored: actions of the policy and of the data, [batch,
    size]. Returns a scalar.
    """
    weight = alpha / value.detach().abs().mean()
    return (action - stored).square().mean() - weight * value.mean()


class Normalization(nn.Module):
    """Normalization of observations as a module, which copies of the agent need in addition to the policy."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: NDArray, deviation: NDArray) -> None:
        """mean, deviation: mean and standard deviation of the observations, [*obs] each."""
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("deviation", torch.tensor(deviation + EPSILON, dtype=torch.float32))

    def forward(self, observation: Tensor) -> Tensor:
        """Return normalized observations. [batch, *obs]"""
        return (observation - self.mean) / self.deviation


class TD3BC(TD3):
    """TD3 with imitation in the policy's loss, and normalized observations."""

    Config = TD3BCConfig
    NAME = "td3_bc"
    # The weight of the value depends on the whole minibatch, so it cannot be computed for parts of one.
    TRAITS = replace(TD3.TRAITS, data_parallel=False, loss_is_mean=False, graphs=False)

    def __init__(self, config: TD3BCConfig, **runtime: Any) -> None:
        """Take the same arguments as `TD3`."""
        super().__init__(config, **runtime)
        self._alpha = config.alpha
        self._normalization: Normalization | None = None
        if config.normalize_observations and config.offline is not None:
            shape = runtime["spaces"].observation.shape or ()
            # A copy that only acts has no data; it receives mean and deviation with the policy.
            data = self.experience.observation_statistics() or (np.zeros(shape), np.ones(shape))
            self._normalization = Normalization(*data)

    def layout(self, observation: NDArray) -> Any:
        """Return observations, normalized if the options say so, in the networks' layout. [n, *obs]"""
        plain = super().layout(observation)
        if self._normalization is None:
            return plain
        with torch.inference_mode():
            return self._normalization(torch.from_numpy(np.asarray(plain, np.float32))).numpy()

    def policy_loss(self, policy: PolicyNetwork, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Compute `cloning_loss` of a minibatch."""
        action = policy(batch.observation).tanh()
        value = self.frozen_critics(batch.observation, action, first=True)[0]
        loss = cloning_loss(value, action, batch.action, self._alpha)
        return loss, loss.detach().unsqueeze(0)

    def actor(self, sampled: bool) -> Actor:
        """Return the policy and the normalization of its observations as one module."""
        actor = super().actor(sampled)
        assert isinstance(actor, ReplayActor)
        actor.normalization = self._normalization
        return actor

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks of TD3 and the normalization of observations."""
        return {**super().modules(), **self._normalizes()}

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return the policy and the normalization of observations."""
        return {**super().acting_modules(), **self._normalizes()}

    def _normalizes(self) -> dict[str, nn.Module]:
        return {} if self._normalization is None else {"normalization": self._normalization}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of TD3 and of the normalization."""
        normalization = None if self._normalization is None else self._normalization.state_dict()
        return {**super().state_dict(), "normalization": normalization}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        super().load_state_dict(state)
        if self._normalization is not None:
            self._normalization.load_state_dict(state["normalization"])
