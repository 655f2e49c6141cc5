"""Check during a run whether seed and actions repeat episodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from labrl.envs.protocol import unrepeatable
from labrl.errors import described
from labrl.seeding import global_generators_kept
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.episodes import Played, replayed

_log = logging.getLogger(__name__)

SECONDS = 5.0
"""Time in seconds after which the replay of an episode is given up."""


class CheckRepeats(Callback):
    """Play a training episode again in a new environment, and report if it differs.

    This finds environments that change slowly, or rarely. A check is due at the first row of `train.csv`, and
    whenever the frame of a row has doubled, until an episode differs. The check takes the next episode that
    the environment ends. Episodes that a time limit ends show less, so one of these is taken only if no other
    has ended before the next check is due.
    """

    frequencies = ()

    def __init__(self) -> None:
        self._next_frame, self._due, self._ends = 0, 0, False

    def start(self, session: SessionView) -> None:
        """Ask nothing if the run is already known to be inexact because of its environment."""
        self._session, self._ends = session, "env" in session.folder.inexact

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Find out whether a check is due."""
        if table == "train" and row["frame"] >= self._next_frame:
            self._next_frame, self._due = 2 * row["frame"], self._due + 1

    def take(self, played: Played) -> None:
        """Check an episode that has just ended in training, if a check is due."""
        if self._ends or self._due <= played.episode.truncated:
            return
        self._due, timers = 0, self._session.timers
        timers.lap("callbacks")
        with global_generators_kept():
            difference = self._compare(played)
        timers.lap("check")
        if difference is not None:
            self._ends = True
            self._session.folder.add_inexact("env")
            why = f"the episode that ended at frame {played.frame:,}"
            why += f" differs in a new environment ({difference})"
            _log.warning("%s", unrepeatable(why))

    def state_dict(self) -> dict[str, Any]:
        """Return the frame at which the next check is due, and the number of checks that are due."""
        return {"next_frame": self._next_frame, "due": self._due}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._next_frame, self._due = state["next_frame"], state["due"]

    def _compare(self, played: Played) -> str | None:
        """Return how an episode differs in a new environment; None if it does not, or if this is unknown."""
        until = time.monotonic() + SECONDS
        try:
            build: Any = self._session.config.env.build
            with closing(build(num_envs=1, num_threads=1, evaluation=False)) as env:
                return replayed(played.recorded({}), env, lambda _: time.monotonic() > until)
        except (Exception, SystemExit) as error:  # An environment may fail in any way.
            self._ends = True
            _log.warning("env.check: no episode could be played in a new environment: %s", described(error))
            return None
