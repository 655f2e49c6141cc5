"""Saving the session, so that it can continue and its best model is not lost."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from labrl.errors import LabrlError
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate, Evaluated
from labrl.storage.atomic import sync_file
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.run_folder import SessionFolder
from labrl.storage.tree import num_bytes, pack
from labrl.workspace import Workspace

_log = logging.getLogger(__name__)

LARGEST_COPY = 2**28
"""Size in bytes up to which a state is copied and written beside training; two larger ones may not fit."""


class DiskRefusesError(LabrlError):
    """Raised when no checkpoint can be written at the end, or for so long that none would be left to continue
    from."""

    codes = ("resources",)


class Checkpoint(Callback):
    """Every `meta.log_frequency` frames, at each new best evaluation, and at the end: the session's state.

    Must be the last callback, because the checkpoint includes what the others did at this frame.

    Training continues while a checkpoint is written if the state is small enough to be copied and none of
    it lies in files that training writes to. A checkpoint is complete on disk before the next one begins and
    before the session ends. Where a replay buffer lies in files, checkpoints are more frequent if these files
    have less room than `meta.log_frequency` takes, or if frames fill it sooner than usual.

    If the disk fails, this is reported and training continues; earlier checkpoints stay. If they depend on
    files that training writes to, training ends before they would become useless. If the last checkpoint
    fails, the session has failed, because what it learned since the one before is lost.

    Weights that are evaluated beside training are saved when that begins, and kept until it is known whether
    they are the best. Where the budget alone has caused the last evaluation, the best model before it is kept
    for a run that continues with a larger budget.

    With `save_crash`, a session that ends with an exception saves its state in a separate folder for
    inspection. It may be in the middle of a step, so no run continues from it.
    """

    def __init__(
        self,
        frequency: int,
        keep_last: int,
        evaluate: Evaluate,
        workspace: Workspace,
        num_ranks: int = 1,
        save_crash: bool = False,
        keep_every: int | None = None,
    ) -> None:
        """frequency: frames between checkpoints; evaluate: knows which model is the best; workspace: the
        files that the state may lie in, of one of `num_ranks` ranks; keep_every: frames between checkpoints
        that are never removed."""
        self._frequency, self._keep_last, self._keep_every = frequency, keep_last, keep_every
        self._evaluate = evaluate
        self.frequencies = self._all_frequencies()
        self._workspace, self._num_ranks, self._save_crash = workspace, num_ranks, save_crash
        self._store: CheckpointStore | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[bool] | None = None
        self._saved_frame = self._written_frame = 0
        self._refused = False
        self._handled: BaseException | None = None
        evaluate.followers.append(self._declare_earlier)

    def start(self, session: SessionView) -> None:
        """Open the folder; a resumed session does not save again where it was saved."""
        self._store = CheckpointStore(session.folder.checkpoints, self._keep_last)
        self._handled = sys.exception()  # a caller may run a session while it handles an error of its own
        if self._most_unsaved(session) < self._frequency:
            self._frequency = self._most_unsaved(session)
            _log.warning(
                "checkpoints every %d frames: the files in %s were made with room for no more",
                *(self._frequency, session.folder.replay),
            )
        # How much room in files a step takes is seen only after it.
        self.frequencies = (1,) if self._in_files else self._all_frequencies()
        frame, best_frame = session.clock.frame, self._evaluate.best_frame
        self._saved_frame = self._written_frame = frame
        self._workspace.mark()
        if best_frame != frame and frame in self._store.frames():
            self._store.take_back_best(frame)  # the end of a smaller budget had caused its evaluation
        found = self._store.best_frame()
        if best_frame == frame > 0 and (found is None or found < frame):
            self._save(session)  # an evaluation was made up for just now
        elif best_frame is not None and best_frame != found and best_frame in self._store.frames():
            self._declare_best(best_frame)  # killed before it was

    def step(self, session: SessionView) -> None:
        """Save if it is due, if this may be the best model so far, or if files have no room for more."""
        frame = session.clock.frame
        if self._refused:
            self._check_files(session)
        of_interest = self._evaluate.best_frame == frame or self._evaluate.owes(frame)
        filled = not self._refused and self._room_spent * self._keep_last > 1
        if session.clock.due(self._frequency) or of_interest or filled or self._keeps(session):
            self._save(session)

    def finish(self, session: SessionView) -> None:
        """Save where an interruption stopped the session; what an exception left half done, apart."""
        self._settle()
        crashed = sys.exception() is not self._handled
        if crashed and self._save_crash:
            self._store_crash(session)
        if not crashed and (self._refused or session.clock.frame != self._saved_frame):
            self._save(session)
            self._settle()
        self._writer.shutdown()
        if not crashed and self._refused:
            found = self._written_frame
            whence = f"the last one, of frame {found:,}" if found else "the beginning, for there is none"
            raise DiskRefusesError(
                f"no checkpoint could be written at the end, frame {session.clock.frame:,}: make room in "
                f"{session.folder.checkpoints}, then labrl +resume continues from {whence}",
                key=str(session.folder.checkpoints),
            )

    def _all_frequencies(self) -> tuple[int, ...]:
        kept = () if self._keep_every is None else (self._keep_every,)
        return (self._frequency, self._evaluate.frequency, *kept)

    def _keeps(self, session: SessionView) -> bool:
        """Return whether the checkpoint of this frame is one that is never removed."""
        return self._keep_every is not None and session.clock.crossed(self._keep_every)

    @property
    def _in_files(self) -> bool:
        """Whether some of the state lies in files that training continues to write."""
        return bool(self._workspace.rooms)

    @property
    def _room_spent(self) -> float:
        """Return the part of the room in files filled since the last checkpoint, including the next step.

        Ranks save together, at frames that follow from the clock.
        """
        return self._workspace.spent if self._num_ranks == 1 else 0.0

    def _most_unsaved(self, session: SessionView) -> int:
        """Return the largest number of frames between checkpoints at which all kept ones stay usable."""
        frames = self._workspace.frames_safe * self._num_ranks - session.config.env.config.num_envs
        return max(frames // self._keep_last, 1)

    def _save(self, session: SessionView) -> None:
        """Begin to write, once the previous checkpoint is written."""
        self._settle()
        clock, evaluate = session.clock, self._evaluate
        provisional = clock.finished and not clock.crossed(evaluate.frequency)
        how: dict[str, Any] = {
            "best": evaluate.best_frame == clock.frame,
            "owed": evaluate.owed,
            "provisional": provisional,
            "keep": self._keeps(session),
            "replay": session.folder.replay if self._in_files else None,
        }
        try:
            packed = pack(session.state_dict())
        except OSError as error:  # of files that are part of the state
            self._refuse(clock.frame, error)
            return
        beside = not self._in_files and num_bytes(packed) <= LARGEST_COPY
        if beside:
            packed = copy.deepcopy(packed)  # so that the session can go on
        self._refused, self._saved_frame = False, clock.frame
        self._writing = self._writer.submit(self._write, session.folder, clock.frame, packed, how)
        if not beside:
            self._settle()
        if not self._refused:
            self._workspace.mark()

    def _write(self, folder: SessionFolder, frame: int, packed: Any, how: Mapping[str, Any]) -> bool:
        """Return whether the disk has it; how: what `CheckpointStore.write` gets besides."""
        assert self._store is not None, "start() comes before step()"
        # A loss of power may not take rows that the checkpoint counts as written.
        try:
            for table in (folder.train_csv, folder.eval_csv):
                sync_file(table)
            self._store.write(frame, packed, **how)
        except OSError as error:
            self._refuse(frame, error)
            return False
        return True

    def _settle(self) -> None:
        """Wait for what is being written."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.result():
            self._written_frame = self._saved_frame

    def _refuse(self, frame: int, error: OSError) -> None:
        self._refused = True
        _log.warning("no checkpoint at frame %d, training continues: %s", frame, error)

    def _check_files(self, session: SessionView) -> None:
        """Raise DiskRefusesError before files that the last checkpoint needs are lost."""
        until = self._written_frame + self._most_unsaved(session) * self._keep_last
        if self._in_files and (session.clock.frame >= until or self._room_spent > 1):
            files = session.folder.replay
            raise DiskRefusesError(
                f"no checkpoint could be written since frame {self._written_frame:,}, and further training "
                f"would overwrite what that one needs of {files}: make room there, then labrl +resume goes "
                "on from it",
                key=str(files),
            )

    def _store_crash(self, session: SessionView) -> None:
        folder, frame = session.folder.crash, session.clock.frame
        try:
            path = CheckpointStore(folder, keep_last=1).save(frame, session.state_dict())
        except Exception as error:  # what failed before may keep the state from being told
            _log.warning("the state at the crash cannot be saved to %s: %s", folder, error)
        else:
            _log.warning("the state at the crash is in %s", path)

    def _declare_earlier(self, session: SessionView, evaluated: Evaluated) -> None:
        """Mark as best the checkpoint that an evaluation beside training has found to be the best."""
        if self._store is not None and evaluated.best and evaluated.frame != session.clock.frame:
            self._declare_best(evaluated.frame)

    def _declare_best(self, frame: int) -> None:
        """Let the checkpoint of `frame`, written before, be the best one."""
        assert self._store is not None
        self._settle()
        try:
            self._store.declare_best(frame)
        except OSError as error:
            _log.warning("the best model, of frame %d, is not kept: %s", frame, error)
