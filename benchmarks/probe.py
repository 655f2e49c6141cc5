"""A callback that records when training began and how much time each phase took."""

from __future__ import annotations

import json
import time
from pathlib import Path

from labrl.session.callbacks.callback import Callback, SessionView


class Probe(Callback):
    """Write the times of the first step and update (seconds since the epoch) and of each phase as JSON."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._first_step = self._first_update = 0.0

    def step(self, session: SessionView) -> None:
        if self._first_update:
            return
        now = time.time()
        self._first_step = self._first_step or now
        if session.clock.opt_step:
            self._first_update = now

    def finish(self, session: SessionView) -> None:
        noted = {
            "first_step": self._first_step,
            "first_update": self._first_update,
            "frame": session.clock.frame,
            "wall": session.clock.wall,
            "phases": session.timers.seconds,
        }
        self._path.write_text(json.dumps(noted))
