"""A callback that notes when things happened and where the time went."""

from __future__ import annotations

import json
import time
from pathlib import Path

from labrl.session.callbacks.callback import Callback, SessionView


class Probe(Callback):
    """Writes JSON to `path`: when the first step and update were (seconds since the epoch), time by phase."""

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
