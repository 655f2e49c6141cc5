"""The base class of callbacks, and their view of the session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labrl.agents.agent import Agent
    from labrl.agents.transforms import Transforms
    from labrl.clock import Clock, PhaseTimers
    from labrl.config.schema import TrialConfig
    from labrl.envs.vector import VectorEnv
    from labrl.seeding import Streams
    from labrl.session.actor import ActorProcess
    from labrl.session.callbacks.stop import Stop
    from labrl.session.episodes import EpisodeWindow, Highlights
    from labrl.storage.run_folder import SessionFolder

Table = Literal["train", "eval"]
"""The table that a row of metrics belongs to."""

Row = Mapping[str, Any]
"""One row of metrics: column name to number, text or None."""


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """A session as callbacks read it. It has no method that changes the session."""

    config: TrialConfig
    index: int
    """Number of the session in its trial, from 0."""
    seed: int
    """The session's own seed, from which all its streams come."""
    clock: Clock
    env: VectorEnv | ActorProcess
    agent: Agent
    transforms: Transforms
    episodes: EpisodeWindow
    highlights: Highlights | None
    """The best and the latest training episode; None where they are not recorded."""
    folder: SessionFolder
    streams: Streams
    timers: PhaseTimers
    """Timers, whose `seconds` are those spent so far in `env`, `act`, `learn` and `callbacks`."""
    num_threads: int
    """Threads that this session may keep busy."""
    stopping: Callable[[], bool]
    """Whether the session was asked to stop; it does so between two steps."""
    interrupted: Callable[[], bool]
    """Whether a signal or a search left frames or an evaluation undone."""
    stop: Callable[[], Stop | None]
    """Why a callback has ended the session before its budget, None where none has."""
    observation: Callable[[], NDArray | None]
    """A copy of the learner's view of the present observations, None before the first. [num_envs, *obs]"""
    metrics: Callable[[], dict[str, float]]
    """Columns of a training row about learning: the agent's metrics, or their means over the ranks."""
    state_dict: Callable[[], dict[str, Any]]
    """Everything that a checkpoint needs, callbacks' states included."""


class Callback:
    """Base class of callbacks; every method is optional.

    `frequencies` and `next_time` say when `step` is called; a callback may change both whenever one of its
    methods runs. It may draw random numbers only from a stream of its own name.

    A run that continues with a larger budget must have had the same past as one that had it from the
    beginning. So a checkpoint at the end of the budget holds the state of a callback as it was before `step`
    was called only because of the end.
    """

    frequencies: Sequence[int] = (1,)
    """`step` is called after the first vector step across each multiple of one of these numbers of frames,
    and at the end of the budget. (1,): after every vector step, so it has to be cheap. (): never."""
    next_time: float = math.inf
    """`step` is also called after the first vector step from this time on, by `time.perf_counter`."""
    gives_up: bool = False
    """Set to True, it ends the session after the present step: a search has seen enough of it. The session
    is recorded as pruned."""
    stopped_by: Stop | None = None
    """Set to a `Stop`, it ends the session after the present step, and the session is recorded as finished,
    with this reason. This and `gives_up` are the only things that a callback can ask of a session."""

    def crossed(self, clock: Clock) -> bool:
        """Return whether the last tick crossed a multiple of one of `frequencies`."""
        return any(clock.crossed(frequency) for frequency in self.frequencies)

    def is_due(self, clock: Clock, now: float) -> bool:
        """Return whether `step` is to be called after the last tick, at the time `now`."""
        at_the_end = clock.finished and bool(self.frequencies)
        return at_the_end or now >= self.next_time or self.crossed(clock)

    def start(self, session: SessionView) -> None:
        """Prepare, before the first step; after `load_state_dict` where a run is resumed."""

    def step(self, session: SessionView) -> None:
        """Act when it is due, after a tick of the clock."""

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Receive a row of metrics that was written to `table`; `row` has the columns of that file."""

    def finish(self, session: SessionView) -> None:
        """Release resources at the end, also after an interruption or an exception."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the callback must remember over a resume; plain data, arrays and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
