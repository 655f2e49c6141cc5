"""How an agent that learns action values chooses among them while it collects experience.

A part of the DQN family, chosen by `agent/exploration`. Each environment draws for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from labrl.config.types import NonNegativeSchedule, ProbabilitySchedule
from labrl.schedules import value_at

Values = Callable[[], NDArray]
"""Action values when they are asked for, [num_envs, actions]: who explores needs none."""


class Exploration(Protocol):
    """A choice of actions. Built as `Target(config)`; has no state but that of the generator it is given."""

    noisy: bool
    """Whether all exploration comes from the noise of the network."""

    def choose(
        self,
        values: Values,
        shape: tuple[int, int],
        frame: int,
        generator: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """One action for each environment, counted from 0, [num_envs]; shape: (num_envs, actions).

        mask: which actions are valid, [num_envs, actions]; the values of the others are minus infinity.
        """
        ...

    def strength(self, frame: int) -> float:
        """What a metrics row calls `exploration`: the coefficient at `frame`."""
        ...


class KnownExploration(Exploration, Protocol):
    """One that can also say how likely it takes each action, which is what Sarsa asks for."""

    def probabilities(self, values: NDArray, frame: int) -> NDArray:
        """Of every action, where those with a value of minus infinity are not valid. [n, actions]"""
        ...


def uniform_valid(mask: NDArray[np.bool_], share: NDArray) -> NDArray[np.int64]:
    """A random one of the valid actions. mask: [n, actions]; share: uniform in [0, 1), [n]. Returns [n]."""
    rank = (share * mask.sum(1)).astype(np.int64)
    return (mask.cumsum(1) > rank[:, None]).argmax(1)


def epsilon_greedy(
    values: Values,
    shape: tuple[int, int],
    epsilon: float,
    generator: np.random.Generator,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """With probability `epsilon` a uniformly random valid action, else the one of the largest value.

    Every environment tosses its own coin. shape: (num_envs, actions); mask: of that shape. [num_envs].
    """
    if epsilon <= 0:
        return values().argmax(1)
    num_envs, num_actions = shape
    # Lists, because each operation on an array costs more than a few numbers do.
    draws = generator.random((2, num_envs))
    if mask is not None:
        return np.where(draws[0] < epsilon, uniform_valid(mask, draws[1]), values().argmax(1))
    coins, choices = draws.tolist()
    explorers = [env for env, coin in enumerate(coins) if coin < epsilon]
    action = values().argmax(1) if len(explorers) < num_envs else np.empty(num_envs, np.int64)
    for env in explorers:
        action[env] = int(choices[env] * num_actions)
    return action


@dataclass(kw_only=True)
class EpsilonGreedyConfig:
    """Mostly the best action, sometimes a random one (Watkins, 1989)."""

    epsilon: ProbabilitySchedule
    """Probability of a random action, in [0, 1]."""


class EpsilonGreedy:
    """A coin for each environment, tossed at each step."""

    Config = EpsilonGreedyConfig
    noisy = False

    def __init__(self, config: EpsilonGreedyConfig) -> None:
        self._config = config

    def choose(
        self,
        values: Values,
        shape: tuple[int, int],
        frame: int,
        generator: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """[num_envs]"""
        return epsilon_greedy(values, shape, self.strength(frame), generator, mask)

    def probabilities(self, values: NDArray, frame: int) -> NDArray:
        """Of every action, where those with a value of minus infinity are not valid. [n, actions]"""
        valid, epsilon = values > -np.inf, self.strength(frame)
        probability = epsilon * valid / valid.sum(1, keepdims=True)
        probability[np.arange(len(values)), values.argmax(1)] += 1 - epsilon
        return probability

    def strength(self, frame: int) -> float:
        """Epsilon."""
        return value_at(self._config.epsilon, frame)


@dataclass(kw_only=True)
class BoltzmannConfig:
    """The better an action, the more often (Sutton & Barto, 2018, eq. 2.11)."""

    temperature: NonNegativeSchedule
    """Temperature of the softmax over the values, in their unit, >= 0; 0: always the best action."""


class Boltzmann:
    """Probabilities proportional to exp(Q / temperature)."""

    Config = BoltzmannConfig
    noisy = False

    def __init__(self, config: BoltzmannConfig) -> None:
        self._config = config

    def choose(
        self,
        values: Values,
        shape: tuple[int, int],
        frame: int,
        generator: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """By the Gumbel-max trick, multiplied by the temperature so that it may be 0. [num_envs]"""
        return (values() + self.strength(frame) * generator.gumbel(size=shape)).argmax(1)

    def probabilities(self, values: NDArray, frame: int) -> NDArray:
        """Of every action, where those with a value of minus infinity are not valid. [n, actions]"""
        best = values.max(1, keepdims=True)
        temperature = self.strength(frame)
        weight = np.exp((values - best) / temperature) if temperature > 0 else (values == best).astype(float)
        return weight / weight.sum(1, keepdims=True)

    def strength(self, frame: int) -> float:
        """Temperature."""
        return value_at(self._config.temperature, frame)


@dataclass(kw_only=True)
class NetworkNoiseConfig:
    """The best action of a network with noisy weights (Fortunato et al., 2018, arXiv:1706.10295)."""


class NetworkNoise:
    """Always the best action, by weights that differ from step to step and between environments."""

    Config = NetworkNoiseConfig
    noisy = True

    def __init__(self, config: NetworkNoiseConfig) -> None:
        pass

    def choose(
        self,
        values: Values,
        shape: tuple[int, int],
        frame: int,
        generator: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """[num_envs]"""
        return values().argmax(1)

    def strength(self, frame: int) -> float:
        """None of its own."""
        return 0.0
