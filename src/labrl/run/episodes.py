"""Recorded episodes, each stored as a seed and the actions since, which reproduce the episode.

session_<k>/episodes/best.npz       the episode with the highest return
session_<k>/episodes/last.npz       the latest one
session_<k>/episodes/<frame>.npz    one of each evaluation
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labrl.errors import DamagedFileError
from labrl.run.atomic import write_atomic
from labrl.run.folder import check_format

FORMAT_VERSION = 1

Source = Literal["training", "evaluation"]
"""Kind of episodes: those that the agent learned from, or those of separate evaluation environments."""


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """One whole episode that can be played again."""

    seed: int
    """Seed with which the environment was reset."""
    actions: NDArray
    """Actions as passed to the environment, in the smallest type that holds them. [length, *action]"""
    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Agent steps."""
    truncated: bool
    """Whether a time limit ended the episode."""
    final_observation: str
    """Result of `checksum` for the last observation."""
    frame: int
    """Training frame at which the episode ended."""
    source: Source
    environment: int
    """Index in the vector environment."""
    number: int
    """Number of episodes that this environment had played before."""
    env: dict[str, Any]
    """The environment's node of the configuration, as plain data."""

    def plain(self) -> dict[str, Any]:
        """Return the episode as plain data and one array, for a checkpoint. `RecordedEpisode(**plain)`
        restores it."""
        return dict(vars(self))


def checksum(observation: NDArray) -> str:
    """Return the SHA-256 of an array's type, shape and elements."""
    array = np.ascontiguousarray(observation)
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def write_episode(folder: Path, name: str, episode: RecordedEpisode) -> None:
    """Replace `<name>.npz` in `folder`: the array `actions`, and everything else as JSON in `facts`. Raises
    OSError."""
    facts = {name: value for name, value in episode.plain().items() if name != "actions"}
    content = io.BytesIO()
    text = json.dumps({"format_version": FORMAT_VERSION, **facts})
    np.savez_compressed(content, actions=episode.actions, facts=np.array(text))
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"{name}.npz", content.getvalue(), durable=False)


def read_episode(path: Path) -> RecordedEpisode:
    """Return the episode in a file of `write_episode`. Raises DamagedFileError if the file is damaged, and
    InputError if a newer version of labrl wrote it."""
    try:
        with np.load(path, allow_pickle=False) as content:
            actions, facts = content["actions"], json.loads(str(content["facts"]))
        version = facts.pop("format_version")
        check_format(path, version, [FORMAT_VERSION])
        return RecordedEpisode(actions=actions, **facts)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        # NumPy's own message recommends to load it unsafely.
        reason = "it is not a NumPy archive" if "allow_pickle" in str(error) else str(error)
        raise DamagedFileError.about(path, f"it is damaged: {reason}") from error


def recorded_names(folder: Path) -> list[str]:
    """Return the names of the episodes in `folder`: `best`, `last`, then frames in order."""
    names = [path.stem for path in folder.glob("*.npz")]
    return sorted(names, key=lambda name: (name.isdigit(), int(name) if name.isdigit() else 0, name))
