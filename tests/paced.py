"""A callback that slows a run down, so that it leaves the processor to what a test waits for."""

from __future__ import annotations

import time
from typing import Any

from labrl.session.callbacks import Callback

PACED = "+callbacks.paced._target_=paced.Paced"
"""Override that adds the callback to a run in a process that `start_labrl` starts, or in its subprocesses."""


class Paced(Callback):
    """Sleep at each step, so that a run makes a few hundred frames per second and is nearly idle."""

    def step(self, session: Any) -> None:
        """Sleep for two milliseconds."""
        time.sleep(0.002)
