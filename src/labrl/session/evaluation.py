"""Play complete episodes to evaluate an agent, in the session's process or in a separate one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.agents.random import uniform_actions
from labrl.agents.transforms import Transforms
from labrl.component import Component
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.processes.worker import ParentConnection, Worker
from labrl.run.session_log import warnings_logged
from labrl.seeding import derived_seed
from labrl.session.acting import ActingCopy
from labrl.session.callbacks.callback import SessionView
from labrl.session.episodes import Played
from labrl.spaces import Spaces
from labrl.step import Step

NAME = "the process of asynchronous evaluation (meta.async_eval)"
POLL_SECONDS = 0.05
"""Seconds between two checks for an answer of the evaluation process."""


@dataclass(frozen=True)
class Quota:
    """The number of episodes played for one evaluation row, and how actions are chosen."""

    num_envs: int
    """Number of environments; with 0, nothing is played, and rows are computed from the training episodes."""
    episodes: int = 1
    """Episodes per environment."""
    greedy: bool = False
    """Whether to play the greedy actions rather than the agent's evaluation policy."""
    epsilon: float = 0.0
    """Probability that an action is replaced by a uniformly random one, in [0, 1]."""


def choose(
    agent: Agent,
    observation: Observation,
    space: gym.Space[Any],
    quota: Quota,
    generator: np.random.Generator,
    chance: np.random.Generator,
) -> NDArray:
    """Return an agent's actions in evaluation. [num_envs, ...]

    observation: observations, with their `start`; space: space of one action; generator: random generator of
    the policy; chance: random generator that decides which environments take random actions, and that draws
    those actions.
    """
    if quota.greedy:
        action = agent.greedy_action(observation)
    else:
        action = agent.evaluation_action(observation, generator)
    if quota.epsilon == 0:
        return action
    # Drawn for every environment in every step, so that no environment's draws depend on another's.
    at_random = chance.random(len(action)) < quota.epsilon
    drawn = uniform_actions(space, len(action), chance, observation.mask)
    return np.where(at_random.reshape(-1, *[1] * (action.ndim - 1)), drawn, action)


def played_steps(
    env: VectorEnv,
    agent: Agent,
    transforms: Transforms,
    quota: Quota,
    episodes: int,
    actions: int,
    chance: int,
) -> Iterator[Step | None]:
    """Reset `env` and yield None, then play without end and yield each step.

    episodes, actions, chance: seeds of the episodes, of the policy, and of random actions.
    """
    generators = np.random.default_rng(actions), np.random.default_rng(chance)
    observation, start = env.reset(episodes), np.ones(env.num_envs, np.bool_)
    yield None
    while True:
        seen = Observation(transforms.frozen(observation), env.action_mask, start)
        step = env.step(choose(agent, seen, env.action_space, quota, *generators))
        yield step
        observation, start = step.observation, step.episode_over


class EvaluationEnvs:
    """Separate environments in evaluation mode, which are made when they are first used.

    The seeds of episodes and actions depend only on the session's seed and the frame, so an evaluation does
    not depend on earlier ones or on the process that plays it.
    """

    def __init__(self, env: Component, seed: int, num_threads: int, quota: Quota) -> None:
        """env: the environment's configuration in training; seed: the session's seed; num_threads: number of
        threads that the environments may use."""
        self._component, self._seed, self._num_threads, self._quota = env, seed, num_threads, quota
        self._env: VectorEnv | None = None

    @property
    def env(self) -> VectorEnv:
        """The environments. They are kept, because starting an emulator is slow."""
        if self._env is None:
            self._env = make_env(
                self._component,
                derived_seed(self._seed, "evaluation"),
                self._num_threads,
                evaluation=True,
                num_envs=self._quota.num_envs,
            )
        return self._env

    def play(
        self, agent: Agent, transforms: Transforms, frame: int, stopping: Callable[[], bool]
    ) -> list[Played] | None:
        """Return the first complete episodes of each environment, as many as the quota says, ordered by
        environment.

        Returns None as soon as `stopping()` is true.
        """
        env, quota = self.env, self._quota
        streams = ("evaluation", "evaluation actions", "evaluation chance")
        seeds = [derived_seed(self._seed, stream, frame) for stream in streams]
        found: list[list[Played]] = [[] for _ in range(env.num_envs)]
        for step in played_steps(env, agent, transforms, quota, *seeds):
            for episode in step.episodes if step is not None else ():
                # An environment that has played its episodes continues while others finish. Its further
                # episodes are ignored: counting them would favor short episodes.
                if len(found[episode.env]) < quota.episodes:
                    found[episode.env].append(Played(episode, *env.played(episode), frame, "evaluation"))
            if min(map(len, found)) == quota.episodes:
                break
            if stopping():
                return None
        return [played for of_one in found for played in of_one]

    def close(self) -> None:
        """Close the environments. They are made again if needed."""
        if self._env is not None:
            self._env.close()
            self._env = None


class Snapshot(NamedTuple):
    """The agent's state at one frame, which is to be evaluated."""

    columns: dict[str, Any]
    """Result of `clock_columns`, the first columns of the evaluation's row."""
    acting: dict[str, Any] | None
    """Result of `acting_state`; None: the session's agent is evaluated in its present state."""

    @property
    def frame(self) -> int:
        """The frame at which the snapshot was taken."""
        return int(self.columns["frame"])


class Evaluator:
    """Evaluate snapshots in a separate process, one after another. The methods raise WorkerError."""

    def __init__(self, session: SessionView, quota: Quota) -> None:
        """Start the process."""
        arguments = (session.config, session.index, session.seed, session.num_threads, quota)
        log = session.folder.log
        self._worker = Worker(NAME, serve, arguments, log, partial(warnings_logged, log))

    def begin(self, snapshot: Snapshot) -> None:
        """Start the evaluation of a snapshot. The answer for the previous snapshot must have been taken."""
        self._worker.send(snapshot)

    def answer(self, stopping: Callable[[], bool] | None = None) -> list[Played] | None:
        """Return the played episodes, or None if the evaluation is still running.

        stopping: if given, wait for the answer, and return None only once `stopping()` is true.
        """
        while not self._worker.has_message(POLL_SECONDS if stopping else 0.0):
            if stopping is None or stopping():
                return None
        return self._worker.receive()

    def close(self) -> None:
        """End the process, even during an evaluation."""
        self._worker.close()


def serve(
    parent: ParentConnection, config: TrialConfig, index: int, seed: int, num_threads: int, quota: Quota
) -> None:
    """Run the evaluation process: evaluate every snapshot that the session sends."""
    envs = EvaluationEnvs(config.env, seed, num_threads, quota)
    env = envs.env
    spaces = Spaces(env.observation_space, env.action_space, config.env.config.num_envs, env.masked)
    copy = ActingCopy.of_session(config, spaces, seed, index, num_threads)
    try:
        while True:
            snapshot: Snapshot = parent.receive()
            assert snapshot.acting is not None
            copy.load(snapshot.acting)
            parent.send(envs.play(copy.agent, copy.transforms, snapshot.frame, parent.stopped))
    finally:
        envs.close()
        copy.close()
