"""What hangs on a session's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labrl.agents.agent import Agent
    from labrl.clock import Clock, PhaseTimers
    from labrl.config.schema import TrialConfig
    from labrl.envs.vector import VectorEnv
    from labrl.seeding import Streams
    from labrl.session.actor_env import ActorEnv
    from labrl.session.episodes import EpisodeWindow
    from labrl.session.interruption import Interruption
    from labrl.session.session import Highlights
    from labrl.storage.run_folder import SessionFolder

Table = Literal["train", "eval"]
"""Which table a row of metrics belongs to."""

Row = Mapping[str, Any]
"""One row of metrics: column name to number, text or None."""


class SessionView(Protocol):
    """What a callback may read of a session. A callback changes none of it."""

    config: TrialConfig
    index: int
    """Number of the session in its trial, from 0."""
    seed: int
    """The session's own seed, from which all its streams come."""
    clock: Clock
    env: VectorEnv | ActorEnv
    agent: Agent
    transforms: Any
    episodes: EpisodeWindow
    highlights: Highlights | None
    """The best and the latest training episode; None where they are not recorded."""
    folder: SessionFolder
    streams: Streams
    timers: PhaseTimers
    """Its `seconds` say what was spent so far in `env`, `act`, `learn`, `callbacks`."""
    num_threads: int
    """Threads that this session may keep busy."""
    interruption: Interruption
    """Whether the session was asked to stop; it does so between two steps."""

    @property
    def interrupted(self) -> bool:
        """Whether the stop that was asked for left frames or an evaluation undone."""

    @property
    def state_in_files(self) -> bool:
        """Whether some of the state lies in files that training goes on writing to."""

    @property
    def room_spent(self) -> float:
        """Part of the room in those files that was filled since `mark_room`, or may be with the next step."""

    def mark_room(self) -> None:
        """A checkpoint counts on what the files hold now."""

    @property
    def most_frames_unsaved(self) -> int:
        """Frames from one checkpoint to the next, so that none that is kept loses what it counts on."""

    @property
    def observation(self) -> NDArray | None:
        """The learner's view of the present observations, None before the first. [num_envs, *obs]"""

    def metrics(self) -> dict[str, float]:
        """What a training row says of learning: the agent's own numbers, of several ranks their means."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, callbacks' states included."""


class Callback:
    """Base of everything that hangs on the clock; each method may be left out.

    `frequencies` and `next_time` say when `step` is called; a callback may change both whenever one of its
    methods runs. It may draw random numbers only from a stream of its own name.
    """

    frequencies: Sequence[int] = (1,)
    """`step` is called after the first vector step across each multiple of one of these numbers of frames,
    and at the end of the budget. (1,): after every vector step, so it has to be cheap. (): never."""
    next_time: float = math.inf
    """`step` is also called after the first vector step from this time on, by `time.perf_counter`."""

    def is_due(self, clock: Clock, now: float) -> bool:
        """Whether `step` is to be called after the last tick, at the time `now`."""
        return now >= self.next_time or any(clock.due(frequency) for frequency in self.frequencies)

    def start(self, session: SessionView) -> None:
        """Before the first step; after `load_state_dict` where a run is resumed."""

    def step(self, session: SessionView) -> None:
        """When it is due: after a tick of the clock."""

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """After a row of metrics was written to `table`; `row` has the columns of that file."""

    def finish(self, session: SessionView) -> None:
        """At the end, also after an interruption or an exception; releases resources."""

    def state_dict(self) -> dict[str, Any]:
        """What the callback must remember over a resume; plain data, arrays and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
