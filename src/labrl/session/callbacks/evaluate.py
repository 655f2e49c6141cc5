"""Rows of evaluation scores, and which model was the best so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from labrl.session.acting import acting_state
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.log import clock_columns
from labrl.session.episodes import Source, episode_statistics
from labrl.session.evaluation import EvaluationEnvs, Played, Quota
from labrl.session.evaluator import Evaluator, Snapshot
from labrl.storage.tables import CsvTable

_log = logging.getLogger(__name__)


class Evaluated(NamedTuple):
    """An evaluation whose row has been written."""

    frame: int
    """Of the weights that played."""
    played: Played
    """Nothing where the score is that of the training episodes."""
    best: bool
    """Whether it has the highest score so far."""


class Evaluate(Callback):
    """Every `meta.eval_frequency` frames, and at the end of the budget, one row in `eval.csv`.

    With `num_envs` 0 the score is that of the last `meta.episode_window` training episodes.
    Otherwise that many separate environments in evaluation mode play `quota` whole episodes each. Seeds of
    those episodes and of the actions follow from the session's seed and the frame alone, so training
    goes the same way with evaluation on or off, and a resumed session evaluates as an unbroken one.

    With `beside` they are played in a process beside training, one evaluation at a time: at the next one
    training waits for the one before. Rows are the same and in the same order; each is written as it comes.
    A checkpoint holds what is being evaluated at its time, so that none is lost or doubled by a resume.

    The evaluation at the end of the budget, where no multiple of the frequency lies there, is provisional: a
    run that goes on with a larger budget takes it back, and must be as if it had never been.
    """

    def __init__(
        self,
        frequency: int,
        num_envs: int,
        listeners: Sequence[Callback] = (),
        quota: int = 1,
        greedy: bool = False,
        beside: bool = False,
        evaluator: Callable[[SessionView, Quota], Evaluator] = Evaluator,
        epsilon: float = 0.0,
    ) -> None:
        """frequency: frames between rows; listeners: whose `row` is called with each.

        greedy: whether the best actions are played, rather than the policy's own; evaluator: starts the
        process beside training; epsilon: probability of a random action instead.
        """
        self._frequency = frequency
        self.frequencies = (1,) if beside and num_envs > 0 else (frequency,)
        self._quota = Quota(num_envs, quota, greedy, epsilon)
        self._beside = beside and num_envs > 0
        self._start_evaluator = evaluator
        self._listeners = listeners
        self.fresh: list[Evaluated] = []
        """Those whose rows were written when it was last called, in order; see `fresh_at`."""
        self.best_return: float | None = None
        """The highest `return_mean` so far, None before there is one."""
        self.best_frame: int | None = None
        """Where it was reached, frames."""
        self.taken_back: int | None = None
        """The frame of the provisional evaluation that was taken back when the session started."""
        self.best_source: Source | None = None
        """Whose episodes it is of. Scores of the two sources do not compare: where `meta.rigorous_eval` was
        switched on or off by a resume, the first score of the new source is the best so far."""
        self._owed = False
        self._behind: Snapshot | None = None
        """What the process beside training has not answered yet, or was to play when the session stopped."""
        self._for_the_end = False
        self._frame = 0
        self._envs: EvaluationEnvs | None = None
        self._evaluator: Evaluator | None = None
        self._table: CsvTable | None = None

    @property
    def num_envs(self) -> int:
        """Environments of its own that play for each row; 0: rows tell of the training episodes."""
        return self._quota.num_envs

    @property
    def _source(self) -> Source:
        """Whose episodes the rows of this process are of."""
        return "evaluation" if self.num_envs else "training"

    @property
    def owed(self) -> bool:
        """Whether the evaluation at the present frame, or one before it, was broken off."""
        return self._owed or self._behind is not None

    @property
    def provisional(self) -> bool:
        """Whether the evaluation at the present frame was made only because the budget ended there."""
        return self._for_the_end

    @property
    def under_way(self) -> int | None:
        """The frame whose weights are being evaluated beside training, None if none are."""
        return None if self._behind is None else self._behind.frame

    def start(self, session: SessionView) -> None:
        """Open the table, cut it back, and make up for evaluations that an interruption broke off."""
        clock = session.clock
        self._frame = clock.frame
        # an evaluation at the end of the budget has no place in a run with a larger one
        outdated = self._for_the_end and not clock.finished
        self._table = CsvTable(session.folder.eval_csv)
        # made up for already, but killed before the next checkpoint: then the row is there, and goes
        kept = clock.frame - (self._owed or outdated)
        found = self._table.truncate_after(kept if self._behind is None else self._behind.frame - 1)
        self.fresh = []
        if outdated:
            self._take_back(clock.frame)
        if self.best_frame is not None and found < self.best_frame:
            _log.warning(
                "%s ends at frame %d, and had a row of frame %d: what is missing there stays missing",
                *(self._table.path, found, self.best_frame),
            )
        if self._behind is not None and not self.num_envs:  # there is nobody to play it any more
            self._behind = None
        if self._behind is not None:
            self._begin(session, self._behind)
            if not self._beside or clock.finished:
                self._await(session)
        if self._owed:
            self._evaluate(session)

    def step(self, session: SessionView) -> None:
        """Evaluate if it is due, and take in what was evaluated beside training."""
        self._frame = session.clock.frame
        self.fresh = []
        if self._beside:
            if self._evaluator is None:  # ready when it is needed, and no first step waits for it
                self._evaluator = self._start_evaluator(session, self._quota)
            self._settle(session, self._evaluator.answer())
        if session.clock.due(self._frequency):
            self._for_the_end = not session.clock.crossed(self._frequency)
            self._evaluate(session)

    def fresh_at(self, frame: int) -> list[Evaluated]:
        """Those whose rows were written at `frame`, the present one, in order."""
        return self.fresh if self._frame == frame else []

    def is_best(self, frame: int) -> bool:
        """Whether the model at `frame` has the best score so far."""
        return self.best_frame == frame

    def finish(self, session: SessionView) -> None:
        """Close the environments, and end the process beside training."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    def state_dict(self) -> dict[str, Any]:
        """The best so far, what is still to be evaluated, at this frame or before, and why it was due."""
        here = self.under_way == self._frame
        behind = None if here or self._behind is None else self._behind
        return {
            "best_return": self.best_return,
            "best_frame": self.best_frame,
            "best_source": self.best_source,
            "owed": self._owed or here,
            "for_the_end": self._for_the_end,
            "behind": None if behind is None else {"columns": behind.columns, "acting": behind.acting},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.best_return, self.best_frame = state["best_return"], state["best_frame"]
        known = state.get("best_source", self._source)  # former versions had none
        self.best_source = None if self.best_return is None else known
        self._owed = bool(state["owed"])
        self._for_the_end = bool(state["for_the_end"])
        behind = state.get("behind")  # former versions had none
        self._behind = None if behind is None else Snapshot(behind["columns"], behind["acting"])

    def _take_back(self, frame: int) -> None:
        """Forget the provisional evaluation at `frame`, whose row has gone."""
        assert self._table is not None, "start() comes before step()"
        self._owed = self._for_the_end = False
        self.taken_back = frame
        if self.is_best(frame):
            self.best_return = self.best_frame = self.best_source = None
            for row in self._table.read_rows():
                self._compare(row["return_mean"], row["frame"], row["source"])

    def _compare(self, score: Any, frame: Any, source: Any) -> bool:
        """Record `score` if it is the highest of its source so far, and return whether it is."""
        best = self.best_return if self.best_source == source else None
        better = score is not None and score > (-np.inf if best is None else best)
        if better:
            self.best_return, self.best_frame, self.best_source = float(score), int(frame), source
        return better

    def _evaluate(self, session: SessionView) -> None:
        columns = clock_columns(session)
        if not self.num_envs:
            self._write(session, columns, None)
        elif self._beside:
            self._owed = not self._await(session)
            if not self._owed:
                acting = acting_state(session.agent, session.transforms, session.clock)
                self._begin(session, Snapshot(columns, acting))
                if session.clock.finished:
                    self._await(session)
        else:
            played = self._play(session)
            self._owed = played is None
            if played is not None:
                self._write(session, columns, played)

    def _play(self, session: SessionView) -> Played | None:
        if self._envs is None:
            self._envs = EvaluationEnvs(session.config.env, session.seed, session.num_threads, self._quota)
        interruption = session.interruption
        return self._envs.play(
            session.agent, session.transforms, session.clock.frame, lambda: interruption.requested
        )

    def _begin(self, session: SessionView, snapshot: Snapshot) -> None:
        """Have it played beside training."""
        if self._evaluator is None:
            self._evaluator = self._start_evaluator(session, self._quota)
        self._behind = snapshot
        self._evaluator.begin(snapshot)

    def _await(self, session: SessionView) -> bool:
        """Let training wait for what is played beside it. Returns whether nothing is, any more."""
        if self._behind is not None and self._evaluator is not None:
            interruption = session.interruption
            self._settle(session, self._evaluator.wait(lambda: interruption.requested))
        return self._behind is None

    def _settle(self, session: SessionView, played: Played | None) -> None:
        if played is not None and self._behind is not None:
            columns, self._behind = self._behind.columns, None
            self._write(session, columns, played)

    def _write(self, session: SessionView, columns: dict[str, Any], played: Played | None) -> None:
        """One row, of the training episodes where nothing was played."""
        assert self._table is not None, "start() comes before step()"
        if played is None:
            statistics = session.episodes.statistics()
            count = len(session.episodes.latest)
        else:
            statistics = episode_statistics(
                (episode.episode_return for episode, *_ in played), (episode.length for episode, *_ in played)
            )
            count = len(played)
        row = {**columns, **statistics, "episodes": count, "source": self._source}
        best = self._compare(statistics["return_mean"], columns["frame"], self._source)
        self._table.append(row)
        self.fresh.append(Evaluated(int(columns["frame"]), played or [], best))
        for listener in self._listeners:
            listener.row(session, "eval", row)
