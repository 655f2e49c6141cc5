"""Episodes worth seeing again: a seed and actions each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labrl.errors import LabrlError
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate
from labrl.step import Episode
from labrl.storage.episodes import RecordedEpisode, checksum, read_episode, write_episode

if TYPE_CHECKING:
    from labrl.session.session import Highlights

SECONDS_BETWEEN_WRITES = 10.0
"""Files are renewed no more often while a session runs, so that short ones do not pay for them."""

NAMES = ("best", "last")
"""Episodes that are kept whatever happens."""

_BEFORE = "_before"

_log = logging.getLogger(__name__)


def _same(path: Path, episode: RecordedEpisode) -> bool:
    """Whether the file holds `episode`."""
    try:
        found, wanted = read_episode(path).plain(), episode.plain()
    except LabrlError:  # damaged
        return False
    return np.array_equal(found.pop("actions"), wanted.pop("actions")) and found == wanted


class Played(NamedTuple):
    """An episode that has just ended, in the arrays in which it was played: keeping it costs nothing."""

    episode: Episode
    actions: NDArray
    final: NDArray
    frame: int
    source: Literal["training", "evaluation"]

    def recorded(self, env: dict[str, Any]) -> RecordedEpisode:
        """The same to be written; env: the environment's node of the configuration."""
        return RecordedEpisode(
            seed=self.episode.seed,
            actions=self.actions.copy(),
            episode_return=self.episode.episode_return,
            length=self.episode.length,
            truncated=self.episode.truncated,
            final_observation=checksum(self.final),
            frame=self.frame,
            source=self.source,
            environment=self.episode.env,
            number=self.episode.index,
            env=env,
        )


class RecordEpisodes(Callback):
    """Keeps the episode of the highest return (of equals the first), and the latest one.

    Both are of those that evaluation is made of: played in environments of its own, or else the training
    episodes. Of an evaluation of several, the latest is that of the first environment. Stands behind
    `Evaluate`, and before the checkpoint, which remembers them. Nothing is copied or written in a step.
    What was kept before a provisional evaluation is remembered too, for where that is taken back.
    """

    def __init__(self, evaluate: Evaluate, each: bool) -> None:
        """evaluate: whose episodes are kept; each: also the latest at every evaluation, by its frame."""
        self._evaluate = evaluate
        self.frequencies = evaluate.frequencies
        self._highlights: Highlights | None = None
        self._each = each
        self._kept: dict[str, Played | RecordedEpisode] = {}
        self._before: dict[str, Played | RecordedEpisode] = {}
        """What was kept before the last evaluation, if that was provisional."""
        self._best_return = float("-inf")
        self._env: dict[str, Any] = {}
        self._next_write = 0.0

    def start(self, session: SessionView) -> None:
        """Bring the files to where the session goes on, and take in an evaluation made up for just now."""
        self._env, self._highlights = session.config.env.plain(), session.highlights
        if self._evaluate.taken_back is not None:
            self._take_back(self._evaluate.taken_back)
        self._remove_outdated(session)
        self._write(session)
        self._after_evaluation(session)

    def step(self, session: SessionView) -> None:
        """Take in an evaluation whose row was written in this step."""
        self._after_evaluation(session)

    def finish(self, session: SessionView) -> None:
        """Write what there is, whatever ended the session."""
        self._take_training()
        self._write(session)

    def state_dict(self) -> dict[str, Any]:
        """Both episodes, and those that were kept before a provisional evaluation."""
        self._take_training()
        before = {f"{name}{_BEFORE}": episode for name, episode in self._settled(self._before).items()}
        return {name: episode.plain() for name, episode in {**self._settled(self._kept), **before}.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        recorded = {name: RecordedEpisode(**plain) for name, plain in state.items()}
        self._kept = {name: recorded[name] for name in NAMES if name in recorded}
        self._before = {
            name: recorded[f"{name}{_BEFORE}"] for name in NAMES if f"{name}{_BEFORE}" in recorded
        }
        self._find_best_return()

    def _find_best_return(self) -> None:
        best = self._settled(self._kept).get("best")
        self._best_return = float("-inf") if best is None else best.episode_return

    def _take_back(self, frame: int) -> None:
        """Keep what was kept before the provisional evaluation at `frame`."""
        for name, episode in self._settled(self._kept).items():
            if episode.source == "evaluation" and episode.frame == frame:
                del self._kept[name]
                if name in self._before:
                    self._kept[name] = self._before[name]
        self._before = {}
        self._find_best_return()

    def _remove_outdated(self, session: SessionView) -> None:
        """Remove the files of episodes that lie behind where the session goes on, and their videos."""
        frame, taken_back = session.clock.frame, self._evaluate.taken_back
        kept = self._settled(self._kept)
        for path in session.folder.episodes.glob("*.npz"):
            if path.stem.isdigit():
                outdated = int(path.stem) > frame or int(path.stem) == taken_back
            else:
                outdated = path.stem not in kept or not _same(path, kept[path.stem])
            if outdated:
                path.unlink()
                (session.folder.videos / f"{path.stem}.mp4").unlink(missing_ok=True)

    def _after_evaluation(self, session: SessionView) -> None:
        self._take_training()
        for frame, played, _ in self._evaluate.fresh_at(session.clock.frame):
            self._before = {}
            if played and self._evaluate.provisional and frame == session.clock.frame:
                self._before = dict(self._kept)
            # Backwards, so that the one of the first environment is the latest.
            for episode, actions, final in reversed(played):
                self._take(Played(episode, actions, final, frame, "evaluation"))
            if self._each:
                self._write(session, {str(frame): "last"})
            if time.monotonic() >= self._next_write:
                self._write(session)

    def _take_training(self) -> None:
        """Take in what has ended in training since the last time."""
        if self._highlights is not None and self._highlights.best is not None:
            for played in (self._highlights.best, self._highlights.last):
                assert played is not None
                self._take(played)

    def _take(self, played: Played) -> None:
        self._kept["last"] = played
        if played.episode.episode_return > self._best_return:
            self._kept["best"], self._best_return = played, played.episode.episode_return

    def _settled(self, episodes: dict[str, Played | RecordedEpisode]) -> dict[str, RecordedEpisode]:
        """Return `episodes` in the form in which they are written."""
        settled = {
            name: kept.recorded(self._env) if isinstance(kept, Played) else kept
            for name, kept in episodes.items()
        }
        episodes.update(settled)
        return settled

    def _write(self, session: SessionView, names: Mapping[str, str] | None = None) -> None:
        """names: of files, and which episode each gets."""
        kept = self._settled(self._kept)
        try:
            for name, which in (names or dict(zip(NAMES, NAMES, strict=True))).items():
                if which in kept:
                    write_episode(session.folder.episodes, name, kept[which])
        except OSError as error:
            _log.warning("episodes are not recorded, training goes on: %s", error)
        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES
