"""Saving the session, so that it can go on and its best model is not lost."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import Future, ThreadPoolExecutor

from labrl.errors import LabrlError
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate
from labrl.storage.atomic import sync_file
from labrl.storage.checkpoint import CheckpointStore, Taken
from labrl.storage.run_folder import SessionFolder

_log = logging.getLogger(__name__)

LARGEST_COPY = 2**28
"""Bytes of a state that is copied to be written beside training; of a larger one memory may lack a second."""


class DiskRefusesError(LabrlError):
    """No checkpoint could be written at the end, or for so long that none would be left to go on from."""

    codes = ("resources",)


class Checkpoint(Callback):
    """Every `meta.log_frequency` frames, at each new best evaluation, and at the end: the session's state.

    More often where a replay memory in files was begun with less room than that takes now, and where its
    frames fill the room sooner: those of very short episodes, or of observations that share none.

    Stands last among the callbacks: what the others did at this frame belongs into the checkpoint.
    With `on_crash`, a session that an exception ends leaves the state in which it did in a folder of its
    own, to be looked at: it may be in the middle of a step, so no run goes on from it.
    A disk that refuses is reported, and training goes on; the checkpoints before stay. Where they count on
    files that training writes to, it ends before they would be of no use any more. Where the last one is
    refused, the session has failed: what it learned since the one before is lost.

    Training goes on while a checkpoint is written, where the state is small enough to be copied and none of
    it lies in files that training writes to. One is whole on the disk before the next is begun, and before
    the session ends.

    Weights that are evaluated beside training are saved when that begins, and kept until it is known whether
    they are the best. The best model before a provisional evaluation is kept until that is taken back.
    """

    def __init__(self, frequency: int, keep_last: int, evaluate: Evaluate, save_crash: bool = False) -> None:
        """frequency: frames between checkpoints; evaluate: knows which model is the best."""
        self._save_crash = save_crash
        self._frequency = frequency
        self.frequencies = (frequency, *evaluate.frequencies)
        self._keep_last = keep_last
        self._evaluate = evaluate
        self._store: CheckpointStore | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[bool] | None = None
        self._saved_frame = 0
        self._written_frame = 0
        self._handled: BaseException | None = None

    def start(self, session: SessionView) -> None:
        """Open the folder; a resumed session does not save again where it was saved."""
        self._store = CheckpointStore(session.folder.checkpoints, self._keep_last)
        if session.most_frames_unsaved < self._frequency:
            self._frequency = session.most_frames_unsaved
            self.frequencies = (self._frequency, *self._evaluate.frequencies)
            _log.warning(
                "checkpoints every %d frames: the files in %s were made with room for no more",
                *(self._frequency, session.folder.path / "replay"),
            )
        if session.state_in_files:  # how much room a step takes is seen only then
            self.frequencies = (1,)
        self._saved_frame = self._written_frame = session.clock.frame
        session.mark_room()
        best_frame = self._evaluate.best_frame
        # a caller may run a session while it handles an error of its own
        self._handled = sys.exception()
        if (taken_back := self._evaluate.taken_back) is not None:
            self._store.take_back_best(taken_back)
            if best_frame is not None and self._store.best_frame() is None:  # a former version wrote it
                _log.warning("the best model so far, of frame %d, was not kept", best_frame)
        self._declare_earlier(session.clock.frame)
        if session.clock.frame and self._evaluate.is_best(session.clock.frame):
            best = self._store.best()
            if best is None or best.frame < session.clock.frame:  # an evaluation was made up for just now
                self._save(session)
        elif best_frame in self._store.frames() and best_frame != self._store.best_frame():
            assert best_frame is not None
            self._declare_best(best_frame)  # killed before it was

    def step(self, session: SessionView) -> None:
        """Save if it is due, or if this is the best model so far."""
        frame = session.clock.frame
        if self._saved_frame < 0:
            self._check_files(session)
        self._declare_earlier(frame)
        wanted = self._evaluate.is_best(frame) or self._evaluate.under_way == frame
        filled = self._saved_frame >= 0 and session.room_spent * self._keep_last > 1
        if session.clock.due(self._frequency) or wanted or filled:
            self._save(session)

    def finish(self, session: SessionView) -> None:
        """Save where an interruption stopped the session; what an exception left half done, apart."""
        self._settle()
        crashed = sys.exception() is not self._handled
        if crashed and self._save_crash:
            self._store_crash(session)
        if not crashed and session.clock.frame != self._saved_frame:
            self._save(session)
            self._settle()
        self._writer.shutdown()
        if not crashed and self._saved_frame < 0:
            frame, found = session.clock.frame, self._written_frame
            whence = (
                f"from the last one, of frame {found:,}" if found else "from the beginning, for there is none"
            )
            raise DiskRefusesError(
                f"no checkpoint could be written at the end, frame {frame:,}: make room in "
                f"{session.folder.checkpoints}, then labrl +resume goes on {whence}",
                key=str(session.folder.checkpoints),
            )

    def _store_crash(self, session: SessionView) -> None:
        folder, frame = session.folder.crash, session.clock.frame
        try:
            path = CheckpointStore(folder, keep_last=1).save(frame, session.state_dict())
        except Exception as error:  # what failed before may keep the state from being told
            _log.warning("the state at the crash cannot be saved to %s: %s", folder, error)
        else:
            _log.warning("the state at the crash is in %s", path)

    def _save(self, session: SessionView) -> None:
        """Begin to write, once the one before is written."""
        self._settle()
        frame = session.clock.frame
        evaluate = self._evaluate
        how = (evaluate.is_best(frame), evaluate.under_way, evaluate.provisional)
        try:
            taken = Taken.of(session.state_dict())
        except OSError as error:  # of files that are part of the state
            self._refused(frame, error)
            self._saved_frame = -1
            return
        beside = not session.state_in_files and taken.num_bytes <= LARGEST_COPY
        if beside:
            taken = taken.copied()
        self._saved_frame = frame
        self._writing = self._writer.submit(self._write, session.folder, frame, taken, how)
        if not beside:
            self._settle()
        if self._saved_frame >= 0:
            session.mark_room()

    def _write(
        self, folder: SessionFolder, frame: int, taken: Taken, how: tuple[bool, int | None, bool]
    ) -> bool:
        """Return whether the disk has it; how: what `CheckpointStore.write` is told besides."""
        assert self._store is not None, "start() comes before step()"
        # A loss of power may not take rows that the checkpoint counts as written.
        try:
            for table in (folder.train_csv, folder.eval_csv):
                sync_file(table)
            self._store.write(frame, taken, *how)
        except OSError as error:
            self._refused(frame, error)
            return False
        return True

    def _settle(self) -> None:
        """Wait for what is being written."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        if writing.result():
            self._written_frame = self._saved_frame
        else:
            self._saved_frame = -1

    def _check_files(self, session: SessionView) -> None:
        """After a refusal. Raises DiskRefusesError before files that the last checkpoint needs are lost."""
        until = self._written_frame + session.most_frames_unsaved * self._keep_last
        if session.state_in_files and (session.clock.frame >= until or session.room_spent > 1):
            files = session.folder.path / "replay"
            raise DiskRefusesError(
                f"no checkpoint could be written since frame {self._written_frame:,}, and further training "
                f"would overwrite what that one needs of {files}: make room there, then labrl +resume goes "
                "on from it",
                key=str(files),
            )

    def _refused(self, frame: int, error: OSError) -> None:
        _log.warning("no checkpoint at frame %d, training goes on: %s", frame, error)

    def _declare_earlier(self, frame: int) -> None:
        """Declare what evaluations beside training, told of at `frame`, have found to be the best."""
        for evaluated in self._evaluate.fresh_at(frame):
            if evaluated.best and evaluated.frame != frame:
                self._declare_best(evaluated.frame)

    def _declare_best(self, frame: int) -> None:
        """Of a checkpoint that was written before."""
        assert self._store is not None, "start() comes before step()"
        self._settle()
        try:
            self._store.declare_best(frame)
        except OSError as error:
            _log.warning("the best model, of frame %d, is not kept: %s", frame, error)
