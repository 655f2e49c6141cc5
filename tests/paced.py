"""A run that takes no core from what a test waits for."""

from __future__ import annotations

import time
from typing import Any

from labrl.session.callbacks import Callback

PACED = "+callbacks.paced._target_=paced.Paced"
"""Override of a run in a process that `start_labrl` starts, or in one of that one's."""


class Paced(Callback):
    """Sleeps at each step: such a run plays a few hundred frames per second, and is nearly idle."""

    def step(self, session: Any) -> None:
        """Sleep for two milliseconds."""
        time.sleep(0.002)
