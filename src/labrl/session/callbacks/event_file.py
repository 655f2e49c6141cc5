"""One file of TensorBoard's events: rows as scalars, histograms, and an experiment's hyperparameters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

# The writer alone: torch.utils.tensorboard takes several times as long to import.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from labrl.session.callbacks.callback import Row, SessionView, Table
from labrl.session.callbacks.hyperparameters import session_ended, session_started
from labrl.storage.tables import CsvTable

_BINS = 64

NamedValues = tuple[str, np.ndarray, np.ndarray | None]
"""A tag, its values, and the edges of the bins, None for equal ones."""


class EventFile:
    """Takes the place of a session's former files, with all that stays of them."""

    def __init__(self, session: SessionView, table: Table, frame: int) -> None:
        """table, frame: of the row that will be written first."""
        folder = session.folder.tensorboard
        former = sorted(folder.glob("events.*"))
        self._writer = EventFileWriter(str(folder))
        if former:
            # A TensorBoard that is looking on forgets what it has read.
            log = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=0, session_log=log))
        if started := session_started(session):
            self._header(started)
        began = time.time() - session.clock.wall
        tables: tuple[tuple[Table, Path], ...] = (
            ("train", session.folder.train_csv),
            ("eval", session.folder.eval_csv),
        )
        written = set()
        for name, path in tables:
            for row in CsvTable(path).read_rows():
                if (name, row["frame"]) != (table, frame):
                    self.add_row(name, row, began + float(row["wall"] or 0))
                    written.add((name, row["frame"]))
        for event in _histograms_of(former):
            if ("train", event.step) in written:  # its row was not taken back
                self._writer.add_event(event)
        self.flush()
        for path in former:
            path.unlink()

    def add_row(self, table: Table, row: Row, moment: float) -> None:
        """The finite numbers of a row; moment: when it was written, seconds since the epoch."""
        values = [
            Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
            for column, value in row.items()
            if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
        ]
        self._writer.add_event(Event(wall_time=moment, step=int(row["frame"]), summary=Summary(value=values)))

    def add_histograms(self, frame: int, named: Iterable[NamedValues]) -> None:
        """One histogram for each tag."""
        values = [Summary.Value(tag=tag, histo=histogram(numbers, edges)) for tag, numbers, edges in named]
        self._writer.add_event(Event(wall_time=time.time(), step=frame, summary=Summary(value=values)))

    def flush(self) -> None:
        """Bring all to the file."""
        self._writer.flush()

    def close(self, session: SessionView) -> None:
        """Say how the session ended, and close the file."""
        if ended := session_ended(session):
            self._header(ended)
        self._writer.close()

    def _header(self, value: Summary.Value) -> None:
        self._writer.add_event(Event(wall_time=time.time(), summary=Summary(value=[value])))


def histogram(values: np.ndarray, edges: np.ndarray | None = None) -> HistogramProto:
    """Counts of the finite values between `edges`; without, in `_BINS` equal parts from lowest to highest."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return HistogramProto()
    counts, edges = np.histogram(finite, _BINS if edges is None else edges)
    return HistogramProto(
        min=finite.min(),
        max=finite.max(),
        num=finite.size,
        sum=finite.sum(),
        sum_squares=float(finite @ finite),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def _histograms_of(files: list[Path]) -> Iterator[Event]:
    """Events that hold histograms; a file that a kill tore gives those before the tear."""
    if not files:
        return
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in files:
        for event in LegacyEventFileLoader(str(path)).Load():
            if any(value.HasField("histo") for value in event.summary.value):
                yield event
