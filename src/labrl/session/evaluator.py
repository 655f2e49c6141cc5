"""Evaluation in a process beside training, with the weights of its frame."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labrl.config.schema import TrialConfig
from labrl.networks.spaces import Spaces
from labrl.session.acting import ActingCopy
from labrl.session.callbacks.callback import SessionView
from labrl.session.companion import Companion, Line
from labrl.session.evaluation import EvaluationEnvs, Played, Quota

NAME = "the process of asynchronous evaluation (meta.async_eval)"
POLL_SECONDS = 0.05
"""How often its answer is looked for: a look costs as much as a step of a small environment."""


@dataclass(frozen=True)
class Snapshot:
    """What is to be evaluated, and what its row begins with."""

    columns: dict[str, Any]
    """The clock's columns of the row."""
    acting: dict[str, Any]
    """As `acting_state` has it."""

    @property
    def frame(self) -> int:
        """Where it was taken."""
        return int(self.columns["frame"])


class Evaluator:
    """Plays one evaluation at a time. What it raises is a CompanionError."""

    def __init__(self, session: SessionView, quota: Quota) -> None:
        """Start the process for what `session` will hand it."""
        arguments = (session.config, session.index, session.seed, session.num_threads, quota)
        self._companion = Companion(NAME, serve, arguments, session.folder.log)
        self._next_look = 0.0

    def begin(self, snapshot: Snapshot) -> None:
        """Let it play; its answer to the one before was taken."""
        self._companion.send(snapshot)

    def answer(self) -> Played | None:
        """What it has played, None as long as it does."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + POLL_SECONDS
        return self._companion.receive() if self._companion.has_word() else None

    def wait(self, stopped: Callable[[], bool]) -> Played | None:
        """What it has played, None where `stopped` says so before."""
        while not self._companion.has_word(POLL_SECONDS):
            if stopped():
                return None
        return self._companion.receive()

    def close(self) -> None:
        """End it, whatever it plays."""
        self._companion.close()


def serve(line: Line, config: TrialConfig, index: int, seed: int, num_threads: int, quota: Quota) -> None:
    """What the process does: play every snapshot that it is sent."""
    envs = EvaluationEnvs(config.env, seed, num_threads, quota)
    env = envs.env
    spaces = Spaces(env.observation_space, env.action_space, config.env.config.num_envs, env.masked)
    copy = ActingCopy(config, index, seed, num_threads, spaces)
    try:
        while True:
            snapshot: Snapshot = line.receive()
            copy.load(snapshot.acting)
            line.send(envs.play(copy.agent, copy.transforms, snapshot.frame, line.stopped))
    finally:
        envs.close()
        copy.close()
