"""The base class of callbacks, and the read-only view of the session that callbacks receive."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from labrl.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labrl.agents.agent import Agent
    from labrl.agents.transforms import Transforms
    from labrl.clock import Clock, PhaseTimers
    from labrl.component import Component
    from labrl.config.schema import TrialConfig
    from labrl.envs.vector import VectorEnv
    from labrl.run.session import RunSession
    from labrl.seeding import Streams
    from labrl.session.callbacks.stop import Stop
    from labrl.session.episodes import EpisodeWindow
    from labrl.session.sources import ActorProcess
    from labrl.step import Step

Table = Literal["train", "eval"]
"""The table that a row of metrics belongs to."""

Row = Mapping[str, Any]
"""One row of metrics: column name to number, text or None."""


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """Read-only view of a session for callbacks. It has no method that changes the session."""

    config: TrialConfig
    index: int
    """Index of the session in its trial, from 0."""
    seed: int
    """The session's seed, from which all its random streams are derived."""
    clock: Clock
    env: VectorEnv | ActorProcess
    agent: Agent
    transforms: Transforms
    episodes: EpisodeWindow
    folder: RunSession
    streams: Streams
    timers: PhaseTimers
    """Seconds spent so far in `env`, `act`, `learn`, `callbacks` and `check`."""
    num_threads: int
    """Number of threads that this session may use."""
    stopping: Callable[[], bool]
    """Function that returns whether the session was asked to stop; the session stops between two steps."""
    interrupted: Callable[[], bool]
    """Function that returns whether a signal or a search stopped the session before its last frame or
    evaluation."""
    stop: Callable[[], Stop | None]
    """Function that returns why a callback ended the session before its budget was spent; None if no callback
    did."""
    last_step: Callable[[], Step | None]
    """Function that returns the last vector step, read-only, with raw rewards and the episodes that ended in
    it; None before the first step, after a resume until the next step, and while the agent learns without
    acting."""
    observation: Callable[[], NDArray | None]
    """Function that returns a copy of the current transformed observations, [num_envs, *obs], or None before
    the first observation."""
    metrics: Callable[[], dict[str, float]]
    """Function that returns those columns of a training row that describe learning, such as losses: the
    agent's metrics, or their means over the ranks."""
    state_dict: Callable[[], dict[str, Any]]
    """Function that returns the complete state for a checkpoint, including that of the callbacks."""


class Callback:
    """Base class of callbacks. Every method is optional.

    `frequencies` and `next_time` determine when `step` is called; a callback may change both whenever one of
    its methods runs. It may draw random numbers only from a stream with a name of its own.

    A run that is continued with a larger budget must have the same past as a run that had this budget from
    the start. At the end of the budget, when `session.clock.ended` is true, some calls of `step` and of the
    methods for rows are made only because the budget has ended. The last checkpoint is therefore saved before
    these calls.
    """

    frequencies: Sequence[int] = (1,)
    """Frequencies in frames. `step` is called after the first vector step that crosses a multiple of one of
    them, and at the end of the budget. With (1,) it is called after every vector step and must be cheap; with
    () it is never called."""
    next_time: float = math.inf
    """Time, in seconds of `time.perf_counter`, after which the first vector step is also followed by a call
    of `step`."""
    gives_up: bool = False
    """Set this to True to end the session after the current step and record it as pruned by a search."""
    stopped_by: Stop | None = None
    """Set this to a `Stop` to end the session after the current step and record it as finished, with this
    reason. A callback can influence a session only by this attribute and `gives_up`."""

    def start(self, session: SessionView) -> None:
        """Prepare before the first step; in a resumed run, after `load_state_dict`."""

    def step(self, session: SessionView) -> None:
        """Do the callback's work when it is due, after the clock has counted the vector step."""

    def metrics(self) -> Mapping[str, float]:
        """Return columns for a training row, numbers by name. Called once for each row, after `step`.

        Whatever this method changes, for instance by starting a new average, is part of the callback's state.
        The names must differ from those of all other columns.
        """
        return {}

    def row(self, session: SessionView, table: Table, row: Row) -> None:
        """Receive a row of metrics that was written to `table`, with the columns of that file."""

    def finish(self, session: SessionView) -> None:
        """Release resources at the end, even after an interruption or an exception."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as plain data, arrays and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


def check_callbacks(config: TrialConfig) -> None:
    """Raise InputError if a configured class is not a `Callback`, before anything is built."""
    for name, component in config.callbacks.items():
        target = None if component is None else component.load()
        if component is not None and isinstance(target, type) and not issubclass(target, Callback):
            raise no_callback(name, component, target)


def no_callback(name: str, component: Component, kind: type) -> InputError:
    """Return the error for a configured class that is not a `Callback`."""
    allowed = "give a subclass of labrl.session.callbacks.Callback"
    got = f"{component.target}, which gives a {kind.__name__}"
    return InputError.value(f"callbacks.{name}._target_", got, allowed, code="target")
