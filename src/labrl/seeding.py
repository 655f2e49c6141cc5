"""Named streams of random numbers, all derived from one seed; labrl never draws from a global one."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

MAX_SEED = 2**31 - 1
"""Largest seed that every backend (ALE, Gymnasium, torch) accepts."""


def draw_seed() -> int:
    """A seed from the operating system, for a run that was given none; to be recorded."""
    return secrets.randbelow(MAX_SEED)


def derived_seed(*path: int | str) -> int:
    """An integer in [0, 2**31) that depends on every element of `path` and on nothing else."""
    entropy: list[Any] = list(path)
    for place, part in enumerate(path):
        if isinstance(part, str):
            entropy[place] = zlib.crc32(part.encode())
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & MAX_SEED


def session_seed(seed: int, session: int) -> int:
    """The seed of session number `session` of a trial with seed `seed`."""
    return derived_seed(seed, "session", session)


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The seed that starts episode number `episode` of environment `env` of a session."""
    return derived_seed(seed, "episode", env, episode)


class Streams:
    """Independent generators by name; each name always gives the same stream for a seed.

    Adding a new consumer under a new name leaves all other streams as they were.
    """

    def __init__(self, seed: int, rank: int = 0) -> None:
        """rank: of the process among those that train one session; each has streams of its own."""
        self.seed = seed
        self._rank = ("rank", rank) if rank else ()
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[str, torch.Generator] = {}

    def seed_of(self, *path: int | str) -> int:
        """A seed for one use, the same on all ranks."""
        return derived_seed(self.seed, *path)

    def numpy(self, name: str) -> np.random.Generator:
        """The NumPy generator called `name`."""
        if name not in self._numpy:
            self._numpy[name] = np.random.default_rng(derived_seed(self.seed, "numpy", name, *self._rank))
        return self._numpy[name]

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """The torch generator called `name`, on `device`."""
        if name not in self._torch:
            generator = torch.Generator(device=device)
            generator.manual_seed(derived_seed(self.seed, "torch", name, *self._rank))
            self._torch[name] = generator
        return self._torch[name]

    def state_dict(self) -> dict[str, Any]:
        """The state of every stream that was ever asked for."""
        return {
            "seed": self.seed,
            "numpy": {name: rng.bit_generator.state for name, rng in self._numpy.items()},
            "torch": {name: rng.get_state() for name, rng in self._torch.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set every saved stream back, in place, so that parts that hold one continue with it."""
        self.seed = int(state["seed"])
        for name, saved in state["numpy"].items():
            self.numpy(name).bit_generator.state = saved
        for name, saved in state["torch"].items():
            self.torch(name).set_state(saved)
