"""The team that a session learns with: itself alone, or the ranks that torchrun has started."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from labrl.agents.agent import Agent
from labrl.clock import Clock
from labrl.learning.ranks import Ranks
from labrl.session.episodes import EpisodeWindow
from labrl.session.interruption import Interruption
from labrl.step import Episode

STEPS_BETWEEN_AGREEMENTS = 8
"""Vector steps after which the ranks ask each other whether one must stop."""


class ReplicaError(RuntimeError):
    """The ranks do not have the same weights, though they began with the same and made the same updates."""


@dataclass(frozen=True)
class Own:
    """This process's part of the session."""

    clock: Clock
    episodes: EpisodeWindow
    interruption: Interruption
    agent: Agent
    num_envs: int
    """Environments of this process."""
    metrics: Callable[[], dict[str, float]]
    """Columns of a training row about learning and collecting in this process."""
    state_dict: Callable[[], dict[str, Any]]
    """State of this process alone."""


class Alone:
    """A session that learns by itself."""

    def __init__(self, own: Own) -> None:
        self._own, self._clock, self._interruption = own, own.clock, own.interruption
        self._num_envs, self._latest = own.num_envs, own.episodes.latest

    def begin(self) -> None:
        """Agree with the others on what is there before the first step."""

    def stops(self) -> bool:
        """Return whether any rank must stop; then all stop at this step."""
        return self._interruption.requested

    def count(self, updates: int, ended: Sequence[Episode]) -> None:
        """Tick the clock for a vector step, and take in its updates and the episodes that ended in it."""
        self._clock.opt_step += updates
        self._clock.tick(self._num_envs, len(ended))
        if ended:
            self._latest.extend(ended)

    def metrics(self) -> dict[str, float]:
        """Return what a training row says of learning and collecting."""
        return self._own.metrics()

    def state_dict(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint holds besides `own`, what this process has to remember."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back the agent, once the clock has been."""
        self._own.agent.load_state_dict(state["agent"])


class RankTeam(Alone):
    """One of several ranks, each with an equal part of the environments; rank 0 leads, and writes all files.

    All ranks call each method after the same vector step. Where a row or a checkpoint is due, they gather the
    finished episodes, the metrics and the states of all.
    """

    def __init__(
        self, own: Own, ranks: Ranks, frequencies: Sequence[int], checks_every: int, max_wall: float | None
    ) -> None:
        """frequencies: of what is written, frames; checks_every: frames between comparisons of the weights;
        max_wall: seconds of training after which the next step is the last."""
        super().__init__(own)
        self._ranks, self._checks_every, self._max_wall = ranks, checks_every, max_wall
        self._frequencies = tuple(frequencies)
        self._frames_per_step = own.num_envs * ranks.size
        self._ended: list[tuple[int, Episode]] = []
        self._metrics: dict[str, float] = {}
        self._others: list[Mapping[str, Any]] = []
        self._met_at = -1

    def begin(self) -> None:
        """Compare the weights."""
        self.compare()

    def stops(self) -> bool:
        """Ask the others every few steps, and where something is written."""
        clock = self._clock
        if clock.frame // self._frames_per_step % STEPS_BETWEEN_AGREEMENTS and not self._writes():
            return False
        spent = self._max_wall is not None and clock.wall >= self._max_wall
        interruption = self._interruption
        asked = (interruption.signal or 0, int(spent), int(interruption.requested))
        signal, over, stop = self._ranks.largest(*asked)
        if over:
            clock.end_with_the_next_tick()
        if signal:
            interruption.stop(signal)
        elif stop:  # on rank 0, which alone has callbacks
            interruption.end()
        if stop and self._met_at != clock.frame:
            self._meet()
        return bool(stop)

    def count(self, updates: int, ended: Sequence[Episode]) -> None:
        """Count the frames of all ranks; episodes when they meet."""
        self._clock.opt_step += updates
        self._clock.tick(self._frames_per_step)
        self._ended += [(self._clock.frame, episode) for episode in ended]
        if self._writes():
            self._meet()
        if self._clock.due(self._checks_every):
            self.compare()

    def metrics(self) -> dict[str, float]:
        """Return the means over the ranks at their last meeting."""
        return self._metrics

    def state_dict(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the other ranks remember, by rank from 1; nothing where they have not met."""
        met = self._met_at == self._clock.frame
        return {"ranks": [_sharing(state, own) for state in self._others] if met else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back the agent, and where the ranks have met."""
        super().load_state_dict(state)
        self._others, self._met_at = list(state.get("ranks", [])), self._clock.frame

    def compare(self) -> None:
        """Raise ReplicaError on all ranks, naming the first weight that is not the same everywhere."""
        prints = self._ranks.gathered(_fingerprints(self._own.agent.modules()))
        for name in prints[0]:
            different = [rank for rank, other in enumerate(prints) if other.get(name) != prints[0][name]]
            if different:
                raise ReplicaError(
                    f"the ranks' weights differ at frame {self._clock.frame}: {name} of rank "
                    f"{different[0]} is not that of rank 0"
                )

    def _writes(self) -> bool:
        return any(self._clock.due(frequency) for frequency in self._frequencies)

    def _meet(self) -> None:
        rank = self._ranks.rank
        first = rank * self._num_envs
        ended = [(frame, replace(episode, env=episode.env + first)) for frame, episode in self._ended]
        self._ended = []
        gathered = self._ranks.gathered((ended, self._own.metrics()))
        in_order = sorted((one for ended, _ in gathered for one in ended), key=lambda one: one[0])
        self._latest.extend(episode for _, episode in in_order)
        self._clock.episode += len(in_order)
        numbers = [metrics for _, metrics in gathered]
        self._metrics = {name: float(np.mean([one[name] for one in numbers])) for name in numbers[0]}
        self._others = self._ranks.sent_to_leader(None if rank == 0 else self._own.state_dict())[1:]
        self._met_at = self._clock.frame


def _fingerprints(modules: Mapping[str, torch.nn.Module]) -> dict[str, bytes]:
    """Return a hash of each weight and buffer, by the name of its network and its own."""
    return {
        f"{network}.{name}": hashlib.blake2b(
            tensor.detach().cpu().contiguous().numpy().tobytes(), digest_size=16
        ).digest()
        for network, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def _sharing(state: Any, own: Any) -> Any:
    """Return `state` with those tensors of `own` that are equal: a checkpoint holds them once."""
    if isinstance(state, Mapping) and isinstance(own, Mapping):
        return {name: _sharing(value, own.get(name)) for name, value in state.items()}
    if isinstance(state, torch.Tensor) and isinstance(own, torch.Tensor):
        same = state.dtype == own.dtype and state.shape == own.shape and torch.equal(state, own.cpu())
        return own if same else state
    return state
