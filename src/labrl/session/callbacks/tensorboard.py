"""Write metrics, histograms, and an experiment's hyperparameters for TensorBoard."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from labrl.config.keys import split_override, walk
from labrl.errors import LabrlError
from labrl.run.run import Run
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.callbacks.closer_look import CloserLook

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TABLES: tuple[Table, ...] = ("train", "eval")

BINS = 64
"""Number of bins of a histogram whose values have no bins of their own."""


class TensorBoard(Callback):
    """Write every number of every row as `train/<column>` or `eval/<column>` over frames.

    A resumed session starts a new file, which tells readers to discard earlier events after the last training
    row that was kept. Rows that cannot be written, for instance on a full disk, are only in the tables.
    """

    def __init__(self, look: CloserLook | None = None) -> None:
        """look: source of the histograms for each training row; None: no histograms."""
        self._look = look
        self.frequencies = () if look is None else (1,)
        self._writer: SummaryWriter | None = None

    def step(self, session: SessionView) -> None:
        """Collect the actions for the histograms."""
        assert self._look is not None, "step() is called only with histograms"
        self._look.step(session)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row."""
        if session.folder.errors.lacking.keys() - {session.folder.tensorboard}:
            return  # the disk is full: TensorBoard's thread would print a traceback
        with session.folder.errors.tolerated(session.folder.tensorboard):
            # A writer that has failed is not used again: its thread has ended.
            writer, self._writer = self._writer or _begin(session, table, row), None
            _add_row(writer, table, row)
            for tag, values, edges in self._look.values(session) if self._look and table == "train" else ():
                if (finite := values[np.isfinite(values)]).size:
                    writer.add_histogram(tag, finite, row["frame"], bins=BINS if edges is None else edges)
            writer.flush()  # so that the curves of a killed session reach up to here
            self._writer = writer

    def finish(self, session: SessionView) -> None:
        """Close the file."""
        with session.folder.errors.tolerated(session.folder.tensorboard):
            if self._writer is not None:
                self._writer.close()
        self._writer = None


def _begin(session: SessionView, table: Table, row: Row) -> SummaryWriter:
    """Begin a file for a row of `table`, with earlier rows that other files lack or that readers discard."""
    # Imported with the first row, so that the first training step does not wait for it.
    from torch.utils.tensorboard import SummaryWriter

    folder = session.folder
    rows = [(name, one) for name in TABLES for one in folder.read_rows(name)]
    rows = [(name, one) for name, one in rows if (name, one["frame"]) != (table, row["frame"])]
    # Histograms accompany training rows and are in no table, so those of the kept rows must not be discarded.
    frames = [one["frame"] for name, one in rows if name == "train" and folder.tensorboard.exists()]
    kept = max(frames, default=-1)
    # Readers take files in the order of their names, which begin with the second of their creation.
    while list(folder.tensorboard.glob(f"*.{int(time.time())}.*")):
        time.sleep(0.05)
    folder.tensorboard.mkdir(exist_ok=True)  # SummaryWriter would also make a run folder that was moved
    writer = SummaryWriter(str(folder.tensorboard), purge_step=kept + 1)
    run = Run(folder.path.parent)
    if run.experiment is not None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        with suppress(LabrlError):  # a damaged run folder must not stop training
            assert writer.file_writer is not None, "it has been opened"
            writer.file_writer.add_summary(hparams_pb(_hyperparameters(run), run.path.name), 0)
    for name, one in rows:
        if one["frame"] > kept:
            _add_row(writer, name, one)
    return writer


def _add_row(writer: SummaryWriter, table: Table, row: Row) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [
        Summary.Value(tag=f"{table}/{column}", simple_value=value)
        for column, value in row.items()
        if column != "frame" and isinstance(value, int | float) and math.isfinite(value)
    ]
    assert writer.file_writer is not None, "it has been opened"
    writer.file_writer.add_summary(Summary(value=values), row["frame"])  # one event instead of one per column


def _hyperparameters(run: Run) -> dict[str, Any]:
    """Return the overrides of a trial by key, with resolved values, and its seed."""
    config, found = run.read_config(), {}
    values = dict(walk(config))
    for key, text in map(split_override, run.overrides):
        found[key] = value if isinstance(value := values.get(key), int | float | str) else text
    return {"seed": config["seed"], **found}
