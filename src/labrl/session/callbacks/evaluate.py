"""Rows of evaluation scores, and which model was the best so far."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from labrl.session import evaluation
from labrl.session.acting import acting_state
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.log import clock_columns, continued_table
from labrl.session.episodes import Played, Source, episode_statistics
from labrl.session.evaluation import EvaluationEnvs, Evaluator, Quota, Snapshot
from labrl.storage.tables import CsvTable


class Evaluated(NamedTuple):
    """An evaluation whose row has been written."""

    frame: int
    """Frame of the weights that played."""
    score: float
    """The mean return, nan without an episode."""
    played: list[Played]
    """Nothing where the score is that of the training episodes."""
    best: bool
    """Whether it has the highest score so far."""


Follower = Callable[[SessionView, Evaluated], None]


class Evaluate(Callback):
    """Every `meta.eval_frequency` frames, and at the end of the budget, one row in `eval.csv`.

    With a quota of no environments the score is that of the last `meta.episode_window` training episodes.
    Otherwise separate environments in evaluation mode play whole episodes. Seeds of those episodes and of the
    actions follow from the session's seed and the frame alone, so training is the same with evaluation on or
    off, and a resumed session evaluates like an uninterrupted one.

    With `beside`, they are played in a process beside training, one evaluation at a time: at the next one,
    training waits for the previous one. Rows and their order are the same; each is written when it is known.

    Evaluations without a row are in a queue, which is part of the state: those that are played beside
    training, and one that an interruption cut. So a resume neither loses nor doubles any.
    """

    def __init__(
        self, frequency: int, quota: Quota, listeners: Sequence[Callback] = (), beside: bool = False
    ) -> None:
        """frequency: frames between rows; listeners: whose `row` is called with each; beside: whether what
        `quota` asks for is played in a process beside training."""
        self.frequency, self.frequencies = frequency, (frequency,)
        self.quota = quota
        self.followers: list[Follower] = []
        """Functions that are called with each evaluation, after the listeners."""
        self.best_return: float | None = None
        """The highest `return_mean` so far, None before there is one."""
        self.best_frame: int | None = None
        """Frame of the best score."""
        self.best_source: Source | None = None
        """Kind of episodes of the best score. The two kinds are not comparable: where a resume switched
        `meta.rigorous_eval` on or off, the first score of the new kind is the best so far."""
        self.last_frame = 0
        """Frame of the last row."""
        self._beside, self._listeners = beside and quota.num_envs > 0, listeners
        self._queue: deque[Snapshot] = deque()
        self._begun = False  # whether the process beside training plays the first of the queue
        self._envs: EvaluationEnvs | None = None
        self._evaluator: Evaluator | None = None
        self._table: CsvTable | None = None

    @property
    def owed(self) -> int | None:
        """The frame of the first evaluation that has no row yet, None if all have."""
        return self._queue[0].frame if self._queue else None

    def owes(self, frame: int) -> bool:
        """Return whether the evaluation of the weights at `frame` has no row yet."""
        return any(snapshot.frame == frame for snapshot in self._queue)

    def start(self, session: SessionView) -> None:
        """Cut the table back to where the session continues, and make up for evaluations without a row."""
        clock = session.clock
        self._table = continued_table(session.folder.eval_csv, self.last_frame)
        if not self.quota.num_envs:  # nobody plays what had been begun before
            self._queue = deque(snapshot for snapshot in self._queue if snapshot.frame == clock.frame)
        if clock.finished and max(self.last_frame, *(one.frame for one in self._queue), 0) < clock.frame:
            self._queue.append(self._snapshot(session))
        self._advance(session, wait=clock.finished or not self._beside)
        if self._beside:
            self.next_time = -math.inf  # the process is ready when it is needed; no first step waits for it

    def step(self, session: SessionView) -> None:
        """Evaluate if it is due, and take in what was evaluated beside training."""
        if self._beside and self._evaluator is None:
            self._evaluator = Evaluator(session, self.quota)
        if session.clock.due(self.frequency):
            self._queue.append(self._snapshot(session))
        self._advance(session, wait=session.clock.finished)

    def finish(self, session: SessionView) -> None:
        """Close the environments, and end the process beside training."""
        for part in (self._envs, self._evaluator):
            if part is not None:
                part.close()
        self._envs = self._evaluator = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best so far, the frame of the last row, and what is still to be evaluated."""
        return {
            "best_return": self.best_return,
            "best_frame": self.best_frame,
            "best_source": self.best_source,
            "last_frame": self.last_frame,
            "queue": [snapshot._asdict() for snapshot in self._queue],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.best_return, self.best_frame = state["best_return"], state["best_frame"]
        self.best_source, self.last_frame = state["best_source"], state["last_frame"]
        self._queue = deque(Snapshot(**snapshot) for snapshot in state["queue"])

    def _snapshot(self, session: SessionView) -> Snapshot:
        acting = acting_state(session.agent, session.transforms, session.clock) if self._beside else None
        return Snapshot(clock_columns(session), acting)

    def _advance(self, session: SessionView, wait: bool) -> None:
        """Write the rows of the queue, in order, up to one that is still played beside training.

        wait: also for that one. If another evaluation is queued behind it, it is awaited in any case.
        """
        while self._queue:
            played = self._played(session, self._queue[0], wait or len(self._queue) > 1)
            if played is None:  # still under way, or broken off
                break
            self._begun = False
            self._write(session, self._queue.popleft().columns, played)
        self.next_time = time.perf_counter() + evaluation.POLL_SECONDS if self._queue else math.inf

    def _played(self, session: SessionView, snapshot: Snapshot, wait: bool) -> list[Played] | None:
        if not self.quota.num_envs:
            return []
        if snapshot.acting is None:
            if self._envs is None:
                self._envs = EvaluationEnvs(session.config.env, session.seed, session.num_threads, self.quota)
            return self._envs.play(session.agent, session.transforms, snapshot.frame, session.stopping)
        if self._evaluator is None:
            self._evaluator = Evaluator(session, self.quota)
        if not self._begun:
            self._evaluator.begin(snapshot)
            self._begun = True
        return self._evaluator.answer(session.stopping if wait else None)

    def _write(self, session: SessionView, columns: dict[str, Any], played: list[Played]) -> None:
        """Write a row, of the training episodes where nothing was played."""
        assert self._table is not None, "start() comes before step()"
        source: Source = "evaluation" if self.quota.num_envs else "training"
        episodes = [one.episode for one in played] if self.quota.num_envs else session.episodes.latest
        row = {**columns, **episode_statistics(episodes), "episodes": len(episodes), "source": source}
        self._table.append(row)
        self.last_frame, score = int(columns["frame"]), row["return_mean"]
        best = self.best_return if self.best_source == source else None
        better = bool(score > (-math.inf if best is None else best))  # nan is not
        if better:
            self.best_return, self.best_frame, self.best_source = score, self.last_frame, source
        for listener in self._listeners:
            listener.row(session, "eval", row)
        for follower in self.followers:
            follower(session, Evaluated(self.last_frame, score, played, better))
