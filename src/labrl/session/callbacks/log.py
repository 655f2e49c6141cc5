"""Write rows of training metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.agents.agent import joined
from labrl.envs.info import number_of
from labrl.envs.vector import ENDLESS
from labrl.errors import InputError
from labrl.run.tables import CsvTable
from labrl.run.write_errors import WriteErrors
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.closer_look import Norms

_log = logging.getLogger(__name__)

LONG = 5_000
"""Number of steps without a finished episode after which a warning is logged, or half of the budget if that
is less."""
SHORT = 500
"""Number of steps for which an episode may last without a warning, however small the budget."""

FIRST_ROW = 16
"""Frame of the first early row, and number of frames between the next few rows."""


def clock_columns(session: SessionView) -> dict[str, Any]:
    """Return the first columns of every row in every table. `end` marks a row that exists only because the
    budget is spent."""
    clock = session.clock
    pauses = session.agent.pauses
    played = clock.frame if pauses is None else pauses.frames_played
    return {
        "frame": clock.frame,
        "env_frames": played * session.env.frame_skip,
        "episode": clock.episode,
        "opt_step": clock.opt_step,
        "wall": clock.wall,
        "end": "budget" if clock.ended else None,
    }


def continued_table(path: Path, last_frame: int, errors: WriteErrors) -> CsvTable:
    """Return a table cut back to its row of `last_frame`, and warn if that row is missing."""
    table = CsvTable(path, errors)
    found = table.truncate_after(last_frame)
    if found < last_frame:
        _log.warning(
            "%s ends at frame %d, but had rows up to frame %d: the missing rows cannot be restored",
            *(path, found, last_frame),
        )
    return table


def early_spacing(frame: int) -> int:
    """Return the number of frames between early rows at `frame`: the largest power of two up to frame / 8.

    The spacing depends only on the frame, not on the budget, and grows only at multiples of itself. A resumed
    or extended run therefore writes rows at the same frames as an uninterrupted one.
    """
    return max(FIRST_ROW, 1 << max(frame.bit_length() - 4, 0))


class LogTraining(Callback):
    """Write a row to `train.csv` every `meta.log_frequency` frames and at the end of the budget, where the
    column `end` is set.

    With `early`, there are further rows at the start: they are `early_spacing` frames apart, as long as that
    is at most half of `meta.log_frequency`.

    Columns: frame, env_frames, episode, opt_step, wall, end; fps (see `_fps`); returns and length
    over the last `meta.episode_window` episodes; and the metrics of agent, environments and listeners.
    """

    def __init__(
        self,
        frequency: int,
        listeners: Sequence[Callback] = (),
        norms: Norms | None = None,
        early: bool = False,
    ) -> None:
        """frequency: frames between rows; listeners: callbacks whose `metrics` and `row` are called for each
        row; norms: further columns with the norms of weights and gradients; early: whether to write early
        rows."""
        self.frequencies = (frequency,)
        self._frequency, self._early = frequency, early
        self._listeners, self._norms = listeners, norms
        self._last_frame = 0
        self._measured: Sequence[float] = ()
        """Frame, seconds and updates at the last row with an update; empty before the first one."""
        self._table: CsvTable | None = None
        self._warned = False

    def start(self, session: SessionView) -> None:
        """Cut the table back to the frame at which the session continues."""
        self._table = continued_table(session.folder.train_csv, self._last_frame, session.folder.errors)
        if self._norms is not None:
            self._norms.start(session)
        self.look_ahead(session.clock.frame)

    def step(self, session: SessionView) -> None:
        """Write a row, unless this frame has one."""
        assert self._table is not None, "start() comes before step()"
        if session.clock.frame == self._last_frame:
            return
        columns = clock_columns(session)
        row = {
            **columns,
            "fps": self._fps(session),
            **session.episodes.statistics(),
        }
        norms = {} if self._norms is None else self._norms.columns()
        row = joined(session.agent, row, session.metrics(), norms)
        for listener in self._listeners:
            _add_columns(row, listener)
        self._table.append(row)
        self._last_frame = session.clock.frame
        self.look_ahead(session.clock.frame)
        self._warn_of_endless_episodes(session)
        for listener in self._listeners:
            listener.row(session, "train", row)

    def finish(self, session: SessionView) -> None:
        """Write rows that could not be written before."""
        if self._table is not None:
            self._table.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return the frame of the last row, and the values from which the next row's fps is computed."""
        norms = {} if self._norms is None else {"gradients": self._norms.state_dict()}
        return {"last_frame": self._last_frame, "measured": list(self._measured), **norms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._last_frame, self._measured = int(state["last_frame"]), state.get("measured", ())
        if self._norms is not None and "gradients" in state:
            self._norms.load_state_dict(state["gradients"])

    def look_ahead(self, frame: int) -> None:
        """Determine the frame at which the next row after `frame` is due."""
        spacing = early_spacing(frame)
        soon = self._early and 2 * spacing <= self._frequency
        self.frequencies = (spacing, self._frequency) if soon else (self._frequency,)

    def _warn_of_endless_episodes(self, session: SessionView) -> None:
        """Warn once if an episode takes so long that it may never end."""
        steps, first = session.env.longest_episode, session.clock.episode == 0
        half = session.clock.max_frame // (2 * session.env.num_envs)
        if self._warned or steps < (min(LONG, max(SHORT, half)) if first else ENDLESS):
            return
        self._warned = True
        _log.warning(
            "%s has not ended after %s steps%s. Checkpoints store all its actions, and a resume replays "
            "them. If episodes of this environment may never end, set env.max_episode_steps=<steps> (Atari: "
            "env.max_episode_frames)",
            "the first episode" if first else "an episode",
            f"{steps:,}",
            ", and there are no returns before it ends" if first else "",
        )

    def _fps(self, session: SessionView) -> float:
        """Return the frames per second of acting, stepping and learning since the last row with an update.

        It is nan in a row without an update since then, because steps alone are faster, and in the first row
        with an update, whose time includes the warm-up.
        """
        clock, spent = session.clock, session.timers.seconds
        now = clock.frame, sum(spent[phase] for phase in ("act", "env", "learn")), clock.opt_step
        if session.agent.modules() and clock.opt_step == (self._measured[2] if self._measured else 0):
            return math.nan
        before, self._measured = self._measured, now
        return (now[0] - before[0]) / (now[1] - before[1]) if before and now[1] > before[1] else math.nan


def _add_columns(row: dict[str, Any], callback: Callback) -> None:
    """Add the columns of a callback to a row. Raises InputError for a column that already exists or is not a
    number."""
    for name, value in callback.metrics().items():
        where = f"callbacks: {type(callback).__name__}.metrics() returns {name!r}"
        if name in row:
            message = f"{where}, a column that train.csv already has: choose another name"
            raise InputError(message, code="contradiction", key="callbacks")
        try:
            row[name] = number_of(value)
        except ValueError as error:
            message = f"{where}, but its value {error}, not a number"
            raise InputError(message, code="type", key="callbacks") from None
