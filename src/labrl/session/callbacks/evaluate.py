"""Rows of evaluation scores, and which model was the best so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import heeded
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.seeding import derived_seed
from labrl.session.callbacks.callback import Callback, SessionView
from labrl.session.callbacks.log import clock_columns
from labrl.session.episodes import episode_statistics
from labrl.step import Episode
from labrl.storage.tables import CsvTable


class Evaluate(Callback):
    """Every `meta.eval_frequency` frames, and at the end of the budget, one row in `eval.csv`.

    With `num_envs` 0 the score is that of the last `meta.episode_window` training episodes.
    Otherwise that many separate environments in evaluation mode play `quota` whole episodes each. Seeds of
    those episodes and of the actions follow from the session's seed and the frame alone, so training
    goes the same way with evaluation on or off, and a resumed session evaluates as an unbroken one.
    """

    def __init__(
        self,
        frequency: int,
        num_envs: int,
        listeners: Sequence[Callback] = (),
        quota: int = 1,
        greedy: bool = False,
    ) -> None:
        """frequency: frames between rows; listeners: whose `row` is called with each.

        greedy: whether the best actions are played, rather than the policy's own.
        """
        self._frequency = frequency
        self.num_envs = num_envs
        """Environments of its own that play for each row; 0: rows tell of the training episodes."""
        self._quota = quota
        self._greedy = greedy
        self.frame: int | None = None
        """Of the latest row that was written, None before there is one."""
        self.played: list[tuple[Episode, NDArray, NDArray]] = []
        """For that row: each episode, its actions and its final observation, by environment."""
        self._listeners = listeners
        self.best_return: float | None = None
        """The highest `return_mean` so far, None before there is one."""
        self.best_frame: int | None = None
        """Where it was reached, frames."""
        self.owed = False
        """Whether an interruption broke off the evaluation at the present frame."""
        self._for_the_end = False
        self._env: VectorEnv | None = None
        self._table: CsvTable | None = None

    def start(self, session: SessionView) -> None:
        """Open the table, cut it back, and make up for an evaluation that an interruption broke off."""
        clock = session.clock
        # an evaluation at the end of the budget has no place in a run with a larger one
        outdated = self._for_the_end and not clock.finished
        self._table = CsvTable(session.folder.eval_csv)
        # made up for already, but killed before the next checkpoint: then the row is there, and goes
        self._table.truncate_after(clock.frame - (self.owed or outdated))
        self.owed = self.owed and not outdated
        if self.owed:
            self._evaluate(session)

    def step(self, session: SessionView) -> None:
        """Evaluate if it is due."""
        if session.clock.due(self._frequency):
            self._for_the_end = not session.clock.crossed(self._frequency)
            self._evaluate(session)

    def is_best(self, frame: int) -> bool:
        """Whether the model at `frame` has the best score so far."""
        return self.best_frame == frame

    def finish(self, session: SessionView) -> None:
        """Close the environments."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def state_dict(self) -> dict[str, Any]:
        """The best so far, whether the evaluation at this frame is still to be made, and why it was due."""
        return {
            "best_return": self.best_return,
            "best_frame": self.best_frame,
            "owed": self.owed,
            "for_the_end": self._for_the_end,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.best_return, self.best_frame = state["best_return"], state["best_frame"]
        self.owed = bool(state["owed"])
        self._for_the_end = bool(state["for_the_end"])

    def _evaluate(self, session: SessionView) -> None:
        assert self._table is not None, "start() comes before step()"
        if self.num_envs:
            played = self._play(session)
            self.owed = played is None
            if played is None:
                return
            self.played = played
            statistics = episode_statistics(
                (episode.episode_return for episode, *_ in played), (episode.length for episode, *_ in played)
            )
            count, source = len(played), "evaluation"
        else:
            statistics = session.episodes.statistics()
            count, source = len(session.episodes), "training"
        row = {**clock_columns(session), **statistics, "episodes": count, "source": source}
        score = statistics["return_mean"]
        if score > (-np.inf if self.best_return is None else self.best_return):  # never for nan
            self.best_return, self.best_frame = score, session.clock.frame
        self._table.append(row)
        self.frame = session.clock.frame
        for listener in self._listeners:
            listener.row(session, "eval", row)

    def _play(self, session: SessionView) -> list[tuple[Episode, NDArray, NDArray]] | None:
        """The first whole episodes of each environment, as `played`; None if interrupted."""
        if self._env is None:  # made once: starting an emulator costs more than an evaluation step
            seed = derived_seed(session.seed, "evaluation")
            self._env = make_env(
                session.config.env, seed, session.num_threads, evaluation=True, num_envs=self.num_envs
            )
        frame = session.clock.frame
        generator = np.random.default_rng(derived_seed(session.seed, "evaluation actions", frame))
        observation = self._env.reset(derived_seed(session.seed, "evaluation", frame))
        played: list[list[tuple[Episode, NDArray, NDArray]]] = [[] for _ in range(self.num_envs)]
        while min(map(len, played)) < self._quota:
            if session.interruption.requested:
                return None
            seen = session.transforms.frozen(observation)
            agent = session.agent
            choose = (
                agent.greedy_action if self._greedy else partial(agent.evaluation_action, generator=generator)
            )
            action = choose(seen, **heeded(choose, self._env.action_mask))
            step = self._env.step(action)
            for episode in step.episodes:
                # An environment that is done plays on while others finish: a further, short episode
                # would count short episodes more often than long ones.
                if len(played[episode.env]) < self._quota:
                    played[episode.env].append((episode, *self._env.played(episode)))
            observation = step.observation
        return list(chain.from_iterable(played))
