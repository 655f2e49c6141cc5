"""A callback that slows a run down, so that it leaves the processor to what a test waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from labrl.run.session import RunSession
from labrl.run.tables import read_rows
from labrl.session.callbacks import Callback

PACED = "+callbacks.paced._target_=paced.Paced"
"""Override that adds the callback to a run in a process that `start_labrl` starts, or in its subprocesses."""

UNPACED = "UNPACED"
"""Environment variable with which the callback does nothing, so that a resume needs no time for it."""


class Paced(Callback):
    """Sleep at each step, so that a run makes a few hundred frames per second and is nearly idle."""

    def __init__(self) -> None:
        self._seconds = 0.0 if UNPACED in os.environ else 0.002

    def step(self, session: Any) -> None:
        """Sleep for two milliseconds."""
        time.sleep(self._seconds)


def last_row(folder: Path, index: int = 0) -> int:
    """Return the frame of the newest row of metrics of a session that may still train, 0 if none.

    Rows are written at once, while progress.json is written only once a second.
    """
    rows = read_rows(RunSession(folder / f"session_{index}").train_csv)
    return int(rows[-1]["frame"] or 0) if rows else 0
