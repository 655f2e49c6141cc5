"""The tables for TensorBoard, histograms, and an experiment's hyperparameters."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.callbacks.closer_look import CloserLook

if TYPE_CHECKING:
    from labrl.session.callbacks.event_file import EventFile

_log = logging.getLogger(__name__)


class TensorBoard(Callback):
    """Every number of every row, as `train/<column>` or `eval/<column>` over frames.

    What a resumed session had written before is written again from its tables, which have been cut back
    by then: so nothing is doubled, whoever reads the files, and nothing that was undone is left. So is all
    that a full disk did not take, once it takes a row again.
    """

    def __init__(self, look: CloserLook | None = None) -> None:
        """look: the histograms that come with each training row."""
        self._look = look
        self.frequencies = () if look is None else (1,)
        self._file: EventFile | None = None
        self._refused = False

    def step(self, session: SessionView) -> None:
        """Remember what a closer look needs."""
        assert self._look is not None, "without one no step is called"
        self._look.step(session)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row. A disk that refuses them does not end training."""
        try:
            self._write(session, table, row)
            self._refused = False
        except OSError as error:
            self._give_up(error)

    def _write(self, session: SessionView, table: Table, row: Row) -> None:
        frame = int(row["frame"])
        if self._file is None:
            # Imported with the first row: the first step of training does not wait for it.
            from labrl.session.callbacks.event_file import EventFile

            self._file = EventFile(session, table, frame)
        self._file.add_row(table, row, time.time())
        if self._look is not None and table == "train":
            self._file.add_histograms(frame, self._look.values(session))
        self._file.flush()  # a killed session has its curves up to here

    def finish(self, session: SessionView) -> None:
        """Say how it ended, and close the event file."""
        if self._file is None:
            return
        try:
            self._file.close(session)
            self._file = None
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Leave the file as it is: its writer has ended, and the next row begins another."""
        self._file = None
        if not self._refused:
            _log.warning("nothing is written for TensorBoard, training goes on: %s", error)
        self._refused = True
