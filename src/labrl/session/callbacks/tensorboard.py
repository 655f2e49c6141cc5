"""The tables for TensorBoard, histograms of weights, and an experiment's hyperparameters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# The writer alone: torch.utils.tensorboard takes several times as long to import.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.callbacks.closer_look import CloserLook, weights
from labrl.session.callbacks.hyperparameters import session_ended, session_started
from labrl.storage.tables import CsvTable

_BINS = 64


class TensorBoard(Callback):
    """Every number of every row, as `train/<column>` or `eval/<column>` over frames.

    What a resumed session had written before is written again from its tables, which have been cut back
    by then: so nothing is doubled, whoever reads the files, and nothing that was undone is left.
    """

    def __init__(self, histograms: bool = False, look: CloserLook | None = None) -> None:
        """histograms: whether each evaluation row comes with those of the weights, as `weights/<name>`; look:
        what comes with each training row, those included."""
        self._histograms, self._look = histograms, look
        self._writer: EventFileWriter | None = None
        self._began_at = 0

    def start(self, session: SessionView) -> None:
        """Remember where the session goes on: what histograms there are behind it were undone."""
        self._began_at = session.clock.frame

    def step(self, session: SessionView) -> None:
        """Remember what a closer look needs."""
        if self._look is not None:
            self._look.step(session)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row."""
        frame = int(row["frame"])
        if self._writer is None:
            self._writer = _opened(session, table, frame, self._began_at)
        _add(self._writer, table, row, time.time())
        if self._histograms and table == "eval":
            values = list(_weights(session.agent))
            self._writer.add_event(Event(wall_time=time.time(), step=frame, summary=Summary(value=values)))
        if self._look is not None and table == "train":
            values = [
                Summary.Value(tag=name, histo=_histogram(numbers, edges))
                for name, numbers, edges in self._look.values(session)
            ]
            self._writer.add_event(Event(wall_time=time.time(), step=frame, summary=Summary(value=values)))
        self._writer.flush()  # a killed session has its curves up to here

    def finish(self, session: SessionView) -> None:
        """Say how it ended, and close the event file."""
        if self._writer is not None:
            if ended := session_ended(session):
                _header(self._writer, ended)
            self._writer.close()
            self._writer = None


def _opened(session: SessionView, table: Table, frame: int, began_at: int) -> EventFileWriter:
    """A new event file in place of the former ones, with all that stays, but no row of `table` at `frame`."""
    folder = session.folder.tensorboard
    former = sorted(folder.glob("events.*"))
    writer = EventFileWriter(str(folder))
    if former:
        # A TensorBoard that is looking on forgets what it has read.
        log = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=time.time(), step=0, session_log=log))
    if started := session_started(session):
        _header(writer, started)
    began = time.time() - session.clock.wall
    tables: tuple[tuple[Table, Path], ...] = (
        ("train", session.folder.train_csv),
        ("eval", session.folder.eval_csv),
    )
    for name, path in tables:
        for row in CsvTable(path).read_rows():
            if (name, row["frame"]) != (table, frame):
                _add(writer, name, row, began + float(row["wall"] or 0))
    for event in _histograms_of(former):
        if event.step <= began_at and (table, event.step) != ("eval", frame):
            writer.add_event(event)
    writer.flush()
    for path in former:
        path.unlink()
    return writer


def _header(writer: EventFileWriter, value: Summary.Value) -> None:
    writer.add_event(Event(wall_time=time.time(), summary=Summary(value=[value])))


def _add(writer: EventFileWriter, table: Table, row: Row, moment: float) -> None:
    values = [
        Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
        for column, value in row.items()
        if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
    ]
    writer.add_event(Event(wall_time=moment, step=int(row["frame"]), summary=Summary(value=values)))


def _weights(agent: Any) -> Iterator[Summary.Value]:
    """A histogram of each tensor of weights, by the name of its network and its own."""
    for name, values in weights(agent):
        yield Summary.Value(tag=f"weights/{name}", histo=_histogram(values))


def _histogram(values: np.ndarray, edges: np.ndarray | None = None) -> HistogramProto:
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
