"""Write metrics, histograms, and an experiment's hyperparameters for TensorBoard."""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from labrl.config.keys import split_override, walk
from labrl.errors import LabrlError
from labrl.run.run import Run
from labrl.run.tables import read_rows
from labrl.run.write_errors import write_all
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.callbacks.closer_look import CloserLook

TABLES: tuple[Table, ...] = ("train", "eval")

BINS = 64
"""Number of bins of a histogram whose values have no bins of their own."""


class TensorBoard(Callback):
    """Write every number of every row as `train/<column>` or `eval/<column>` over frames.

    A resumed session starts a new file. The new file tells readers to discard the content of earlier files
    from its first frame on, and repeats the rows that would be lost in this way from the tables. Each row is
    therefore shown exactly once, except rows that the resume undid, which are not shown. Events that cannot
    be written, for instance on a full disk, are kept for later.
    """

    def __init__(self, look: CloserLook | None = None) -> None:
        """look: source of the histograms for each training row; None: no histograms."""
        self._look = look
        self.frequencies = () if look is None else (1,)
        self._file: Path | None = None
        self._pending = bytearray()
        """Records to be written to the file."""

    def step(self, session: SessionView) -> None:
        """Collect the actions for the histograms."""
        assert self._look is not None, "step() is called only with histograms"
        self._look.step(session)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row."""
        if self._file is None:
            self._file = self._begin(session, table, int(row["frame"]))
        self._add_row(table, row)
        if self._look is not None and table == "train":
            from torch.utils.tensorboard.summary import histogram

            for tag, values, edges in self._look.values(session):
                if (finite := values[np.isfinite(values)]).size:
                    self._add(int(row["frame"]), histogram(tag, finite, BINS if edges is None else edges))
        self._write(session)  # so that the curves of a killed session reach up to here

    def finish(self, session: SessionView) -> None:
        """Write how the session ended."""
        if self._file is not None:
            if Run(session.folder.path.parent).experiment is not None:
                from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
                from tensorboard.plugins.hparams.summary_v2 import hparams_pb

                ended = SessionEndInfo(status=1 if session.clock.finished else 2)  # success or failure
                summary = hparams_pb({})
                summary.value[0].tag = "_hparams_/session_end_info"
                content = HParamsPluginData(session_end_info=ended).SerializeToString()
                summary.value[0].metadata.plugin_data.content = content
                self._add(0, summary)
            self._write(session)
            self._file = None

    def _begin(self, session: SessionView, table: Table, frame: int) -> Path:
        """Begin a file for the row of `frame` in `table`, and repeat earlier rows that are lost."""
        folder, purged = session.folder, -1
        late = table == "eval"  # an asynchronous evaluation may be older than training rows
        rows: dict[Table, list[Row]] = {
            "train": [row for row in read_rows(folder.train_csv) if late or _frame(row) < frame],
            "eval": [row for row in read_rows(folder.eval_csv) if _frame(row) < frame],
        }
        # Readers take files in the order of their names, even if the system clock was set back.
        before = [int(path.name.split(".")[3]) for path in folder.tensorboard.glob("events.out.tfevents.*")]
        number = max(int(time.time()), *(one + 1 for one in before), 0)
        self._add(0, file_version="brain.Event:2")
        if before:
            from tensorboard.compat.proto.event_pb2 import SessionLog

            # Histograms are written with training rows and are in no table, so they must not be discarded.
            purged = max(map(_frame, rows["train"]), default=-1) if self._look is not None else -1
            self._add(purged + 1, session_log=SessionLog(status=SessionLog.START))
        run = Run(folder.path.parent)
        if run.experiment is not None:
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb

            self._add(0, hparams_pb(_hyperparameters(run), run.path.name))
        began = time.time() - session.clock.wall
        for name in TABLES:
            for row in rows[name]:
                if _frame(row) > purged:
                    self._add_row(name, row, began + float(row["wall"] or 0))
        return folder.tensorboard / f"events.out.tfevents.{number:010d}.{platform.node()}"

    def _add_row(self, table: Table, row: Row, moment: float | None = None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
            for column, value in row.items()
            if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
        ]
        self._add(_frame(row), Summary(value=values), moment)

    def _add(self, frame: int, summary: Any = None, moment: float | None = None, **content: Any) -> None:
        """Add an event. moment: its time in seconds since the epoch; None: the current time."""
        # Imported with the first row, so that the first training step does not wait for it.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(step=frame, wall_time=moment or time.time(), summary=summary, **content)
        RecordWriter(SimpleNamespace(write=self._pending.extend)).write(event.SerializeToString())

    def _write(self, session: SessionView) -> None:
        """Write the pending records. Those that cannot be written are kept for the next call."""
        assert self._file is not None, "call _begin() first"
        with session.folder.errors.tolerated(session.folder.tensorboard):
            self._file.parent.mkdir(exist_ok=True)
            write_all(self._file, self._pending)


def _frame(row: Row) -> int:
    return int(str(row["frame"]))


def _hyperparameters(run: Run) -> dict[str, Any]:
    """Return the overrides of a trial by key, with resolved values, and its seed.

    Returns {} if the run folder is damaged, because a damaged folder must not stop training.
    """
    try:
        config, overrides = run.read_config(), run.overrides
    except LabrlError:
        return {}
    values, typed = dict(walk(config)), dict(split_override(one) for one in overrides)
    found = {key: values.get(key, text) for key, text in typed.items()}
    found = {
        key: value if isinstance(value, int | float | str) else typed[key] for key, value in found.items()
    }
    return {"seed": config["seed"], **found}
