"""Environments whose episodes follow from seed and actions, or do not, for the tests of this property."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import torch


class Line(gym.Env):
    """A random walk, whose episodes end at a distance of 1, and draw all numbers from `self.np_random`."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.episodes = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.begin(seed)
        self.episodes, self.steps = self.episodes + 1, 0
        self.x = 0.5 * self.draw()
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.x += 0.2 * int(action) - 0.1 + 0.6 * self.draw()
        return self.seen(), -abs(self.x), abs(self.x) > self.limit(), self.steps >= 40, {}

    def begin(self, seed: int | None) -> None:
        """Seed what is to be seeded."""

    def draw(self) -> float:
        """Return a random number in [-1, 1]."""
        return float(self.np_random.uniform(-1, 1))

    def limit(self) -> float:
        """Return the distance at which the episode ends."""
        return 1.0

    def seen(self) -> Any:
        return np.array([self.x, self.steps / 40], np.float32)


class OwnSimulator(Line):
    """Has a simulator with a generator of its own, which a reset seeds."""

    def begin(self, seed: int | None) -> None:
        self.simulator = np.random.default_rng(seed)

    def draw(self) -> float:
        return float(self.simulator.uniform(-1, 1))


class OwnGenerator(Line):
    """Makes its generator in the constructor, and ignores the seeds of resets."""

    def __init__(self, is_global: bool = False) -> None:
        super().__init__()
        self.generator: Any = np.random if is_global else np.random.default_rng(0)
        if is_global:
            np.random.seed(42)

    def draw(self) -> float:
        return float(self.generator.uniform(-1, 1))


class GlobalGenerator(Line):
    """Seeds a global generator in reset and draws from it, after some quiet steps, in step."""

    def __init__(self, kind: str = "numpy", quiet_steps: int = 0) -> None:
        super().__init__()
        self.kind, self.quiet_steps = kind, quiet_steps

    def begin(self, seed: int | None) -> None:
        seeds = {"numpy": np.random.seed, "python": random.seed, "torch": torch.manual_seed}
        seeds[self.kind](seed)

    def draw(self) -> float:
        if 0 < self.steps <= self.quiet_steps:
            return 0.0
        if self.kind == "torch":
            return float(torch.rand(()) * 2 - 1)
        return {"numpy": np.random.uniform, "python": random.uniform}[self.kind](-1.0, 1.0)


class Reseeds(Line):
    """Seeds its generator again in a step, from the operating system or from the number of the step."""

    def __init__(self, repeats: bool) -> None:
        super().__init__()
        self.repeats = repeats

    def draw(self) -> float:
        if self.steps == 3:
            self.np_random = np.random.default_rng(self.steps if self.repeats else None)
        return super().draw()


class ByEpisode(Line):
    """Ends episodes at a smaller distance after some episodes."""

    def limit(self) -> float:
        return 1.0 if self.episodes <= 4 else 0.4


class OneSimulator(Line):
    """Cannot be made more than `most` times."""

    made = 0

    def __init__(self, most: int) -> None:
        super().__init__()
        OneSimulator.made += 1
        if OneSimulator.made > most:
            raise OSError("no licence is left")
