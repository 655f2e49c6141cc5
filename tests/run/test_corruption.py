"""Tests of corrupted checkpoints: every damage is detected, and the newest intact checkpoint is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labrl.run.checkpoint import CheckpointStore

FILES = ("manifest.json", "state.pt")
FRAMES = (100, 200, 300)
TRIES = 40
"""Number of random tries of each kind of damage."""


def some_state(frame: int) -> dict[str, Any]:
    weights = torch.randn(17, 5, generator=torch.Generator().manual_seed(frame))
    return {"frame": frame, "weights": weights, "window": np.arange(frame, frame + 5)}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with intact checkpoints at FRAMES."""
    folder = tmp_path_factory.mktemp("checkpoints")
    store = CheckpointStore(folder, keep_last=len(FRAMES))
    for frame in FRAMES:
        store.save(frame, some_state(frame))
    return folder


def random_file(checkpoint: Path, rng: np.random.Generator) -> Path:
    return checkpoint / str(rng.choice(FILES))


def truncate_file(checkpoint: Path, rng: np.random.Generator) -> int:
    file = random_file(checkpoint, rng)
    content = file.read_bytes()
    file.write_bytes(content[: int(rng.integers(len(content)))])
    return 1


def overwrite_bytes(checkpoint: Path, rng: np.random.Generator) -> int:
    """Flip one bit, as failing memory does, or overwrite a few bytes, as a lost disk block does."""
    file = random_file(checkpoint, rng)
    content = bytearray(file.read_bytes())
    place = int(rng.integers(len(content)))
    if rng.random() < 0.5:
        content[place] ^= 1 << int(rng.integers(8))
    else:
        end = min(place + int(rng.integers(1, 64)), len(content))
        before = bytes(content[place:end])
        content[place:end] = bytes(len(before)) if any(before) else b"\xff" * len(before)
    file.write_bytes(bytes(content))
    return 1


def delete_file(checkpoint: Path, rng: np.random.Generator) -> int:
    random_file(checkpoint, rng).unlink()
    return 1


def swap_with_previous_checkpoint(checkpoint: Path, rng: np.random.Generator) -> int:
    """Swap a file with that of the previous checkpoint, which damages both."""
    name = str(rng.choice(FILES))
    other = checkpoint.parent / f"frame_{FRAMES[-2]:012d}"
    content = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes((other / name).read_bytes())
    (other / name).write_bytes(content)
    return 2


DAMAGES = (truncate_file, overwrite_bytes, delete_file, swap_with_previous_checkpoint)
"""Functions that damage the newest checkpoint; each returns the number of checkpoints damaged."""


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_detected_and_the_newest_intact_checkpoint_is_loaded(
    intact: Path, tmp_path: Path, damage: Callable[[Path, np.random.Generator], int]
) -> None:
    for seed in range(TRIES):
        folder = tmp_path / str(seed)
        shutil.copytree(intact, folder)
        broken = damage(folder / f"frame_{FRAMES[-1]:012d}", np.random.default_rng(seed))
        store = CheckpointStore(folder, keep_last=len(FRAMES))
        announced = store.newest_whole_frame()
        found = store.latest()
        assert found is not None
        assert announced == found.frame
        assert found.frame == found.state["frame"] == FRAMES[-1 - broken], f"{damage.__name__}, seed {seed}"
        assert torch.equal(found.state["weights"], some_state(found.frame)["weights"])
        assert len(store.broken) == broken
        assert next(iter(store.broken)).name == f"frame_{FRAMES[-1]:012d}"
        shutil.rmtree(folder)
