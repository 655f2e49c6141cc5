"""Recorded episodes: a seed and the actions since, which are all there is to an episode.

session_<k>/episodes/best.npz   the episode with the highest return
session_<k>/episodes/last.npz   the latest one
session_<k>/episodes/<frame>.npz
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.errors import DamagedFileError
from labrl.storage.atomic import write_atomic
from labrl.storage.folder import check_format

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """One whole episode, to be played again."""

    seed: int
    """Seed with which the environment was reset."""
    actions: NDArray
    """Actions as the environment got them, in the narrowest type that holds them. [length, *action]"""
    episode_return: float
    """Undiscounted sum of the raw rewards."""
    length: int
    """Agent steps."""
    truncated: bool
    """Whether a time limit ended it."""
    final_observation: str
    """`checksum` of the last observation."""
    frame: int
    """Frames of training when it had been played."""
    source: str
    """`training`, or `evaluation` in an environment of its own."""
    environment: int
    """Index in the vector environment."""
    number: int
    """Episodes that this environment had played before."""
    env: dict[str, Any]
    """The environment's node of the configuration, as plain data."""

    def plain(self) -> dict[str, Any]:
        """Return the episode as plain data and one array, for a checkpoint: `RecordedEpisode(**plain)` is
        equal to this one."""
        return dict(vars(self))


def checksum(observation: NDArray) -> str:
    """SHA-256 of an array's type, shape and elements."""
    array = np.ascontiguousarray(observation)
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def write_episode(folder: Path, name: str, episode: RecordedEpisode) -> None:
    """Replace `<name>.npz` in `folder`: `actions`, and all else as JSON in `facts`. Raises OSError."""
    facts = {name: value for name, value in episode.plain().items() if name != "actions"}
    content = io.BytesIO()
    text = json.dumps({"format_version": FORMAT_VERSION, **facts})
    np.savez_compressed(content, actions=episode.actions, facts=np.array(text))
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"{name}.npz", content.getvalue(), durable=False)


def read_episode(path: Path) -> RecordedEpisode:
    """Return the episode that `write_episode` wrote. Raises DamagedFileError where the file is damaged,
    InputError where a newer labrl wrote it."""
    try:
        with np.load(path, allow_pickle=False) as content:
            actions, facts = content["actions"], json.loads(str(content["facts"]))
        version = facts.pop("format_version")
        check_format(path, version, FORMAT_VERSION)
        return RecordedEpisode(actions=actions, **facts)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        # NumPy's own advice is to load it unsafely.
        reason = "it is not a NumPy archive" if "allow_pickle" in str(error) else str(error)
        raise DamagedFileError(f"{path} is damaged: {reason}", key=str(path)) from error


def recorded_names(folder: Path) -> list[str]:
    """`best`, `last`, then frames in order, of what lies in `folder`."""
    names = [path.stem for path in folder.glob("*.npz")]
    return sorted(names, key=lambda name: (name.isdigit(), int(name) if name.isdigit() else 0, name))
