"""Named streams of random numbers, all derived from one seed. labrl never uses a global generator."""

from __future__ import annotations

import random
import secrets
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

MAX_SEED = 2**31 - 1
"""Largest seed that every backend (ALE, Gymnasium, torch) accepts."""


def draw_seed() -> int:
    """Draw a seed from the operating system, for a run without a seed. The run must record the result."""
    return secrets.randbelow(MAX_SEED)


def derived_seed(*path: int | str) -> int:
    """Return an integer in [0, 2**31) that depends only on the elements of `path`."""
    entropy = [zlib.crc32(part.encode()) if type(part) is str else part for part in path]
    words = np.array(entropy, np.uint32)  # a list gives the same numbers, but takes three times as long
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & MAX_SEED


def session_seed(seed: int, session: int) -> int:
    """Return the seed of the session with index `session` in a trial with seed `seed`."""
    return derived_seed(seed, "session", session)


def episode_seed(seed: int, env: int, episode: int) -> int:
    """Return the seed of the episode with index `episode` in environment `env` of a session with `seed`."""
    return derived_seed(seed, "episode", env, episode)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Context manager: put the global generators of Python, NumPy and torch back to their states at the end,
    because code of users may draw from them."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])


class Streams:
    """Independent random generators by name. For a given seed, a name always gives the same stream.

    Using a new name does not change the streams of other names.
    """

    def __init__(self, seed: int, rank: int = 0) -> None:
        """rank: rank of this process in the session; each rank has its own streams."""
        self.seed = seed
        self._rank = ("rank", rank) if rank else ()
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[str, torch.Generator] = {}

    def seed_of(self, *path: int | str) -> int:
        """Return a seed derived from `path`, which is the same on all ranks."""
        return derived_seed(self.seed, *path)

    def numpy(self, name: str) -> np.random.Generator:
        """Return the NumPy generator called `name`."""
        if name not in self._numpy:
            self._numpy[name] = np.random.default_rng(derived_seed(self.seed, "numpy", name, *self._rank))
        return self._numpy[name]

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """Return the torch generator called `name`, on `device`."""
        import torch  # late: a grid asks for the spaces of its environments without PyTorch

        if name not in self._torch:
            generator = torch.Generator(device=device)
            generator.manual_seed(derived_seed(self.seed, "torch", name, *self._rank))
            self._torch[name] = generator
        return self._torch[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every stream that has been used."""
        return {
            "seed": self.seed,
            "numpy": {name: rng.bit_generator.state for name, rng in self._numpy.items()},
            "torch": {name: rng.get_state() for name, rng in self._torch.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore every saved stream in place, so that parts that hold its generator continue the stream."""
        self.seed = int(state["seed"])
        for name, saved in state["numpy"].items():
            self.numpy(name).bit_generator.state = saved
        for name, saved in state["torch"].items():
            self.torch(name).set_state(saved)
