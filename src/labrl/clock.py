"""The clock that times everything in a session."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class Clock:
    """Counts frames, episodes, optimizer updates and seconds of training.

    A frame is one agent step of one environment: a vector step of `num_envs` environments adds
    `num_envs` frames. `wall` is seconds spent in training; it continues after a resume.
    """

    def __init__(
        self, max_frame: int, max_opt_step: int | None = None, max_wall: float | None = None
    ) -> None:
        """The budgets of the session, None for no limit; whichever is spent first ends it."""
        self.max_frame, self.max_opt_step, self.max_wall = max_frame, max_opt_step, max_wall
        self.frame = 0
        self.episode = 0
        """Finished whole episodes."""
        self.opt_step = 0
        """Optimizer updates."""
        self._previous_frame = 0
        self._wall_before = 0.0
        self._started: float | None = None
        self.finished = False
        """Whether a budget was spent at the last tick; the same until the next one, though time passes."""
        self._last_tick_is_next = False

    @property
    def wall(self) -> float:
        """Seconds of training so far, those before a resume included."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._wall_before + running

    def start(self) -> None:
        """Let the wall time run; calling it again changes nothing."""
        if self._started is None:
            self._started = time.perf_counter()

    def stop(self) -> None:
        """Hold the wall time, for instance while another program owns the processor."""
        self._wall_before = self.wall
        self._started = None

    def tick(self, frames: int, episodes: int = 0) -> None:
        """Count one vector step: `frames` agent steps, of which `episodes` ended a whole episode.

        The optimizer updates of that step have been counted in `opt_step` before.
        """
        self._previous_frame = self.frame
        self.frame += frames
        self.episode += episodes
        self.finished = (
            self.frame >= self.max_frame
            or (self.max_opt_step is not None and self.opt_step >= self.max_opt_step)
            or (self.max_wall is not None and self.wall >= self.max_wall)
            or self._last_tick_is_next
        )

    def end_with_the_next_tick(self) -> None:
        """Let the next tick spend the budget: the ranks of a session have agreed on its end."""
        self._last_tick_is_next = True

    def due(self, frequency: int) -> bool:
        """Return whether the last tick crossed a multiple of `frequency` frames, or ended the budget.

        True exactly once for each multiple, whatever the number of frames in a tick, except that
        one tick across several multiples is due once. After the last tick everything is due.
        """
        return self.crossed(frequency) or self.finished

    def crossed(self, frequency: int) -> bool:
        """Return whether the last tick crossed a multiple of `frequency` frames, wherever the budget ends.

        What changes what is learned asks this and not `due`: a run that is extended to a larger budget
        must have had the same past as one that had it from the beginning.
        """
        return self.frame // frequency > self._previous_frame // frequency

    def next_due(self, frequency: int) -> int:
        """The frame from which on `due(frequency)` is true the next time, unless the budget ends before."""
        return (self.frame // frequency + 1) * frequency

    def state_dict(self) -> dict[str, Any]:
        """Counts and seconds as plain numbers."""
        return {
            "frame": self.frame,
            "previous_frame": self._previous_frame,
            "episode": self.episode,
            "opt_step": self.opt_step,
            "wall": self.wall,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; the budgets stay those of the present configuration."""
        self.frame = int(state["previous_frame"])
        self.episode = int(state["episode"])
        self.opt_step = int(state["opt_step"])
        self._wall_before = float(state["wall"])
        if self._started is not None:
            self._started = time.perf_counter()
        self.tick(int(state["frame"]) - self.frame)


class PhaseTimers:
    """Seconds spent in each phase of the loop."""

    def __init__(self) -> None:
        self.seconds = {"act": 0.0, "env": 0.0, "learn": 0.0, "callbacks": 0.0}
        """Seconds by phase since the session began, those before a resume included."""
        self.now = time.perf_counter()
        """The time at which the last phase ended, `time.perf_counter`."""

    def restart(self) -> None:
        """Time from now on; what passed since the last lap belongs to no phase."""
        self.now = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self.now
        self.now = now
