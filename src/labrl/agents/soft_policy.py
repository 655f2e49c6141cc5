"""Stochastic policies of soft actor-critics, over boxes and over choices, and their temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.replay_actor_critic import Actions
from labrl.networks.box_actions import LOG_STD_RANGE, BoxActions, gaussian_parameters, squashed_sample
from labrl.networks.optimizers import Adam, AdamConfig


class SoftPolicy(Actions, Protocol):
    """A policy, and what the outputs of critics mean for it.

    A choice is what the policy does in a state: an action that was sampled, or the probabilities of all.
    """

    usual_entropy: float
    """Entropy to aim at where nothing else is said."""
    largest_entropy: float
    """Of uniform actions."""

    def explore(self, outputs: NDArray, generator: np.random.Generator) -> NDArray:
        """Sampled actions. [n, num_outputs] -> [n, *stored]"""
        ...

    def noise(self, count: int, batch_size: int, generator: torch.Generator) -> Tensor:
        """What `count` times `choose` is given, [count, batch_size, ...]."""
        ...

    def choose(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The choice in each state, and an unbiased estimate of the entropy there, [batch]."""
        ...

    def smaller(self, values: Tensor, choice: Tensor) -> Tensor:
        """Mean over the choice of the smallest critic's values. As critics give them -> [batch]"""
        ...

    def taken(self, values: Tensor, action: Tensor) -> Tensor:
        """Values of the actions of a memory. As critics give them -> [critics, batch]"""
        ...

    def joined(self, action: Tensor, choice: Tensor) -> Tensor:
        """What critics are given for actions of a memory and, after them, choices. [2 batch, ...]"""
        ...


class SquashedGaussian:
    """Over a box: tanh of a Gaussian whose mean and deviation depend on the state."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self._box = BoxActions(space)
        self.stored: gym.Space[Any] = self._box.stored
        self.num_outputs = 2 * self._box.size
        self.usual_entropy = -float(self._box.size)  # Haarnoja et al., 2018, appendix D
        self.largest_entropy = self._box.size * math.log(2)

    def best(self, outputs: NDArray) -> NDArray:
        """tanh of the mean. [n, size]"""
        return np.tanh(outputs[:, : self._box.size])

    def explore(self, outputs: NDArray, generator: np.random.Generator) -> NDArray:
        """[n, size]"""
        mean, log_std = outputs[:, : self._box.size], outputs[:, self._box.size :]
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        return np.tanh(mean + np.exp(np.clip(log_std, *LOG_STD_RANGE)) * noise)

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """[count, size]"""
        return self._box.random(count, generator)

    def to_env(self, action: NDArray) -> NDArray:
        """[n, *action]"""
        return self._box.to_env(action)

    def noise(self, count: int, batch_size: int, generator: torch.Generator) -> Tensor:
        """Standard normal. [count, batch_size, size]"""
        return torch.randn((count, batch_size, self._box.size), generator=generator, device=generator.device)

    def choose(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """One action for each state, [batch, size], and -log pi of it, [batch]."""
        action, log_prob = squashed_sample(*gaussian_parameters(outputs), noise)
        return action, -log_prob

    def smaller(self, values: Tensor, choice: Tensor) -> Tensor:
        """[critics, batch] -> [batch]"""
        return values.amin(0)

    def taken(self, values: Tensor, action: Tensor) -> Tensor:
        """The critics looked at that action alone. [critics, batch]"""
        return values

    def joined(self, action: Tensor, choice: Tensor) -> Tensor:
        """[2 batch, size]"""
        return torch.cat([action, choice])


class Softmax:
    """Over choices: expectations are sums over all of them (Christodoulou, 2019, arXiv:1910.07207)."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.num_outputs, self._first = int(space.n), int(space.start)
        self.stored: gym.Space[Any] = gym.spaces.Discrete(self.num_outputs)
        self.largest_entropy = math.log(self.num_outputs)
        # The paper's 0.98 of the largest leaves a policy next to nothing to choose.
        self.usual_entropy = 0.6 * self.largest_entropy

    def best(self, outputs: NDArray) -> NDArray:
        """The most likely action. [n]"""
        return outputs.argmax(1)

    def explore(self, outputs: NDArray, generator: np.random.Generator) -> NDArray:
        """By the Gumbel-max trick. [n]"""
        return (outputs + generator.gumbel(size=outputs.shape)).argmax(1)

    def random(self, count: int, generator: np.random.Generator) -> NDArray:
        """[count]"""
        return generator.integers(self.num_outputs, size=count)

    def to_env(self, action: NDArray) -> NDArray:
        """Counted from the space's first action. [n]"""
        return action + self._first

    def noise(self, count: int, batch_size: int, generator: torch.Generator) -> Tensor:
        """None is needed. [count, batch_size, 0]"""
        return torch.empty((count, batch_size, 0), device=generator.device)

    def choose(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [batch, actions], and the entropy, [batch]."""
        log_probability = torch.log_softmax(outputs, dim=1)
        probability = log_probability.exp()
        return probability, -(probability * log_probability).sum(1)

    def smaller(self, values: Tensor, choice: Tensor) -> Tensor:
        """[critics, batch, actions] -> [batch]"""
        return (values.amin(0) * choice).sum(1)

    def taken(self, values: Tensor, action: Tensor) -> Tensor:
        """[critics, batch, actions] -> [critics, batch]"""
        index = action.view(1, -1, 1).expand(len(values), -1, 1)
        return values.gather(2, index).squeeze(2)

    def joined(self, action: Tensor, choice: Tensor) -> Tensor:
        """Critics give values of all actions and look at none. [batch]"""
        return action


def soft_policy(space: gym.Space[Any]) -> SoftPolicy:
    """The policy for a Discrete space or a bounded Box."""
    if isinstance(space, gym.spaces.Discrete):
        return Softmax(space)
    assert isinstance(space, gym.spaces.Box)
    return SquashedGaussian(space)


class Temperature:
    """The weight of entropy, alpha, learned so that the policy's entropy comes to a target.

    Gradient descent on log alpha along E[entropy] - target, the direction of eq. 18 (Haarnoja et al., 2018,
    arXiv:1812.05905) without its factor alpha, as in the authors' code.
    """

    def __init__(self, initial: float, device: torch.device) -> None:
        self._log = nn.Parameter(torch.tensor([math.log(initial)], device=device))
        self._log.grad = torch.zeros_like(self._log)
        self._optimizer = Adam(AdamConfig(eps=1e-8, beta1=0.9), [self._log], max_grad_norm=None)

    @property
    def value(self) -> float:
        """alpha"""
        return math.exp(float(self._log.detach()))

    def update(self, entropy: Tensor, target: float, lr: float) -> None:
        """One step of Adam; entropy: the policy's mean, a scalar."""
        assert self._log.grad is not None
        self._log.grad.copy_(entropy - target)
        self._optimizer.step(lr)

    def state_dict(self) -> dict[str, Any]:
        """log alpha and its optimizer."""
        return {"log": self._log.detach().clone(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        self._log.data.copy_(state["log"])
        self._optimizer.load_state_dict(state["optimizer"])
