"""The clock that times everything in a session."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class Clock:
    """Counts frames, episodes, optimizer updates and seconds of training.

    A frame is one agent step of one environment: a vector step of `num_envs` environments adds
    `num_envs` frames. `wall` is the number of seconds spent in training; it continues after a resume.
    """

    def __init__(
        self, max_frame: int, max_opt_step: int | None = None, max_wall: float | None = None
    ) -> None:
        """Set the session's budgets (None: no limit). The session ends when the first budget is spent."""
        self.max_frame, self.max_opt_step, self.max_wall = max_frame, max_opt_step, max_wall
        self.frame = 0
        self.episode = 0
        """Number of complete episodes."""
        self.opt_step = 0
        """Number of optimizer updates."""
        self._previous_frame = 0
        self._wall_before = 0.0
        self._started: float | None = None
        self.finished = False
        """Whether a budget was spent at the last tick. It does not change between ticks."""
        self.ended = False
        """Whether the session has taken its last step and now writes what is due only because it ends."""

    @property
    def wall(self) -> float:
        """Seconds of training so far, including those before a resume."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._wall_before + running

    def start(self) -> None:
        """Start measuring the wall time. Calling it again has no effect."""
        if self._started is None:
            self._started = time.perf_counter()

    def stop(self) -> None:
        """Stop measuring the wall time."""
        self._wall_before = self.wall
        self._started = None

    def tick(self, frames: int, episodes: int = 0) -> None:
        """Count a vector step of `frames` agent steps, in which `episodes` complete episodes ended.

        Optimizer updates of this step must already be counted in `opt_step`.
        """
        self._previous_frame = self.frame
        self.frame += frames
        self.episode += episodes
        self.finished = (
            self.frame >= self.max_frame
            or (self.max_opt_step is not None and self.opt_step >= self.max_opt_step)
            or (self.max_wall is not None and self.wall >= self.max_wall)
        )

    def due(self, frequency: int) -> bool:
        """Return whether the last tick crossed a multiple of `frequency` frames, or the session has ended.

        The result is true for exactly one tick per multiple, however many frames a tick has; a tick may cross
        several multiples. Once `ended` is set, the result is true for every frequency.
        """
        return self.ended or self.frame // frequency > self._previous_frame // frequency

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the seconds as plain numbers."""
        return {
            "frame": self.frame,
            "previous_frame": self._previous_frame,
            "episode": self.episode,
            "opt_step": self.opt_step,
            "wall": self.wall,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, which does not contain the budgets."""
        self.frame = int(state["previous_frame"])
        self.episode = int(state["episode"])
        self.opt_step = int(state["opt_step"])
        self._wall_before = float(state["wall"])
        if self._started is not None:
            self._started = time.perf_counter()
        self.tick(int(state["frame"]) - self.frame)


class PhaseTimers:
    """Timers for the phases of a session's loop."""

    def __init__(self) -> None:
        self.seconds = {"act": 0.0, "env": 0.0, "learn": 0.0, "callbacks": 0.0, "check": 0.0}
        """Seconds by phase since the start of the session, including those before a resume."""
        self.now = time.perf_counter()
        """Time at which the last phase ended, as measured by `time.perf_counter`."""

    def restart(self) -> None:
        """Start timing from now. The time since the last lap is not counted."""
        self.now = time.perf_counter()

    def add_step(self, acted: float, stepped: float, learned: float) -> None:
        """Add the phases of a vector step, given the times at which acting, stepping and learning ended."""
        seconds = self.seconds
        seconds["act"] += acted - self.now
        seconds["env"] += stepped - acted
        seconds["learn"] += learned - stepped
        self.now = learned

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self.now
        self.now = now
