"""Save checkpoints, so that a session can be resumed and its best model is kept."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labrl.errors import LabrlError
from labrl.memory.workspace import Workspace
from labrl.run.atomic import sync_file
from labrl.run.checkpoint import CheckpointStore
from labrl.run.session import RunSession
from labrl.run.tree import copied, num_bytes, pack
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.evaluate import Evaluate, Evaluated

_log = logging.getLogger(__name__)

LARGEST_COPY = 2**28
"""Size in bytes of the largest state that is copied and written in the background. A larger state and its
copy may not fit in memory together."""


class DiskRefusesError(LabrlError):
    """Raised if no checkpoint can be written at the end, or if writing has failed for so long that no usable
    checkpoint would be left to resume from."""

    codes = ("resources",)


class Checkpoint(Callback):
    """Save the session every `meta.log_frequency` frames, at each new best evaluation, and at the end.

    Must be the last callback, because the checkpoint includes the changes that the others make at its frame.

    Training continues while a checkpoint is written if the state is small enough to be copied and no part of
    it is in files that training writes to. A checkpoint is complete on disk before the next one is started
    and before the session ends. If a replay buffer is stored in files, checkpoints become more frequent if
    these files have too little room for `meta.log_frequency` frames, or if frames fill them sooner than
    usual.

    If the disk fails, training continues and `session.folder.errors` reports it; earlier checkpoints stay. If
    earlier checkpoints depend on files that training writes to, training ends before it would make them
    unusable. If the last checkpoint cannot be written, the session fails, because everything learned since
    the previous one is lost.

    Weights that are evaluated asynchronously are saved when the evaluation starts, and kept until its result
    is known.

    With `save_crash`, a session that ends with an exception saves its state in a separate folder for
    inspection. The state may be from the middle of a step, so no run resumes from it.
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
        """frequency: frames between checkpoints; keep_last: number of latest checkpoints to keep; evaluate:
        callback that provides the frame of the best model; workspace: workspace whose files may contain part
        of the state; num_ranks: number of ranks; keep_every: frames between checkpoints that are never
        removed."""
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
        """Open the folder. A resumed session does not save again at the frame of its checkpoint."""
        self._store = session.folder.store(self._keep_last)
        self._handled = sys.exception()  # the caller may be handling an unrelated exception
        room = self._most_unsaved(session)
        if room < self._frequency:
            why = f"because the files in {session.folder.replay} have no room for more"
            _log.warning("checkpoints are written every %d frames, %s", room, why)
            self._frequency = room
        # The room that a step takes in files is known only after the step.
        self.frequencies = (1,) if self._in_files else self._all_frequencies()
        frame, best_frame = session.clock.frame, self._evaluate.best_frame
        self._saved_frame = self._written_frame = frame
        self._workspace.mark()
        found = self._store.best_frame()
        if best_frame is not None and best_frame != found and best_frame in self._store.frames():
            # The run was killed before this checkpoint was marked, or its evaluation has just been repeated.
            self._declare_best(session, best_frame)

    def step(self, session: SessionView) -> None:
        """Save if a checkpoint is due, if the present model may be the best so far, or if files are nearly
        full."""
        frame = session.clock.frame
        if self._refused:
            self._check_files(session)
        of_interest = frame in (self._evaluate.best_frame, self._evaluate.owed)
        filled = not self._refused and self._room_spent * self._keep_last > 1
        if session.clock.due(self._frequency) or of_interest or filled or self._keeps(session):
            self.save(session)

    def save(self, session: SessionView) -> None:
        """Save, unless this frame has already been saved.

        Nothing is saved once the session has ended. Otherwise, a run whose budget is extended later would
        contain a checkpoint that exists only because the smaller budget ran out.
        """
        if not session.clock.ended and (self._refused or session.clock.frame != self._saved_frame):
            self._save(session)

    def save_now(self, session: SessionView) -> None:
        """Save at this frame, because a signal requests it, and report this in the log."""
        if self._num_ranks > 1:
            _log.warning("several ranks save only when checkpoints are due, so SIGUSR2 has no effect")
            return
        self.save(session)
        self._settle()
        if not self._refused:
            _log.warning(
                "checkpoint at frame %d, requested by SIGUSR2; training continues", session.clock.frame
            )

    def finish(self, session: SessionView) -> None:
        """Save an interrupted session; with `save_crash`, save a failed session in a separate folder."""
        self._settle()
        crashed = sys.exception() is not self._handled
        if crashed and self._save_crash:
            folder = session.folder.crash
            try:
                path = CheckpointStore(folder, keep_last=1).save(session.clock.frame, session.state_dict())
            except Exception as error:  # the original error may also make the state unavailable
                _log.warning("the state at the time of the crash could not be saved to %s: %s", folder, error)
            else:
                _log.warning("the state at the crash is in %s", path)
        if not crashed:
            self.save(session)
            self._settle()
        self._writer.shutdown()
        if not crashed and self._refused:
            why = f", nor at the end, at frame {session.clock.frame:,}"
            raise self._refusal(session, why, session.folder.checkpoints)

    def _all_frequencies(self) -> tuple[int, ...]:
        kept = () if self._keep_every is None else (self._keep_every,)
        return (self._frequency, self._evaluate.frequency, *kept)

    def _keeps(self, session: SessionView) -> bool:
        """Return whether the checkpoint at this frame must never be removed."""
        return self._keep_every is not None and session.clock.due(self._keep_every)

    @property
    def _in_files(self) -> bool:
        """Whether part of the state is in files that training continues to write to."""
        return bool(self._workspace.rooms)

    @property
    def _room_spent(self) -> float:
        """Fraction of the room in files that has been filled since the last checkpoint, including the next
        step.

        It is 0 for several ranks, which must save together and therefore at frames that the clock determines.
        """
        return self._workspace.spent if self._num_ranks == 1 else 0.0

    def _most_unsaved(self, session: SessionView) -> int:
        """Return the largest number of frames between checkpoints for which all stored checkpoints remain
        usable."""
        frames = self._workspace.frames_safe * self._num_ranks - session.config.env.config.num_envs
        return max(frames // self._keep_last, 1)

    def _save(self, session: SessionView) -> None:
        """Start to write a checkpoint, after waiting for the previous one."""
        self._settle()
        clock, evaluate = session.clock, self._evaluate
        how: dict[str, Any] = {
            "best": evaluate.best_frame,
            "owed": evaluate.owed,
            "keep": self._keeps(session),
            "replay": session.folder.replay if self._in_files else None,
        }
        try:
            packed = pack(session.state_dict())
        except OSError as error:  # from files that are part of the state
            self._refused = True
            session.folder.errors.failed(session.folder.checkpoints, error)
            return
        beside = not self._in_files and num_bytes(packed) <= LARGEST_COPY
        if beside:
            packed = copied(packed)  # so that training can continue meanwhile
        self._refused, self._saved_frame = False, clock.frame
        self._writing = self._writer.submit(self._write, session.folder, clock.frame, packed, how)
        if not beside:
            self._settle()
        if not self._refused:
            self._workspace.mark()

    def _write(self, folder: RunSession, frame: int, packed: Any, how: Mapping[str, Any]) -> bool:
        """Write a checkpoint. Return whether this succeeded.

        how: further arguments of `CheckpointStore.write`.
        """
        assert self._store is not None, "start() comes before step()"
        # A power failure must not lose rows that the checkpoint counts as written.
        with folder.errors.tolerated(folder.checkpoints):
            for table in (folder.train_csv, folder.eval_csv):
                if table in folder.errors.lacking:  # the checkpoint would count rows that do not exist
                    raise folder.errors.lacking[table]
            for path in (folder.train_csv, folder.eval_csv, folder.path, *folder.replay.glob("**")):
                sync_file(path)
            self._store.write(frame, packed, **how)
            return True
        self._refused = True
        return False

    def _settle(self) -> None:
        """Wait until the checkpoint in progress is written."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.result():
            self._written_frame = self._saved_frame

    def _check_files(self, session: SessionView) -> None:
        """Raise DiskRefusesError before files that the last checkpoint needs are lost."""
        until = self._written_frame + self._most_unsaved(session) * self._keep_last
        if self._in_files and (session.clock.frame >= until or self._room_spent > 1):
            files = session.folder.replay
            why = f", and training on would overwrite what it needs in {files}"
            raise self._refusal(session, why, files)

    def _refusal(self, session: SessionView, why: str, place: Path) -> DiskRefusesError:
        found, folder = self._written_frame, session.folder
        start = f"the last one, at frame {found:,}" if found else "frame 0"
        return DiskRefusesError(
            f"no checkpoint could be written since {start}{why} ({folder.errors.cause}): make "
            f"{folder.checkpoints} writable again, then continue from there with labrl +resume",
            key=str(place),
        )

    def _declare_earlier(self, session: SessionView, evaluated: Evaluated) -> None:
        """Mark an earlier checkpoint as best, after an asynchronous evaluation."""
        if self._store is not None and evaluated.best and evaluated.frame != session.clock.frame:
            self._declare_best(session, evaluated.frame)

    def _declare_best(self, session: SessionView, frame: int) -> None:
        """Mark the existing checkpoint of `frame` as the best one."""
        assert self._store is not None
        self._settle()
        with session.folder.errors.tolerated(session.folder.checkpoints):
            self._store.declare_best(frame)
