"""Recorded episodes. Each is stored as a seed and the subsequent actions, which reproduce the episode.

session_<k>/episodes/best.npz       the episode with the highest return
session_<k>/episodes/last.npz       the latest episode
session_<k>/episodes/<frame>.npz    one episode of each evaluation
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
"""Kind of episodes: `training` episodes, from which the agent learns, or those in separate `evaluation`
environments."""


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """A complete episode that can be played back."""

    seed: int
    """Seed with which the environment was reset."""
    actions: NDArray
    """Actions as passed to the environment, in the smallest data type that can represent them. [length,
    *action]"""
    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Number of agent steps."""
    truncated: bool
    """Whether a time limit ended the episode."""
    final_observation: str
    """Result of `checksum` for the last observation."""
    frame: int
    """Training frame at which the episode ended."""
    source: Source
    environment: int
    """Index of the environment in the vector environment."""
    number: int
    """Number of episodes that this environment had played before."""
    env: dict[str, Any]
    """The environment's node of the configuration, as plain data."""

    def plain(self) -> dict[str, Any]:
        """Return the episode as plain data and one array, for a checkpoint. `RecordedEpisode(**plain)`
        restores the episode."""
        return dict(vars(self))


def checksum(observation: NDArray) -> str:
    """Return the SHA-256 of an array's data type, shape and elements."""
    array = np.ascontiguousarray(observation)
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def write_episode(folder: Path, name: str, episode: RecordedEpisode) -> None:
    """Write an episode to `<name>.npz` in `folder`, replacing an older file: `actions` as an array,
    everything else as JSON in `facts`. Raises OSError."""
    facts = {name: value for name, value in episode.plain().items() if name != "actions"}
    content = io.BytesIO()
    text = json.dumps({"format_version": FORMAT_VERSION, **facts})
    np.savez_compressed(content, actions=episode.actions, facts=np.array(text))
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"{name}.npz", content.getvalue(), durable=False)


def read_episode(path: Path) -> RecordedEpisode:
    """Read an episode from a file that `write_episode` wrote. Raises DamagedFileError if the file is damaged,
    and InputError if this version of labrl cannot read its format."""
    try:
        with np.load(path, allow_pickle=False) as content:
            actions, facts = content["actions"], json.loads(str(content["facts"]))
        version = facts.pop("format_version")
        check_format(path, version, FORMAT_VERSION)
        return RecordedEpisode(actions=actions, **facts)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        # NumPy's own message recommends loading the file unsafely.
        reason = "it is not a NumPy archive" if "allow_pickle" in str(error) else str(error)
        raise DamagedFileError.about(path, f"it is damaged: {reason}") from error


def recorded_names(folder: Path) -> list[str]:
    """Return the names of the recorded episodes in `folder`: `best`, `last`, then frames in increasing
    order."""
    names = [path.stem for path in folder.glob("*.npz")]
    return sorted(names, key=lambda name: (name.isdigit(), int(name) if name.isdigit() else 0, name))
