"""One session on several processes of torchrun: rank 0 leads, and the others follow.

Only rank 0 reads the command line and writes files. The other ranks wait for the run folder that rank 0
names.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from labrl.errors import InputError
from labrl.processes.script import surroundings
from labrl.processes.signals import when_the_parent_ends
from labrl.run.provenance import Typed, as_typed

if TYPE_CHECKING:
    from labrl.learning.ranks import Ranks
    from labrl.run.run import Run

_FAILED, _RECORDED = "labrl/failed", "labrl/recorded"
_PATIENCE = 20.0
"""Seconds that a failed rank waits for rank 0 to record the error. torchrun ends all ranks when one exits."""


@dataclass(frozen=True)
class Launch:
    """Environment variables that torchrun sets for a process."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def here(cls) -> Launch | None:
        """Return the variables of this process; None without torchrun."""
        told = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        if "MASTER_ADDR" not in os.environ or not all(number.isdigit() for number in told):
            return None
        launch = cls(*map(int, told))
        return launch if launch.size > 1 else None


def typed_command() -> Typed:
    """Return the command that started this process; under torchrun, the command of the parent process, if
    known."""
    if Launch.here() is not None:
        try:
            arguments = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
        except (OSError, UnicodeDecodeError):
            arguments = []
        if any("torchrun" in one or one.startswith("torch.distributed") for one in arguments):
            return as_typed(arguments)
    return as_typed(sys.orig_argv)


def refuse_torchrun(what: str) -> None:
    """Raise InputError if torchrun has started this process, because `what` needs a single process.

    what: an argument of the command line, or a key with its value.
    """
    if (launch := Launch.here()) is not None:
        why = f"its {launch.size} processes train one session together"
        raise InputError.contradiction(what, "torchrun", why, "Start labrl without torchrun")


def check_resume(run: Run) -> None:
    """Raise InputError if the number of ranks differs from that at the start of the run."""
    launch, then = Launch.here(), run.read_info().get("ranks", 1)
    now = 1 if launch is None else launch.size
    if then != now:
        how = f"by torchrun with {then} processes" if then > 1 else "without torchrun"
        raise InputError(
            f"{run.path} was started with {_counted(then)} and cannot be continued with {_counted(now)}, "
            f"because its environments are divided among the ranks. Resume it {how}.",
            code="changed-past",
            key="+resume",
        )


def _counted(ranks: int) -> str:
    return "one process" if ranks == 1 else f"{ranks} ranks"


class Group:
    """The group of a session's connected ranks, from the point of view of one of them."""

    def __init__(self, launch: Launch) -> None:
        """Connect, and wait for the other ranks."""
        import torch
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        from labrl.learning.ranks import Ranks

        self.begun = False
        """Whether the other ranks were told to start a session."""
        self.ranks: Ranks = Ranks(launch.rank, launch.size, launch.local_rank, launch.local_size)
        self._store, rank, size = next(rendezvous("env://"))
        own_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= launch.local_size
        # NCCL does not allow two ranks on one GPU; gloo averages tensors on GPUs through the CPU.
        backend = "cpu:gloo,cuda:nccl" if own_gpu and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=self._store, rank=rank, world_size=size)
        if own_gpu:
            torch.cuda.set_device(launch.local_rank)

    def begin(self, folder: Path, frame: int | None) -> Ranks:
        """Start the session of the run in `folder` on the other ranks. Called on rank 0.

        frame: frame of the checkpoint to start from; None for a new session. Returns the ranks.
        """
        self.begun = True
        signal.signal(signal.SIGTERM, _outlive)
        order = {"folder": folder, "frame": frame, **surroundings()}
        self.ranks.scatter_from_rank0([order] * self.ranks.size)
        return self.ranks

    def dismiss(self) -> None:
        """Tell the other ranks to exit, after everything is recorded, even if no session has started. Called
        on rank 0."""
        if not self.begun:
            self.ranks.scatter_from_rank0([None] * self.ranks.size)
        self._store.set(_RECORDED, "")

    def leave(self) -> None:
        """Close the connection, because threads of an open group may abort the process at exit."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def fail(self, error: BaseException) -> None:
        """Report to rank 0 the error that ended this rank, disconnect, and wait until rank 0 has recorded
        it."""
        self._store.set(_FAILED, f"rank {self.ranks.rank} failed: {type(error).__name__}: {error}")
        self.leave()
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and not self._store.check([_RECORDED]):
            time.sleep(0.1)

    def why_lost(self) -> str:
        """Return the error that ended the lost rank, if it is known."""
        for _ in range(10):
            if self._store.check([_FAILED]):
                return self._store.get(_FAILED).decode()
            time.sleep(0.1)
        return "another rank was lost: it was killed, or its machine or network failed"


_group: Group | None = None


def leading() -> Group | None:
    """Return the group of this process, which the first call connects; None without torchrun."""
    global _group
    launch = Launch.here()
    if _group is None and launch is not None:
        _group = Group(launch)
    return _group


def lead(run: Callable[[], int]) -> int:
    """Call `run` on rank 0, tell the other ranks to exit afterwards, and return the exit code of `run`."""
    when_the_parent_ends()  # A killed torchrun does not end its processes.
    try:
        return run()
    finally:
        group = leading()
        assert group is not None
        group.dismiss()
        group.leave()


def _outlive(number: int, frame: FrameType | None) -> None:
    """Ignore SIGTERM, which torchrun sends if a rank is lost. The session notices the loss and records the
    reason."""
