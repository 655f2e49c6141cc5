"""Hogwild: weights that the sessions of a trial train together without a lock.

Niu et al. (2011, arXiv:1106.5730), and Mnih et al. (2016, arXiv:1602.01783, section 4) for reinforcement
learning. The order in which sessions read and write is undefined, so runs are not reproducible.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from labrl.agents.abilities import learns_faster_on_gpu
from labrl.agents.agent import agent_class
from labrl.config.schema import TrialConfig
from labrl.errors import InputError
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.run.atomic import write_atomic
from labrl.run.checkpoint import Checkpoint
from labrl.run.run import Run
from labrl.session.team import Alone
from labrl.step import Episode

if TYPE_CHECKING:
    from labrl.session.session import Session

FOLDER = "shared_weights"
"""Name of a folder in the run folder that exists while the sessions run."""


class Hogwild(Alone):
    """A session that trains the same weights as the other sessions of its trial."""

    def __init__(self, session: Session, mode: Literal["shared", "synced"]) -> None:
        super().__init__(session)
        self._run_folder = session.folder.path.parent
        self._weights = SharedWeights(self._run_folder, mode, session.agent.weights)

    def count(self, updates: int, ended: Sequence[Episode]) -> None:
        """Exchange weights after an update."""
        if updates:
            self._weights.exchange()
        super().count(updates, ended)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the agent, except its weights, which all sessions share."""

        def load_furthest() -> None:
            found = furthest(self._run_folder)
            self._session.agent.load_state_dict((state if found is None else found.state)["agent"])

        self._weights.restore(lambda: self._session.agent.load_state_dict(state["agent"]), load_furthest)


class SharedWeights:
    """One session's access to the common weights, in a file that every session maps into memory."""

    def __init__(self, run_folder: Path, mode: Literal["shared", "synced"], flat: FlatParameters) -> None:
        """run_folder: folder of the trial; flat: the session's own weights.

        The first session provides the initial weights, and the others copy them. With `shared`, all sessions
        work on the same memory. With `synced`, each works on a copy and adds its changes after each update.
        """
        self._folder, self._own, self._synced = run_folder / FOLDER, flat.vector, mode == "synced"
        self._folder.mkdir(exist_ok=True)
        path = self._folder / "weights.bin"
        with self._alone():
            if not path.exists():
                write_atomic(path, flat.vector.detach().numpy().tobytes(), durable=False)
        self._common = torch.from_file(str(path), shared=True, size=flat.vector.numel(), dtype=torch.float32)
        flat.shared = True
        if not self._synced:
            flat.move_to(self._common)
        self._base = Tensor()
        """The session's weights after its last exchange."""
        self._take_over()

    def exchange(self) -> None:
        """Add the changes of an update to the common weights, and copy these to the session."""
        if self._synced:
            self._common.add_(self._own.data - self._base)
            self._take_over()

    def restore(self, load: Callable[[], None], load_furthest: Callable[[], None]) -> None:
        """Restore a session, except its weights, which all sessions share.

        load: restores the session; load_furthest: restores the session of the trial that had trained for the
        most frames. The first session to be restored takes the common weights from the latter.
        """
        brought = self._folder / "restored"
        with self._alone():
            if not brought.exists():
                load_furthest()
                common = self._own.data.clone()
            else:
                common = self._common.clone()
            load()
            self._common.copy_(common)
            brought.touch()
        self._take_over()

    def _take_over(self) -> None:
        if self._synced:
            self._own.data.copy_(self._common)
            self._base = self._own.data.clone()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self._folder / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def furthest(run_folder: Path) -> Checkpoint | None:
    """Return the undamaged checkpoint with the most frames of all sessions of a trial, including finished
    ones."""
    stores = [session.store() for session in Run(run_folder).sessions]
    newest = [(store.newest_whole_frame() or 0, store) for store in stores]
    return max(newest, key=lambda each: each[0])[1].latest() if newest else None


def forget_shared_weights(run_folder: Path) -> None:
    """Remove the files of earlier sessions before new ones start, which restore from checkpoints."""
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def check_shared_weights(config: TrialConfig, images: bool) -> None:
    """Raise InputError if the sessions of a trial cannot train the same weights as configured.

    images: whether the agent sees images.
    """
    meta = config.meta
    if not meta.distributed:
        return
    if meta.max_session < 2:
        allowed = f"be at least 2 with meta.distributed={meta.distributed}, whose sessions train together"
        raise InputError.value("meta.max_session", meta.max_session, allowed, code="contradiction")
    agent_class(config.agent).check_shared(config.agent.config)
    on_gpu = learns_faster_on_gpu(config, images)
    compute = Compute.choose(meta.device, meta.precision, 1, num_gpus=meta.num_gpus, faster_on_gpu=on_gpu)
    if compute.device.type != "cpu":
        setting, other = f"meta.device={meta.device}", f"meta.distributed={meta.distributed}"
        raise InputError.contradiction(setting, other, "it shares weights in main memory", "meta.device=cpu")
