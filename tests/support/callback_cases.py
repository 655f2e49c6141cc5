"""A small session for the tests of callbacks: real clock, episode window and folder, but a toy agent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from options import options

from labrl.agents.agent import Agent, Observation
from labrl.clock import Clock
from labrl.component import Component
from labrl.memory.workspace import Workspace
from labrl.run.session import RunSession
from labrl.seeding import Streams
from labrl.session.callbacks.callback import Callback
from labrl.session.callbacks.checkpoint import Checkpoint
from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.episodes import EpisodeWindow
from labrl.session.evaluation import Quota
from labrl.session.interruption import Interruption
from labrl.step import Episode, Step

CARTPOLE = Component(
    "labrl.envs.gym.GymnasiumEnv", options("env", "env=cartpole", max_frame=1000, num_envs=4), "env"
)


class ToyAgent(Agent):
    """An agent that evaluates with random actions; its weight is a sum of random numbers, one per step."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.evaluated = 0

    def act(self, observation: Observation) -> NDArray:
        raise NotImplementedError

    def observe(self, step: Step) -> None:
        raise NotImplementedError

    def learn(self) -> int:
        raise NotImplementedError

    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        self.evaluated += 1
        return generator.integers(2, size=len(observation.array))

    def metrics(self) -> dict[str, float]:
        return {"loss": self.weight / 3, "kl": float("nan")}


def finished(score: float, length: int = 10, env: int = 0, index: int = 0) -> Episode:
    return Episode(env, index, seed=0, episode_return=score, length=length, truncated=False)


def evaluation(frequency: int, num_envs: int = 0, listeners: Any = (), **quota: Any) -> Evaluate:
    return Evaluate(frequency, Quota(num_envs, **quota), listeners)


class ToyRoom:
    """Files of a workspace; every vector step fills the fraction `fills` of them."""

    def __init__(self, session: ToySession, frames_safe: int, fills: float) -> None:
        self.session, self.frames_safe, self.fills, self.marked = session, frames_safe, fills, 0

    def mark(self) -> None:
        self.marked = self.session.clock.frame

    def spent(self) -> float:
        return self.fills * ((self.session.clock.frame - self.marked) // self.session.num_envs + 1)


class ToySession:
    """A session that only ticks the clock and ends an episode every `episode_every` frames.

    The return of the n-th episode is n.
    """

    num_envs = 4
    episode_every = 20

    def __init__(self, path: Path, max_frame: int = 200, seed: int = 5) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.folder = RunSession(path)
        self.index, self.seed, self.num_threads = 0, seed, 1
        self.config: Any = SimpleNamespace(env=CARTPOLE)
        self.clock = Clock(max_frame)
        self.env: Any = SimpleNamespace(frame_skip=4, num_envs=self.num_envs, longest_episode=0)
        self.agent: Any = ToyAgent()
        self.transforms: Any = SimpleNamespace(frozen=lambda observation: observation)
        self.episodes = EpisodeWindow(3)
        self.streams = Streams(seed)
        self.timers: Any = SimpleNamespace(seconds={"env": 1.0, "act": 0.0, "learn": 3.0, "callbacks": 0.0})
        self.interruption = Interruption()
        self.callbacks: list[Any] = []
        self.workspace = Workspace(frames_kept=10**4)
        self.saved_at: list[int] = []
        """The frames at which a callback asked for the state of the session."""
        self.before_callbacks: Callable[[], None] = lambda: None

    def run(self, *callbacks: Callback) -> ToySession:
        self.callbacks = list(callbacks)
        with contextlib.ExitStack() as finishing:
            for callback in callbacks:
                callback.start(self)
                finishing.callback(callback.finish, self)
            self.clock.start()
            while not (self.clock.finished or self.interruption.requested):
                self.step()
        return self

    def step(self) -> None:
        self.agent.weight += self.streams.numpy("act").random()
        over = (
            self.clock.frame // self.episode_every != (self.clock.frame + self.num_envs) // self.episode_every
        )
        episodes = [finished(float(self.clock.episode + 1))] if over else []
        self.clock.opt_step += 2
        self.clock.tick(self.num_envs, len(episodes))
        self.episodes.latest.extend(episodes)
        self.before_callbacks()
        for callback in self.callbacks:
            if any(map(self.clock.due, callback.frequencies)) or time.perf_counter() >= callback.next_time:
                callback.step(self)
        if self.clock.finished:
            self.end()

    def end(self) -> None:
        """Call the callbacks that are due only because the budget is spent, after a checkpoint."""
        rest = [one for one in self.callbacks if not any(map(self.clock.due, one.frequencies))]
        for callback in self.callbacks:
            if isinstance(callback, Checkpoint):
                callback.save(self)
        self.clock.ended = True
        for callback in rest:
            if callback.frequencies:
                callback.step(self)

    def interrupt_at(self, frame: int) -> ToySession:
        def check() -> None:
            if self.clock.frame >= frame:
                self.interruption.stop(2)

        self.before_callbacks = check
        return self

    def in_files(self, frames_safe: int = 10**4, fills: float = 0.0) -> ToySession:
        self.workspace.rooms.append(ToyRoom(self, frames_safe, fills))
        return self

    def stopping(self) -> bool:
        return self.interruption.requested

    def observation(self) -> NDArray | None:
        return None

    def metrics(self) -> dict[str, float]:
        return self.agent.metrics()

    def interrupted(self) -> bool:
        return self.interruption.requested and not self.clock.finished

    def stop(self) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        self.saved_at.append(self.clock.frame)
        return {
            "clock": self.clock.state_dict(),
            "streams": self.streams.state_dict(),
            "episodes": self.episodes.state_dict(),
            "weight": self.agent.weight,
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }

    def load_state_dict(self, state: Mapping[str, Any], *callbacks: Callback) -> ToySession:
        self.clock.load_state_dict(state["clock"])
        self.streams.load_state_dict(state["streams"])
        self.episodes.load_state_dict(state["episodes"])
        self.agent.weight = state["weight"]
        for callback, saved in zip(callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        return self
