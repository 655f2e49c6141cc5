"""Coordination of learning with other processes: the ranks of torchrun, and the sessions in Hogwild.

In Hogwild, the sessions of a trial train the same weights without a lock (Niu et al., 2011, arXiv:1106.5730;
Mnih et al., 2016, arXiv:1602.01783, section 4, for reinforcement learning). The order in which the sessions
read and write is undefined, so runs are not reproducible.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from labrl.learning.flat import FlatParameters
from labrl.learning.ranks import Ranks
from labrl.run.atomic import write_atomic
from labrl.run.checkpoint import Checkpoint
from labrl.run.run import Run
from labrl.step import Episode

if TYPE_CHECKING:
    from labrl.agents.agent import Agent
    from labrl.session.session import Session

STEPS_BETWEEN_AGREEMENTS = 8
"""Number of vector steps after which the ranks agree on whether to stop."""

FOLDER = "shared_weights"
"""Name of the folder for Hogwild training; the run folder contains it only while the sessions run."""


class ReplicaError(RuntimeError):
    """The weights of the ranks differ, although they started equal and made the same updates."""


class RankTeam:
    """One of several ranks, each with the same number of environments; rank 0 writes all files.

    All ranks call each method after the same vector step. When a row or a checkpoint is due, they gather the
    finished episodes, metrics and states of all ranks.
    """

    def __init__(self, session: Session, ranks: Ranks) -> None:
        self._session, self._clock, self._interruption = session, session.clock, session.interruption
        self._num_envs, self._latest = session.env.num_envs, session.episodes.latest
        self._ranks, self._max_wall = ranks, session.config.meta.max_wall
        config = session.config
        frequencies = (config.log_frames, config.eval_frames, config.keep_frames)
        self._frequencies = [frames for frames in frequencies if frames is not None]
        self._frames_per_step = self._num_envs * ranks.size
        self._ended: list[tuple[int, Episode]] = []
        self._metrics: dict[str, float] = {}
        self._others: list[Mapping[str, Any]] = []
        self._met_at = -1

    def stops(self) -> bool:
        """Agree with the other ranks on whether to stop, every few steps and before each write."""
        clock = self._clock
        if clock.frame // self._frames_per_step % STEPS_BETWEEN_AGREEMENTS and not self._writes():
            return False
        spent = self._max_wall is not None and clock.wall >= self._max_wall
        interruption = self._interruption
        asked = (interruption.signal or 0, int(spent), int(interruption.requested))
        signal, over, stop = self._ranks.all_reduce_max(*asked)
        if over:
            clock.max_wall = 0.0  # all ranks spend it with the next tick
        if signal:
            interruption.stop(signal)
        elif stop:  # on rank 0, which alone has callbacks
            interruption.end()
        if stop and self._met_at != clock.frame:
            self._meet()
        return bool(stop)

    def count(self, ended: Sequence[Episode]) -> None:
        """Count the frames of all ranks immediately, and their episodes when the ranks meet.

        ended: episodes of this rank that ended in the vector step.
        """
        self._clock.tick(self._frames_per_step)
        self._ended += [(self._clock.frame, episode) for episode in ended]
        if self._writes():
            self._meet()
        if self._clock.finished or self._clock.due(self._session.config.log_frames):
            self.compare()

    def metrics(self) -> dict[str, float]:
        """Return the columns of a training row about learning and the environments: the means over the ranks,
        from their last meeting."""
        return self._metrics

    def state_dict(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states of ranks 1 and up, or an empty list if the ranks have not met at this frame.

        own: state of this process, whose tensors are not repeated.
        """
        met = self._met_at == self._clock.frame
        return {"ranks": [_sharing(state, own) for state in self._others] if met else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states of the other ranks. The clock must already have been restored."""
        self._others, self._met_at = list(state.get("ranks", [])), self._clock.frame

    def compare(self) -> None:
        """Raise ReplicaError on all ranks, naming the first weight that differs between ranks."""
        own = {
            f"{network}.{name}": hashlib.blake2b(
                tensor.detach().cpu().contiguous().numpy().tobytes(), digest_size=16
            ).digest()
            for network, module in self._session.agent.modules().items()
            for name, tensor in module.state_dict().items()
        }
        prints = self._ranks.all_gather(own)
        for name in prints[0]:
            different = [rank for rank, other in enumerate(prints) if other.get(name) != prints[0][name]]
            if different:
                raise ReplicaError(
                    f"the weights of the ranks differ at frame {self._clock.frame}: {name} of rank "
                    f"{different[0]} is not equal to that of rank 0"
                )

    def _writes(self) -> bool:
        return self._clock.finished or any(map(self._clock.due, self._frequencies))

    def _meet(self) -> None:
        rank = self._ranks.rank
        first = rank * self._num_envs
        ended = [(frame, replace(episode, env=episode.env + first)) for frame, episode in self._ended]
        self._ended = []
        gathered = self._ranks.all_gather((ended, self._session.own_metrics()))
        in_order = sorted((one for ended, _ in gathered for one in ended), key=lambda one: one[0])
        self._latest.extend(episode for _, episode in in_order)
        self._clock.episode += len(in_order)
        numbers = [metrics for _, metrics in gathered]
        self._metrics = {name: float(np.mean([one[name] for one in numbers])) for name in numbers[0]}
        sent = None if rank == 0 else on_cpu(self._session.own_state())
        self._others = self._ranks.gather_to_rank0(sent)[1:]
        self._met_at = self._clock.frame


class SharedWeights:
    """One session's access to the common weights, in a file that every session maps into memory."""

    def __init__(self, run_folder: Path, mode: Literal["shared", "synced"], flat: FlatParameters) -> None:
        """run_folder: folder of the trial; flat: the session's own weights.

        The first session provides the initial weights, and the others copy them. With `shared`, all sessions
        work on the same memory. With `synced`, each works on a copy and adds its changes after each update.
        """
        self._run_folder, self._folder = run_folder, run_folder / FOLDER
        self._own, self._synced = flat.vector, mode == "synced"
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
        """Add the changes of an update to the common weights, and copy the common weights to the session."""
        if self._synced:
            self._common.add_(self._own.data - self._base)
            self._take_over()

    def load(self, agent: Agent, state: Mapping[str, Any]) -> None:
        """Restore an agent from the state of its session, except its weights, which all sessions share."""

        def load_furthest() -> None:
            found = furthest(self._run_folder)
            agent.load_state_dict((state if found is None else found.state)["agent"])

        self.restore(lambda: agent.load_state_dict(state["agent"]), load_furthest)

    def restore(self, load: Callable[[], None], load_furthest: Callable[[], None]) -> None:
        """Restore a session, except its weights, which all sessions share.

        load: function that restores the session; load_furthest: function that restores the session of the
        trial that had trained for the most frames. The first session to be restored takes the common weights
        from that session.
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
    """Return the undamaged checkpoint with the most frames among all sessions of a trial, including finished
    sessions."""
    stores = [session.store() for session in Run(run_folder).sessions]
    newest = [(store.newest_whole_frame() or 0, store) for store in stores]
    return max(newest, key=lambda each: each[0])[1].latest() if newest else None


def forget_shared_weights(run_folder: Path) -> None:
    """Remove the files of earlier sessions before new sessions start, because the new ones restore their
    weights from checkpoints."""
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def on_cpu(state: Any) -> Any:
    """Return nested state with its tensors on the CPU. A receiver would put a tensor from a GPU on that
    same GPU, although the receiver may use a different one."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, Mapping):
        return {name: on_cpu(value) for name, value in state.items()}
    return type(state)(map(on_cpu, state)) if isinstance(state, list | tuple) else state


def _sharing(state: Any, own: Any) -> Any:
    """Return `state` with each tensor that equals a tensor of `own` replaced by the latter, so that it is
    stored only once."""
    if isinstance(state, Mapping) and isinstance(own, Mapping):
        return {name: _sharing(value, own.get(name)) for name, value in state.items()}
    if isinstance(state, torch.Tensor) and isinstance(own, torch.Tensor):
        same = state.dtype == own.dtype and state.shape == own.shape and torch.equal(state, own.cpu())
        return own if same else state
    return state
