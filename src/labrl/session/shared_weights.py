"""Weights that the sessions of a trial train together without a lock: Hogwild.

Niu et al. (2011, arXiv:1106.5730), and Mnih et al. (2016, arXiv:1602.01783, section 4) for reinforcement
learning. Nothing orders what the sessions read and write, so no two runs are equal.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from labrl.learning.flat import FlatParameters
from labrl.storage.atomic import write_atomic
from labrl.storage.checkpoint import Checkpoint, CheckpointStore
from labrl.storage.run_folder import RunFolder

FOLDER = "shared_weights"
"""In the run folder, for as long as the sessions run."""


class SharedWeights:
    """One session's hold on them. They lie in a file that every session maps into its memory."""

    def __init__(self, run_folder: Path, mode: Literal["shared", "synced"], flat: FlatParameters) -> None:
        """run_folder: of the trial; flat: the session's own weights.

        The first session to come brings the initial weights, the others take them over. `shared`: all work
        on the same memory. `synced`: each works on its own and adds what it changed after each update.
        """
        self._folder = run_folder / FOLDER
        self._own = flat.vector
        self._mode = mode
        self._folder.mkdir(exist_ok=True)
        path = self._folder / "weights.bin"
        with self._alone():
            if not path.exists():
                write_atomic(path, flat.vector.detach().numpy().tobytes(), durable=False)
        self._common = torch.from_file(str(path), shared=True, size=flat.vector.numel(), dtype=torch.float32)
        flat.shared = True
        if mode == "shared":
            flat.move_to(self._common)
        self._base = Tensor()
        """What the session had after its last exchange."""
        self._take_over()

    def exchange(self) -> None:
        """After an update: add what it changed to the common weights, and take those over."""
        if self._mode == "synced":
            self._common.add_(self._own.data - self._base)
            self._take_over()

    def restore(self, load: Callable[[], None], load_furthest: Callable[[], None]) -> None:
        """Let `load` bring back a session, but for its weights, which are common.

        load_furthest: brings back the session of the trial that had come furthest; the first session that is
        restored takes the weights from there.
        """
        brought = self._folder / "restored"
        with self._alone():
            if brought.exists():
                common = self._common.clone()
            else:
                load_furthest()
                common = self._own.data.clone()
            load()
            self._common.copy_(common)
            brought.touch()
        self._take_over()

    def _take_over(self) -> None:
        if self._mode == "synced":
            self._own.data.copy_(self._common)
            self._base = self._own.data.clone()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self._folder / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def furthest(run_folder: Path) -> Checkpoint | None:
    """The whole checkpoint with the most frames of all sessions of a trial, finished ones too."""
    stores = [CheckpointStore(session.checkpoints, 1) for session in RunFolder(run_folder).sessions()]
    newest = [(store.newest_whole_frame() or 0, store) for store in stores]
    return max(newest, key=lambda each: each[0])[1].latest() if newest else None


def forget_shared_weights(run_folder: Path) -> None:
    """Before sessions start: what is left of earlier ones counts no more than their checkpoints."""
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)
