"""Rows of training metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from labrl.envs.vector import ENDLESS
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.closer_look import LastGradients
from labrl.storage.tables import CsvTable

_log = logging.getLogger(__name__)

LONG = 5_000
"""Steps without any finished episode after which a warning is due, or half of the budget if that is less."""
SHORT = 500
"""Steps after which it is never due, however small the budget."""


def clock_columns(session: SessionView) -> dict[str, Any]:
    """The columns that every row of every table begins with."""
    clock = session.clock
    played = session.agent.frames_played if session.agent.pauses else clock.frame
    return {
        "frame": clock.frame,
        "env_frames": played * session.env.frame_skip,
        "episode": clock.episode,
        "opt_step": clock.opt_step,
        "wall": clock.wall,
    }


class LogTraining(Callback):
    """Every `meta.log_frequency` frames, and at the end of the budget, one row in `train.csv`.

    frame, env_frames, episode, opt_step, wall; fps since the row before; returns and length over the
    last `meta.episode_window` episodes; then whatever the agent's `metrics()` say.
    """

    def __init__(
        self, frequency: int, listeners: Sequence[Callback] = (), gradients: LastGradients | None = None
    ) -> None:
        """frequency: frames between rows; listeners: whose `row` is called with each; gradients: whose norms,
        and those of the weights, are columns; None: they are none."""
        self._gradients = gradients
        self._session: SessionView | None = None
        self.frequencies = (frequency,)
        self._listeners = listeners
        self._last_frame = 0
        self._last_wall = 0.0
        self._for_the_end = False
        self._table: CsvTable | None = None
        self._warned = False

    def start(self, session: SessionView) -> None:
        """Open the table, and cut it back to where the session goes on."""
        clock, self._session = session.clock, session
        # the row that was written because the budget ended has no place in a run with a larger one
        outdated = self._for_the_end and not clock.finished
        self._table = CsvTable(session.folder.train_csv)
        found = self._table.truncate_after(clock.frame - outdated)
        self._for_the_end = self._for_the_end and not outdated
        if found < self._last_frame and not outdated:
            _log.warning(
                "%s ends at frame %d, and had rows up to frame %d: what is missing there stays missing",
                *(self._table.path, found, self._last_frame),
            )

    def step(self, session: SessionView) -> None:
        """Write a row."""
        self._for_the_end = not session.clock.crossed(*self.frequencies)
        assert self._table is not None, "start() comes before step()"
        columns = clock_columns(session)
        row = {
            **columns,
            "fps": self._fps(columns["frame"], columns["wall"]),
            **session.episodes.statistics(),
            **session.metrics(),
            **({} if self._gradients is None else self._gradients.norms(session)),
        }
        self._table.append(row)
        self._warn_of_endless_episodes(session)
        for listener in self._listeners:
            listener.row(session, "train", row)

    def _warn_of_endless_episodes(self, session: SessionView) -> None:
        """Warn once where the first episode, or any later one, takes so long that it may never end."""
        steps, first = session.env.longest_episode, session.clock.episode == 0
        half = session.clock.max_frame // (2 * session.env.num_envs)
        if self._warned or steps < (min(LONG, max(SHORT, half)) if first else ENDLESS):
            return
        self._warned = True
        _log.warning(
            "%s has not ended after %s steps%s. Checkpoints store all its actions, and a resume plays them "
            "again. If episodes of this environment can go on for ever, set env.max_episode_steps=<steps>",
            "the first episode" if first else "an episode",
            f"{steps:,}",
            ", and there is no return before one has" if first else "",
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the last row was, which the next row's fps is counted from, and why it was written."""
        return {
            "last_frame": self._last_frame,
            "last_wall": self._last_wall,
            "for_the_end": self._for_the_end,
            **self._gradients_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._last_frame = int(state["last_frame"])
        self._last_wall = float(state["last_wall"])
        self._for_the_end = bool(state["for_the_end"])
        if self._gradients is not None and "gradients" in state:
            self._gradients.load_state_dict(state["gradients"])

    def _gradients_state(self) -> dict[str, Any]:
        if self._gradients is None or self._session is None:
            return {}
        return {"gradients": self._gradients.state_dict(self._session)}

    def _fps(self, frame: int, wall: float) -> float:
        frames, seconds = frame - self._last_frame, wall - self._last_wall
        self._last_frame, self._last_wall = frame, wall
        return frames / seconds if seconds > 0 else math.nan
