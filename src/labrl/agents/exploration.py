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
        self, values: Values, shape: tuple[int, int], frame: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """One action for each environment, counted from 0, [num_envs]; shape: (num_envs, actions)."""
        ...

    def strength(self, frame: int) -> float:
        """What a metrics row calls `exploration`: the coefficient at `frame`."""
        ...


def epsilon_greedy(
    values: Values, shape: tuple[int, int], epsilon: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    """With probability `epsilon` a uniformly random action, else the one of the largest value.

    Every environment tosses its own coin. shape: (num_envs, actions). Returns [num_envs].
    """
    if epsilon <= 0:
        return values().argmax(1)
    num_envs, num_actions = shape
    # Lists, because each operation on an array costs more than a few numbers do.
    coins, choices = generator.random((2, num_envs)).tolist()
    explorers = [env for env, coin in enumerate(coins) if coin < epsilon]
    action = values().argmax(1) if len(explorers) < num_envs else np.empty(num_envs, np.int64)
    for env in explorers:
        action[env] = int(choices[env] * num_actions)
    return action


@dataclass(kw_only=True)
class EpsilonGreedyConfig:
    """Mostly the best action, sometimes a random one (Watkins, 1989)."""

    epsilon: ProbabilitySchedule = 0.1
    """Probability of a random action, in [0, 1]."""


class EpsilonGreedy:
    """A coin for each environment, tossed at each step."""

    Config = EpsilonGreedyConfig
    noisy = False

    def __init__(self, config: EpsilonGreedyConfig) -> None:
        self._config = config

    def choose(
        self, values: Values, shape: tuple[int, int], frame: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """[num_envs]"""
        return epsilon_greedy(values, shape, self.strength(frame), generator)

    def strength(self, frame: int) -> float:
        """Epsilon."""
        return value_at(self._config.epsilon, frame)


@dataclass(kw_only=True)
class BoltzmannConfig:
    """The better an action, the more often (Sutton & Barto, 2018, eq. 2.11)."""

    temperature: NonNegativeSchedule = 1.0
    """Difference of values that counts, in their unit, >= 0; 0: always the best action."""


class Boltzmann:
    """Probabilities proportional to exp(Q / temperature)."""

    Config = BoltzmannConfig
    noisy = False

    def __init__(self, config: BoltzmannConfig) -> None:
        self._config = config

    def choose(
        self, values: Values, shape: tuple[int, int], frame: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """By the Gumbel-max trick, multiplied by the temperature so that it may be 0. [num_envs]"""
        return (values() + self.strength(frame) * generator.gumbel(size=shape)).argmax(1)

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
        self, values: Values, shape: tuple[int, int], frame: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """[num_envs]"""
        return values().argmax(1)

    def strength(self, frame: int) -> float:
        """None of its own."""
        return 0.0
