"""Saving the session, so that it can go on and its best model is not lost."""

from __future__ import annotations

import logging
import sys

from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate
from labrl.storage.atomic import sync_file
from labrl.storage.checkpoint import CheckpointStore

_log = logging.getLogger(__name__)


class Checkpoint(Callback):
    """Every `meta.log_frequency` frames, at each new best evaluation, and at the end: the session's state.

    More often where a replay memory in files was begun with less room than that takes now.

    Stands last among the callbacks: what the others did at this frame belongs into the checkpoint.
    With `on_crash`, a session that an exception ends leaves the state in which it did in a folder of its
    own, to be looked at: it may be in the middle of a step, so no run goes on from it.
    A disk that refuses is reported, and training goes on; the checkpoints before stay.

    Weights that are evaluated beside training are saved when that begins, and kept until it is known whether
    they are the best.
    """

    def __init__(self, frequency: int, keep_last: int, evaluate: Evaluate, save_crash: bool = False) -> None:
        """frequency: frames between checkpoints; evaluate: knows which model is the best."""
        self._save_crash = save_crash
        self._frequency = frequency
        self._keep_last = keep_last
        self._evaluate = evaluate
        self._store: CheckpointStore | None = None
        self._saved_frame = 0
        self._best_frame: int | None = None
        self._handled: BaseException | None = None

    def start(self, session: SessionView) -> None:
        """Open the folder; a resumed session does not save again where it was saved."""
        self._store = CheckpointStore(session.folder.checkpoints, self._keep_last)
        if session.most_frames_unsaved < self._frequency:
            self._frequency = session.most_frames_unsaved
            _log.warning(
                "checkpoints every %d frames: the files in %s were made with room for no more",
                *(self._frequency, session.folder.path / "replay"),
            )
        self._saved_frame = session.clock.frame
        best_frame = self._best_frame = self._evaluate.best_frame
        # a caller may run a session while it handles an error of its own
        self._handled = sys.exception()
        if session.clock.frame and self._evaluate.is_best(session.clock.frame):
            best = self._store.best()
            if best is None or best.frame < session.clock.frame:  # an evaluation was made up for just now
                self._save(session)
        elif best_frame in self._store.frames() and best_frame != self._store.best_frame():
            self._declare_best()  # killed before it was

    def step(self, session: SessionView) -> None:
        """Save if it is due, or if this is the best model so far."""
        frame = session.clock.frame
        if self._evaluate.best_frame != self._best_frame:
            self._best_frame = self._evaluate.best_frame
            if not self._evaluate.is_best(frame):
                self._declare_best()
        evaluated = self._evaluate.is_best(frame) or self._evaluate.under_way == frame
        if session.clock.due(self._frequency) or evaluated:
            self._save(session)

    def finish(self, session: SessionView) -> None:
        """Save where an interruption stopped the session; what an exception left half done, apart."""
        if sys.exception() is self._handled:
            if session.clock.frame != self._saved_frame:
                self._save(session)
        elif self._save_crash:
            self._store_crash(session)

    def _store_crash(self, session: SessionView) -> None:
        folder, frame = session.folder.crash, session.clock.frame
        try:
            path = CheckpointStore(folder, keep_last=1).save(frame, session.state_dict())
        except Exception as error:  # what failed before may keep the state from being told
            _log.warning("the state at the crash cannot be saved to %s: %s", folder, error)
        else:
            _log.warning("the state at the crash is in %s", path)

    def _save(self, session: SessionView) -> None:
        assert self._store is not None, "start() comes before step()"
        frame = session.clock.frame
        try:
            # A loss of power may not take rows that the checkpoint counts as written.
            for table in (session.folder.train_csv, session.folder.eval_csv):
                sync_file(table)
            kept = self._evaluate.under_way
            self._store.save(frame, session.state_dict(), self._evaluate.is_best(frame), kept)
        except OSError as error:
            _log.warning("no checkpoint at frame %d, training goes on: %s", frame, error)
        else:
            self._saved_frame = frame

    def _declare_best(self) -> None:
        """Of a checkpoint that was written before."""
        assert self._store is not None, "start() comes before step()"
        assert self._best_frame is not None, "the best score has a frame"
        try:
            self._store.declare_best(self._best_frame)
        except OSError as error:
            _log.warning("the best model, of frame %d, is not kept: %s", self._best_frame, error)
