"""What the ranks of one session do together besides averaging gradients: count, agree to stop, check, save.

torchrun starts the processes. Each has its share of the environments; rank 0 leads, and writes all that is
written. Every method of a `Team` is called by all ranks after the same vector step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from labrl.learning.ranks import Ranks
from labrl.step import Episode

if TYPE_CHECKING:
    from labrl.session.session import Session

STEPS_BETWEEN_AGREEMENTS = 8
"""Vector steps after which the ranks ask each other whether one was told to stop."""


class ReplicaError(RuntimeError):
    """The ranks do not have the same weights, though they began with the same and made the same updates."""


class Team:
    """One rank's place among those that train the session."""

    def __init__(self, ranks: Ranks, meets_every: Sequence[int], checks_every: int, max_wall: float | None):
        """meets_every: frequencies of what is written, frames; checks_every: frames between comparisons of
        the weights; max_wall: seconds of training after which the next step is the last."""
        self.ranks = ranks
        self.metrics: dict[str, float] = {}
        """Means over the ranks of what the agents say, as of the last meeting."""
        self._meets_every, self._checks_every, self._max_wall = tuple(meets_every), checks_every, max_wall
        self._ended: list[tuple[int, Episode]] = []
        self._others: list[Mapping[str, Any]] = []
        self._met_at = -1

    def tick(self, session: Session, episodes: Sequence[Episode]) -> None:
        """Count a vector step of all ranks, and meet where something is to be written."""
        clock = session.clock
        clock.tick(session.env.num_envs * self.ranks.size)
        self._ended += [(clock.frame, episode) for episode in episodes]
        if self._writes(session):
            self._meet(session)
        if clock.due(self._checks_every):
            self.compare(session)

    def stops(self, session: Session) -> bool:
        """Whether any rank was told to stop: then all do, here."""
        clock, interruption = session.clock, session.interruption
        step = clock.frame // (session.env.num_envs * self.ranks.size)
        if step % STEPS_BETWEEN_AGREEMENTS and not self._writes(session):
            return False
        spent = self._max_wall is not None and clock.wall >= self._max_wall
        signal, over = self.ranks.largest(interruption.signal or 0, int(spent))
        if over:
            clock.end_with_the_next_tick()
        if signal:
            interruption.stop(signal)
            if self._met_at != clock.frame:
                self._meet(session)
        return bool(signal)

    def compare(self, session: Session) -> None:
        """Raises ReplicaError on all ranks, naming the first weight that is not the same everywhere."""
        prints = self.ranks.gathered(_fingerprints(session.agent.modules()))
        for name in prints[0]:
            different = [rank for rank, other in enumerate(prints) if other.get(name) != prints[0][name]]
            if different:
                raise ReplicaError(
                    f"the ranks' weights differ at frame {session.clock.frame}: {name} of rank "
                    f"{different[0]} is not that of rank 0"
                )

    def others(self, frame: int, own: Mapping[str, Any]) -> list[Any]:
        """What the other ranks remember at `frame`, by rank from 1; nothing where they have not met there.

        own: what this rank remembers; what another has just so is not there twice.
        """
        return [_sharing(state, own) for state in self._others] if self._met_at == frame else []

    def restore(self, frame: int, others: Sequence[Mapping[str, Any]]) -> None:
        """Go on at `frame`, where the others remembered this."""
        self._others, self._met_at = list(others), frame

    def _writes(self, session: Session) -> bool:
        return any(session.clock.due(frequency) for frequency in self._meets_every)

    def _meet(self, session: Session) -> None:
        """Bring together the episodes that ended, the agents' numbers, and to rank 0 what all remember."""
        clock, episodes, rank = session.clock, session.episodes, self.ranks.rank
        first = rank * session.env.num_envs
        ended = [(frame, _numbered(episode, first)) for frame, episode in self._ended]
        self._ended = []
        told = self.ranks.gathered((ended, session.own_metrics()))
        in_order = sorted((one for ended, _ in told for one in ended), key=lambda one: one[0])
        episodes.latest.extend(episode for _, episode in in_order)
        clock.episode += len(in_order)
        numbers = [metrics for _, metrics in told]
        self.metrics = {name: float(np.mean([one[name] for one in numbers])) for name in numbers[0]}
        self._others = self.ranks.sent_to_leader(None if rank == 0 else session.own_state())[1:]
        self._met_at = clock.frame


def _numbered(episode: Episode, first: int) -> Episode:
    """With the number of its environment among those of all ranks."""
    return Episode(
        episode.env + first,
        episode.index,
        episode.seed,
        episode.episode_return,
        episode.length,
        episode.truncated,
    )


def _fingerprints(modules: Mapping[str, torch.nn.Module]) -> dict[str, bytes]:
    """Of each weight and buffer, by the name of its network and its own."""
    return {
        f"{network}.{name}": hashlib.blake2b(_bytes(tensor), digest_size=16).digest()
        for network, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def _sharing(state: Any, own: Any) -> Any:
    """`state`, its tensors replaced by those of `own` that are equal: a checkpoint holds them once."""
    if isinstance(state, Mapping) and isinstance(own, Mapping):
        return {name: _sharing(value, own.get(name)) for name, value in state.items()}
    if isinstance(state, torch.Tensor) and isinstance(own, torch.Tensor):
        same = state.dtype == own.dtype and state.shape == own.shape and torch.equal(state, own.cpu())
        return own if same else state
    return state
