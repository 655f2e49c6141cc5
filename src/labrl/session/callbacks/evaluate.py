"""Write rows of evaluation scores, and keep track of the best model so far."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from labrl.run.episodes import Source
from labrl.run.tables import CsvTable
from labrl.session import evaluation
from labrl.session.acting import acting_state
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.log import clock_columns, continued_table
from labrl.session.episodes import Played, episode_statistics, info_statistics
from labrl.session.evaluation import EvaluationEnvs, Evaluator, Quota, Snapshot


class Evaluated(NamedTuple):
    """An evaluation whose row has been written."""

    frame: int
    """Training frame of the evaluated weights."""
    score: float
    """Mean return; nan if no episode has ended."""
    played: list[Played]
    """Evaluation episodes; empty if the score is that of the training episodes."""
    best: bool
    """Whether this is the highest score so far."""


Follower = Callable[[SessionView, Evaluated], None]


class Evaluate(Callback):
    """Write a row to `eval.csv` every `meta.eval_frequency` frames and at the end of the budget, where the
    column `end` is set.

    If the quota has no environments, the score is that of the last `meta.episode_window` training episodes.
    Otherwise separate environments in evaluation mode play complete episodes. The seeds of episodes and
    actions depend only on the session's seed and the frame, so training is the same with evaluation on or
    off, and a resumed session evaluates like an uninterrupted one.

    With `beside`, a separate process plays the episodes, one evaluation at a time: when the next one is due,
    training waits for the previous one. The rows and their order are the same as without `beside`; each row
    is written when its result is known.

    An evaluation that takes place only because the budget has ended does not replace the best model.

    Evaluations without a row are in a queue, which is part of the state: those that the separate process has
    not finished, and one that an interruption cut short. A resume therefore neither loses nor repeats an
    evaluation.
    """

    def __init__(
        self, frequency: int, quota: Quota, listeners: Sequence[Callback] = (), beside: bool = False
    ) -> None:
        """frequency: frames between rows; quota: episodes to play for each row; listeners: callbacks whose
        `row` is called with each row; beside: whether a separate process plays the episodes."""
        self.frequency, self.frequencies = frequency, (frequency,)
        self.quota = quota
        self.followers: list[Follower] = []
        """Functions that are called with each evaluation, after the listeners."""
        self.best_return: float | None = None
        """Highest `return_mean` so far; None before the first evaluation."""
        self.best_frame: int | None = None
        """Frame of the best score among those at a multiple of the frequency; None before the first
        evaluation."""
        self.best_source: Source | None = None
        """Kind of episodes from which the best score was computed. Scores of different kinds are not
        comparable: if a resume switches `meta.rigorous_eval` on or off, the first score of the new kind
        becomes the best so far."""
        self.last_frame = 0
        """Frame of the last row."""
        self._beside, self._listeners = beside and quota.num_envs > 0, listeners
        self._queue: deque[Snapshot] = deque()
        self._begun = False  # whether the separate process is playing the first in the queue
        self._envs: EvaluationEnvs | None = None
        self._evaluator: Evaluator | None = None
        self._table: CsvTable | None = None

    @property
    def owed(self) -> int | None:
        """The frame of the first evaluation without a row; None if every evaluation has a row."""
        return self._queue[0].frame if self._queue else None

    def start(self, session: SessionView) -> None:
        """Cut the table back to the frame at which the session continues, and carry out missing
        evaluations."""
        clock = session.clock
        self._table = continued_table(session.folder.eval_csv, self.last_frame, session.folder.errors)
        if not self.quota.num_envs:  # evaluation was switched off: drop what was queued before
            self._queue = deque(snapshot for snapshot in self._queue if snapshot.frame == clock.frame)
        self._advance(session, wait=clock.finished or not self._beside)
        if self._beside:
            self.next_time = -math.inf  # start the process after the first step, so that no evaluation waits

    def step(self, session: SessionView) -> None:
        """Evaluate if an evaluation is due, and write the rows of finished asynchronous evaluations."""
        if self._beside and self._evaluator is None:
            self._evaluator = Evaluator(session, self.quota)
        if session.clock.due(self.frequency):
            agent, transforms, clock = session.agent, session.transforms, session.clock
            acting = acting_state(agent, transforms, clock) if self._beside else None
            self._queue.append(Snapshot(clock_columns(session), acting))
        self._advance(session, wait=session.clock.finished)

    def finish(self, session: SessionView) -> None:
        """Close the environments, end the separate process, and write rows that could not be written."""
        if self._table is not None:
            self._table.flush()
        for part in (self._envs, self._evaluator):
            if part is not None:
                part.close()
        self._envs = self._evaluator = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best score so far, the frame of the last row, and the queue of evaluations."""
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

    def _advance(self, session: SessionView, wait: bool) -> None:
        """Write the rows of the queue in order, up to an evaluation that has not finished.

        wait: whether to wait for that evaluation. If another one is queued behind it, this method waits in
        any case.
        """
        while self._queue:
            played = self._played(session, self._queue[0], wait or len(self._queue) > 1)
            if played is None:  # still running, or interrupted
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
        """Write a row, from the training episodes if there are no evaluation environments."""
        assert self._table is not None, "start() comes before step()"
        source: Source = "evaluation" if self.quota.num_envs else "training"
        episodes = [one.episode for one in played] if self.quota.num_envs else session.episodes.latest
        row = {
            **columns,
            **episode_statistics(episodes),
            **info_statistics(episodes, session.episodes.info),
            "episodes": len(episodes),
            "source": source,
        }
        self._table.append(row)
        self.last_frame, score = int(columns["frame"]), row["return_mean"]
        best = self.best_return if self.best_source == source else None
        better = bool(score > (-math.inf if best is None else best))  # false for nan
        if better:
            self.best_return, self.best_source = score, source
            if not columns.get("end"):  # an extended run lacks that evaluation, so it replaces no model
                self.best_frame = self.last_frame
        for listener in self._listeners:
            listener.row(session, "eval", row)
        for follower in self.followers:
            follower(session, Evaluated(self.last_frame, score, played, better))
