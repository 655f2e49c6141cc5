"""Selection of a session of a run, and of one of its checkpoints."""

from __future__ import annotations

import math

from labrl.errors import DamagedFileError, InputError
from labrl.run.checkpoint import Checkpoint, CheckpointStore
from labrl.run.run_folder import RunFolder, SessionFolder
from labrl.run.tables import read_rows


def chosen_session(run: RunFolder, wanted: int | None, key: str = "session") -> SessionFolder:
    """Return session number `wanted`, or with None the session with the highest evaluation score.

    key: the option that the number was given with. Raises InputError if the session has not started.
    """
    sessions = run.sessions()
    if not sessions:
        raise InputError(f"{run.path} has no sessions yet", code="not-found", key=str(run.path))
    if wanted is None:
        # a running session may be writing to its table
        returns = {one.index: [row.get("return_mean") for row in read_rows(one.eval_csv)] for one in sessions}
        best = {
            index: max(
                (one for one in found if isinstance(one, int | float) and one == one), default=-math.inf
            )
            for index, found in returns.items()
        }
        return max(sessions, key=lambda session: (best[session.index], -session.index))
    for session in sessions:
        if session.index == wanted:
            return session
    numbers = ", ".join(str(session.index) for session in sessions)
    raise InputError(
        f"{key}={wanted}: no such session. The sessions of {run.path} are {numbers}",
        code="not-found",
        key=key,
    )


def chosen_checkpoint(session: SessionFolder, wanted: str, key: str = "checkpoint") -> tuple[Checkpoint, str]:
    """Return a checkpoint and its name.

    wanted: `best`, `latest`, a frame, or `default` for the best, or the latest if there is no best; key: the
    option that it was given with. Raises InputError with the list of existing checkpoints, and
    DamagedFileError if none of them is complete.
    """
    kinds = {"default": ("best", "latest")}.get(wanted, (wanted,))
    for _ in range(3):  # a running session may replace them while they are read
        store = CheckpointStore(session.checkpoints, keep_last=1)
        for kind in kinds:
            load = {"best": store.best, "latest": store.latest}.get(kind)
            found = load() if load is not None else store.at(int(kind))
            if found is not None:
                return found, kind if load is not None else "chosen"
    frames, best = store.frames(), store.best_frame()
    there = [f"{frame}" for frame in frames] + ([f"{best} (best)"] if best is not None else [])
    if store.broken:
        raise DamagedFileError(
            f"session {session.index} has no complete checkpoint: {store.broken_message}",
            key=str(store.folder),
        )
    if not there:
        raise InputError(
            f"session {session.index} of {session.path.parent} has no checkpoint yet: the first is written "
            "after meta.log_frequency frames",
            code="not-found",
            key=str(session.checkpoints),
        )
    raise InputError(
        f"{key}={wanted}: no such checkpoint. Session {session.index} of {session.path.parent} has "
        f"checkpoints of frames {', '.join(there)} (meta.keep_last and meta.keep_every keep more)",
        code="not-found",
        key=key,
    )
