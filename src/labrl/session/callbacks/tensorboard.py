"""Write metrics, histograms, and an experiment's hyperparameters for TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from labrl.run.tables import read_rows
from labrl.session.callbacks.callback import Callback, Row, SessionView, Table
from labrl.session.callbacks.closer_look import CloserLook

if TYPE_CHECKING:
    from labrl.session.callbacks.event_file import EventFile

TABLES: tuple[Table, ...] = ("train", "eval")


class TensorBoard(Callback):
    """Write every number of every row as `train/<column>` or `eval/<column>` over frames.

    A resumed session starts a new file. The new file tells readers to discard the content of earlier files
    from its first frame on, and repeats the rows that would be lost in this way from the tables. Each row is
    therefore shown exactly once, except rows that the resume undid, which are not shown. While the file
    cannot be written, for instance on a full disk, rows are kept for later, but histograms are lost.
    """

    def __init__(self, look: CloserLook | None = None) -> None:
        """look: source of the histograms for each training row; None: no histograms."""
        self._look = look
        self.frequencies = () if look is None else (1,)
        self._file: EventFile | None = None

    def step(self, session: SessionView) -> None:
        """Collect the actions for the histograms."""
        assert self._look is not None, "step() is called only with histograms"
        self._look.step(session)

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Write the finite numbers of a row."""
        frame = int(row["frame"])
        errors, folder = session.folder.errors, session.folder.tensorboard
        with errors.tolerated(folder):
            if self._file is None:
                self._file = self._open(session, table, frame)
            self._file.add_row(table, row)
            if self._look is not None and table == "train" and folder not in errors.lacking:
                self._file.add_histograms(frame, self._look.values(session))
            self._file.flush()  # so that the curves of a killed session reach up to here

    def finish(self, session: SessionView) -> None:
        """Write how the session ended."""
        file, self._file = self._file, None
        if file is not None:
            file.add_end(session)
            with session.folder.errors.tolerated(session.folder.tensorboard):
                file.flush()

    def _open(self, session: SessionView, table: Table, frame: int) -> EventFile:
        """Start a file for the row of `frame` in `table`, and repeat earlier rows that are lost."""
        # Imported with the first row, so that the first training step does not wait for it.
        from labrl.session.callbacks.event_file import EventFile, event_files

        folder = session.folder
        rows = {"train": _by_frame(folder.train_csv), "eval": _by_frame(folder.eval_csv)}
        late = table == "eval"  # an asynchronous evaluation may be older than training rows
        rows["train"] = {at: row for at, row in rows["train"].items() if late or at < frame}
        rows["eval"] = {at: row for at, row in rows["eval"].items() if at < frame}
        purge_from = None
        if event_files(folder.tensorboard):
            # Histograms are written with training rows and are in no table, so they must not be discarded.
            whole = rows.values() if self._look is None else [rows["train"]]
            purge_from = 1 + min(max(of_table, default=-1) for of_table in whole)
        file = EventFile(folder.tensorboard, purge_from)
        file.add_hyperparameters(session)
        began = time.time() - session.clock.wall
        for name in TABLES:
            for at, row in rows[name].items():
                if at >= (purge_from or 0):
                    file.add_row(name, row, began + float(row["wall"] or 0))
        return file


def _by_frame(table: Path) -> dict[int, Row]:
    return {int(str(row["frame"])): row for row in read_rows(table)}
