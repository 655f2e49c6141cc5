"""Coordination of learning: a session that learns alone, or one of several ranks started by torchrun."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from labrl.learning.ranks import Ranks
from labrl.step import Episode

if TYPE_CHECKING:
    from labrl.session.session import Session

STEPS_BETWEEN_AGREEMENTS = 8
"""Number of vector steps after which the ranks agree on whether to stop."""


class ReplicaError(RuntimeError):
    """The weights of the ranks differ, although they started equal and made the same updates."""


class Alone:
    """A session that learns by itself."""

    def __init__(self, session: Session) -> None:
        self._session, self._clock, self._interruption = session, session.clock, session.interruption
        self._num_envs, self._latest = session.env.num_envs, session.episodes.latest

    def begin(self) -> None:
        """Check, before the first step, that all ranks have the same weights."""

    def stops(self) -> bool:
        """Return whether to stop at this step, because any of the ranks must stop."""
        return self._interruption.requested

    def count(self, updates: int, ended: Sequence[Episode]) -> None:
        """Count a vector step, its optimizer updates, and the episodes that ended in it."""
        self._clock.opt_step += updates
        self._clock.tick(self._num_envs, len(ended))
        if ended:
            self._latest.extend(ended)

    def metrics(self) -> dict[str, float]:
        """Return the columns of a training row about learning and the environments."""
        return self._session.own_metrics()

    def state_dict(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return further state for a checkpoint, beyond `own`, the state of this process."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the agent. The clock must have been restored before."""
        self._session.agent.load_state_dict(state["agent"])


class RankTeam(Alone):
    """One of several ranks, each with the same number of environments; rank 0 writes all files.

    All ranks call each method after the same vector step. When a row or a checkpoint is due, they gather the
    finished episodes, metrics and states of all ranks.
    """

    def __init__(self, session: Session, ranks: Ranks) -> None:
        super().__init__(session)
        self._ranks, self._max_wall = ranks, session.config.meta.max_wall
        config = session.config
        frequencies = (config.log_frames, config.eval_frames, config.keep_frames)
        self._frequencies = [frames for frames in frequencies if frames is not None]
        self._frames_per_step = self._num_envs * ranks.size
        self._ended: list[tuple[int, Episode]] = []
        self._metrics: dict[str, float] = {}
        self._others: list[Mapping[str, Any]] = []
        self._met_at = -1

    def begin(self) -> None:
        """Compare the weights of the ranks."""
        self.compare()

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

    def count(self, updates: int, ended: Sequence[Episode]) -> None:
        """Count the frames of all ranks at once, and their episodes when the ranks meet."""
        self._clock.opt_step += updates
        self._clock.tick(self._frames_per_step)
        self._ended += [(self._clock.frame, episode) for episode in ended]
        if self._writes():
            self._meet()
        if self._clock.finished or self._clock.due(self._session.config.log_frames):
            self.compare()

    def metrics(self) -> dict[str, float]:
        """Return the means of the metrics over the ranks, from their last meeting."""
        return self._metrics

    def state_dict(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states of ranks 1 and up, or an empty list if the ranks have not met at this frame."""
        met = self._met_at == self._clock.frame
        return {"ranks": [_sharing(state, own) for state in self._others] if met else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the agent and the states of the other ranks."""
        super().load_state_dict(state)
        self._others, self._met_at = list(state.get("ranks", [])), self._clock.frame

    def compare(self) -> None:
        """Raise ReplicaError on all ranks, naming the first weight that differs between ranks."""
        prints = self._ranks.all_gather(_fingerprints(self._session.agent.modules()))
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


def _fingerprints(modules: Mapping[str, torch.nn.Module]) -> dict[str, bytes]:
    """Return a hash of each weight and buffer, by name `<network>.<parameter>`."""
    return {
        f"{network}.{name}": hashlib.blake2b(
            tensor.detach().cpu().contiguous().numpy().tobytes(), digest_size=16
        ).digest()
        for network, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def on_cpu(state: Any) -> Any:
    """Return nested state with its tensors on the CPU: one on a GPU would arrive there at its receiver too,
    which may use another GPU."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, Mapping):
        return {name: on_cpu(value) for name, value in state.items()}
    return type(state)(map(on_cpu, state)) if isinstance(state, list | tuple) else state


def _sharing(state: Any, own: Any) -> Any:
    """Return `state` with equal tensors replaced by those of `own`, so that a checkpoint stores them once."""
    if isinstance(state, Mapping) and isinstance(own, Mapping):
        return {name: _sharing(value, own.get(name)) for name, value in state.items()}
    if isinstance(state, torch.Tensor) and isinstance(own, torch.Tensor):
        same = state.dtype == own.dtype and state.shape == own.shape and torch.equal(state, own.cpu())
        return own if same else state
    return state
