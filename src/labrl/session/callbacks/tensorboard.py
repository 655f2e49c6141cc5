"""Scalars for TensorBoard."""

from __future__ import annotations

import math
import time

# The writer alone: torch.utils.tensorboard takes several times as long to import.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table


class TensorBoard(Callback):
    """Every number of every row, as `train/<column>` or `eval/<column>` over frames."""

    def __init__(self) -> None:
        self._writer: EventFileWriter | None = None

    def start(self, session: SessionView) -> None:
        """Open an event file; a resumed session hides what was written after its checkpoint."""
        self._writer = EventFileWriter(str(session.folder.tensorboard))
        if session.clock.frame > 0:
            # TensorBoard drops older events from this step on
            log = SessionLog(status=SessionLog.START)
            self._writer.add_event(
                Event(wall_time=time.time(), step=session.clock.frame + 1, session_log=log)
            )

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row."""
        assert self._writer is not None, "start() comes before row()"
        values = [
            Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
            for column, value in row.items()
            if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
        ]
        event = Event(wall_time=time.time(), step=int(row["frame"]), summary=Summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()  # a killed session has its curves up to here

    def finish(self, session: SessionView) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
