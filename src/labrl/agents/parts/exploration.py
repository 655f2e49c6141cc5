"""Exploration by agents that learn action values (`agent/exploration`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import InputError
from labrl.schedules import value_at
from labrl.step import Masks
from labrl.types import NonNegativeSchedule, ProbabilitySchedule


@dataclass(slots=True)
class Values:
    """Action values from which to choose, computed only if needed."""

    compute: Callable[[], NDArray]
    """Function that computes the values, [num_envs, actions], with minus infinity for invalid actions."""
    shape: tuple[int, int]
    """Number of environments and number of actions."""
    mask: Masks = None
    """Valid actions, [num_envs, actions]; None if all are valid."""


@dataclass(frozen=True, kw_only=True)
class ExplorationTraits:
    """Requirements and capabilities of an exploration strategy."""

    noisy: bool = False
    """Whether all exploration comes from noise in the network's weights."""
    probabilities: bool = False
    """Whether the class defines `probabilities`, which returns the probability of each action."""


class Exploration(ABC):
    """Chooses actions. Built as `Target(config)`; has no state except the generator that it receives."""

    TRAITS: ClassVar[ExplorationTraits] = ExplorationTraits()

    @abstractmethod
    def choose(self, values: Values, frame: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return one action for each environment, counted from 0. [num_envs]"""

    def probabilities(self, values: NDArray, frame: int) -> NDArray:
        """Return the probability of each action. values: minus infinity if invalid. [n, actions] each"""
        raise NotImplementedError

    def strength(self, frame: int) -> float:
        """Return the coefficient at `frame`, the column `exploration` of metrics rows; 0 if there is none."""
        return 0.0


def exploration_class(component: Component) -> type[Exploration]:
    """Load the class that `component` names. Raises InputError unless it derives from `Exploration`."""
    found = component.load()
    if isinstance(found, type) and issubclass(found, Exploration):
        return found
    raise InputError.about(
        component.named,
        "must be a class that derives from labrl.agents.parts.exploration.Exploration",
        "agent/exploration=epsilon_greedy, or change the class",
        code="target",
        key=component.key or "agent.exploration",
    )


def uniform_valid(mask: NDArray[np.bool_], share: NDArray) -> NDArray[np.int64]:
    """Return a uniformly chosen valid action for each row, [n].

    mask: valid actions, [n, actions]; share: uniform random numbers in [0, 1), [n].
    """
    rank = (share * mask.sum(1)).astype(np.int64)
    return (mask.cumsum(1) > rank[:, None]).argmax(1)


@dataclass(kw_only=True)
class EpsilonGreedyConfig:
    """Epsilon-greedy exploration: usually the best action, sometimes a random one (Watkins, 1989)."""

    epsilon: ProbabilitySchedule
    """Probability of a random action, in [0, 1]."""


class EpsilonGreedy(Exploration):
    """Takes a uniformly random valid action with probability epsilon, otherwise the best action."""

    Config = EpsilonGreedyConfig
    TRAITS = ExplorationTraits(probabilities=True)

    def __init__(self, config: EpsilonGreedyConfig) -> None:
        self._config = config

    def choose(self, values: Values, frame: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Choose an action for each environment independently. [num_envs]"""
        epsilon: Any = self._config.epsilon
        if type(epsilon) is not float:  # a call in every step only where epsilon is a schedule
            epsilon = value_at(epsilon, frame)
        if epsilon <= 0:
            return values.compute().argmax(1)
        num_envs, num_actions = values.shape
        draws = generator.random((2, num_envs))
        if values.mask is not None:
            at_random = uniform_valid(values.mask, draws[1])
            return np.where(draws[0] < epsilon, at_random, values.compute().argmax(1))
        # Use lists, because an operation on an array takes longer than one on a few numbers.
        chances, places = draws.tolist()
        action = values.compute().argmax(1) if max(chances) >= epsilon else np.empty(num_envs, np.int64)
        for env, chance in enumerate(chances):
            if chance < epsilon:
                action[env] = int(places[env] * num_actions)
        return action

    def probabilities(self, values: NDArray, frame: int) -> NDArray:
        """Return the probability of each action. values: minus infinity if invalid. [n, actions] each"""
        valid, epsilon = values > -np.inf, self.strength(frame)
        probability = epsilon * valid / valid.sum(1, keepdims=True)
        probability[np.arange(len(values)), values.argmax(1)] += 1 - epsilon
        return probability

    def strength(self, frame: int) -> float:
        """Return epsilon."""
        return value_at(self._config.epsilon, frame)


@dataclass(kw_only=True)
class BoltzmannConfig:
    """Boltzmann exploration: better actions are more likely (Sutton & Barto, 2018, eq. 2.11)."""

    temperature: NonNegativeSchedule
    """Temperature of the softmax over the values, in the unit of values, >= 0; 0: always the best action."""


class Boltzmann(Exploration):
    """Takes actions with probabilities proportional to exp(Q / temperature)."""

    Config = BoltzmannConfig
    TRAITS = ExplorationTraits(probabilities=True)

    def __init__(self, config: BoltzmannConfig) -> None:
        self._config = config

    def choose(self, values: Values, frame: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Choose by the Gumbel-max trick, with scaled noise, so that the temperature can be 0. [num_envs]"""
        return (values.compute() + self.strength(frame) * generator.gumbel(size=values.shape)).argmax(1)

    def probabilities(self, values: NDArray, frame: int) -> NDArray:
        """Return the probability of each action. values: minus infinity if invalid. [n, actions] each"""
        best = values.max(1, keepdims=True)
        temperature = self.strength(frame)
        weight = np.exp((values - best) / temperature) if temperature > 0 else (values == best).astype(float)
        return weight / weight.sum(1, keepdims=True)

    def strength(self, frame: int) -> float:
        """Return the temperature."""
        return value_at(self._config.temperature, frame)


@dataclass(kw_only=True)
class NetworkNoiseConfig:
    """Exploration by a network with noisy weights (Fortunato et al., 2018, arXiv:1706.10295)."""


class NetworkNoise(Exploration):
    """Takes the best action according to noisy weights, which are redrawn for each step and environment."""

    Config = NetworkNoiseConfig
    TRAITS = ExplorationTraits(noisy=True)

    def __init__(self, config: NetworkNoiseConfig) -> None:
        pass

    def choose(self, values: Values, frame: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Choose the best actions. [num_envs]"""
        return values.compute().argmax(1)
