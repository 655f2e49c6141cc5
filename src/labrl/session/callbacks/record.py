"""Episodes worth seeing again: a seed and actions each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate
from labrl.step import Episode
from labrl.storage.episodes import RecordedEpisode, checksum, write_episode

SECONDS_BETWEEN_WRITES = 10.0
"""Files are renewed no more often while a session runs, so that short ones do not pay for them."""

_log = logging.getLogger(__name__)


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
    """

    def __init__(self, evaluate: Evaluate, each: bool) -> None:
        """evaluate: whose episodes are kept; each: also the latest at every evaluation, by its frame."""
        self._evaluate = evaluate
        self._each = each
        self._kept: dict[str, Played | RecordedEpisode] = {}
        self._best_return = float("-inf")
        self._env: dict[str, Any] = {}
        self._next_write = 0.0

    def start(self, session: SessionView) -> None:
        """Bring the files to where the session goes on, and take in an evaluation made up for just now."""
        self._env = session.config.env.plain()
        for path in session.folder.episodes.glob("*.npz"):
            if path.stem.isdigit() and int(path.stem) > session.clock.frame:
                path.unlink()
        self._write(session)
        self._after_evaluation(session)

    def step(self, session: SessionView) -> None:
        """Take in the episodes that ended, of training or of an evaluation that was told of in this step."""
        if session.episodes.latest and not self._evaluate.num_envs:
            for episode in session.episodes.latest:
                self._take(Played(episode, *session.env.played(episode), session.clock.frame, "training"))
        self._after_evaluation(session)

    def finish(self, session: SessionView) -> None:
        """Write what there is, whatever ended the session."""
        self._write(session)

    def state_dict(self) -> dict[str, Any]:
        """Both episodes."""
        return {name: episode.plain() for name, episode in self._settled().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._kept = {name: RecordedEpisode(**plain) for name, plain in state.items()}
        if "best" in state:
            self._best_return = float(state["best"]["episode_return"])

    def _after_evaluation(self, session: SessionView) -> None:
        for frame, played in self._evaluate.fresh:
            # Backwards, so that the one of the first environment is the latest.
            for episode, actions, final in reversed(played):
                self._take(Played(episode, actions, final, frame, "evaluation"))
            if self._each:
                self._write(session, {str(frame): "last"})
            if time.monotonic() >= self._next_write:
                self._write(session)

    def _take(self, played: Played) -> None:
        self._kept["last"] = played
        if played.episode.episode_return > self._best_return:
            self._kept["best"], self._best_return = played, played.episode.episode_return

    def _settled(self) -> dict[str, RecordedEpisode]:
        settled = {
            name: kept.recorded(self._env) if isinstance(kept, Played) else kept
            for name, kept in self._kept.items()
        }
        self._kept.update(settled)
        return settled

    def _write(self, session: SessionView, names: Mapping[str, str] | None = None) -> None:
        """names: of files, and which episode each gets."""
        kept = self._settled()
        try:
            for name, which in (names or {"best": "best", "last": "last"}).items():
                if which in kept:
                    write_episode(session.folder.episodes, name, kept[which])
        except OSError as error:
            _log.warning("episodes are not recorded, training goes on: %s", error)
        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES
