"""Scalars for TensorBoard."""

from __future__ import annotations

import math
import time
from pathlib import Path

# The writer alone: torch.utils.tensorboard takes several times as long to import.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.storage.tables import CsvTable


class TensorBoard(Callback):
    """Every number of every row, as `train/<column>` or `eval/<column>` over frames.

    What a resumed session had written before is written again from its tables, which have been cut back
    by then: so nothing is doubled, whoever reads the files, and nothing that was undone is left.
    """

    def __init__(self) -> None:
        self._writer: EventFileWriter | None = None

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row."""
        if self._writer is None:
            self._writer = _opened(session, table, int(row["frame"]))
        _add(self._writer, table, row, time.time())
        self._writer.flush()  # a killed session has its curves up to here

    def finish(self, session: SessionView) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _opened(session: SessionView, table: Table, frame: int) -> EventFileWriter:
    """A new event file in place of those of before, with all rows but that of `table` at `frame`."""
    folder = session.folder.tensorboard
    former = list(folder.glob("events.*"))
    writer = EventFileWriter(str(folder))
    if former:
        # A TensorBoard that is looking on forgets what it has read.
        log = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=time.time(), step=0, session_log=log))
    began = time.time() - session.clock.wall
    tables: tuple[tuple[Table, Path], ...] = (
        ("train", session.folder.train_csv),
        ("eval", session.folder.eval_csv),
    )
    for name, path in tables:
        for row in CsvTable(path).read_rows():
            if (name, row["frame"]) != (table, frame):
                _add(writer, name, row, began + float(row["wall"] or 0))
    writer.flush()
    for path in former:
        path.unlink()
    return writer


def _add(writer: EventFileWriter, table: Table, row: Row, moment: float) -> None:
    values = [
        Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
        for column, value in row.items()
        if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
    ]
    writer.add_event(Event(wall_time=moment, step=int(row["frame"]), summary=Summary(value=values)))
