"""Record episodes, each as a seed and its actions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labrl.errors import LabrlError
from labrl.run.episodes import RecordedEpisode, read_episode, write_episode
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate, Evaluated
from labrl.session.episodes import Highlights, Played

SECONDS_BETWEEN_WRITES = 10.0
"""Shortest time in seconds between two writes of the files while a session runs."""


class RecordEpisodes(Callback):
    """Keep the episode with the highest return (the first in a tie), and the latest one.

    Both are evaluation episodes if evaluation has environments of its own, and training episodes otherwise.
    If an evaluation plays several episodes, that of the first environment counts as the latest. This callback
    must come after `Evaluate` and before `Checkpoint`, which saves its state. Neither copying nor writing
    takes place in the session's steps.
    """

    def __init__(self, evaluate: Evaluate, each: bool) -> None:
        """evaluate: the callback whose episodes are kept; each: whether to also keep the latest episode of
        every evaluation, in a file named after its frame."""
        self.frequencies = evaluate.frequencies
        self._evaluate, self._each = evaluate, each
        self.highlights = Highlights()
        """The kept episodes. The session adds training episodes to them."""
        self._env: dict[str, Any] = {}
        self._next_write = 0.0
        self._waiting: dict[str, RecordedEpisode] = {}  # by file name, those that could not be written
        evaluate.followers.append(self._take_evaluation)

    def start(self, session: SessionView) -> None:
        """Make the files agree with the state from which the session continues."""
        self._env = session.config.env.plain()
        kept = self._settled()
        for path in session.folder.episodes.glob("*.npz"):
            name = path.stem
            if int(name) > self._evaluate.last_frame if name.isdigit() else not _holds(path, kept.get(name)):
                path.unlink()
                (session.folder.videos / f"{name}.mp4").unlink(missing_ok=True)
        self._write(session)

    def step(self, session: SessionView) -> None:
        """Write the files if enough time has passed since the last write."""
        if time.monotonic() >= self._next_write:
            self._write(session)

    def finish(self, session: SessionView) -> None:
        """Write the files, however the session ended."""
        self._write(session)

    def state_dict(self) -> dict[str, Any]:
        """Return the best and the latest episode."""
        return {name: episode.plain() for name, episode in self._settled().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.highlights.kept = {name: RecordedEpisode(**plain) for name, plain in state.items()}

    def _take_evaluation(self, session: SessionView, evaluated: Evaluated) -> None:
        for played in reversed(
            evaluated.played
        ):  # so that the episode of the first environment is the latest
            self.highlights.take(played)
        if self._each:
            self._env = session.config.env.plain()
            self._write(session, {str(evaluated.frame): "last"})

    def _settled(self) -> dict[str, RecordedEpisode]:
        """Return the kept episodes as they are stored."""
        settled = {
            name: kept.recorded(self._env) if isinstance(kept, Played) else kept
            for name, kept in self.highlights.kept.items()
        }
        self.highlights.kept.update(settled)
        return settled

    def _write(self, session: SessionView, files: Mapping[str, str] | None = None) -> None:
        """Write episodes.

        files: key of the episode (`best` or `last`) by file name; None writes both under these names.
        """
        kept, folder = self._settled(), session.folder.episodes
        wanted = {name: name for name in kept} if files is None else files
        self._waiting.update({name: kept[which] for name, which in wanted.items() if which in kept})
        for name, episode in list(self._waiting.items()):
            with session.folder.errors.tolerated(folder / f"{name}.npz"):
                write_episode(folder, name, episode)
                del self._waiting[name]
        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES


def _holds(path: Path, episode: RecordedEpisode | None) -> bool:
    """Return whether the file contains `episode`."""
    if episode is None:
        return False
    try:
        found, wanted = read_episode(path).plain(), episode.plain()
    except LabrlError:  # damaged
        return False
    return np.array_equal(found.pop("actions"), wanted.pop("actions")) and found == wanted
