"""Playing whole episodes to evaluate an agent: in the session's process, or in one beside training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.agents.random import uniform_actions
from labrl.agents.transforms import Transforms
from labrl.config.component import Component
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.networks.spaces import Spaces
from labrl.seeding import derived_seed
from labrl.session.acting import ActingCopy
from labrl.session.callbacks.callback import SessionView
from labrl.session.companion import Companion, Line
from labrl.session.episodes import Played
from labrl.step import Step

NAME = "the process of asynchronous evaluation (meta.async_eval)"
POLL_SECONDS = 0.05
"""Seconds between two checks for an answer."""


@dataclass(frozen=True)
class Quota:
    """Episodes played for one row, and how actions are chosen."""

    num_envs: int
    """Number of environments; 0: nothing is played, and rows are of the training episodes."""
    episodes: int = 1
    """Episodes of each environment."""
    greedy: bool = False
    """Whether the best actions are played, rather than the policy's own."""
    epsilon: float = 0.0
    """Probability of a random action instead, in [0, 1]."""


def choose(
    agent: Agent,
    observation: Observation,
    space: gym.Space[Any],
    quota: Quota,
    generator: np.random.Generator,
    chance: np.random.Generator,
) -> NDArray:
    """Return actions of an agent under evaluation. [num_envs, ...]

    observation: whose `start` is given; space: of one action; generator: that the policy draws from; chance:
    that random actions, and whether there are any, are drawn from.
    """
    if quota.greedy:
        action = agent.greedy_action(observation)
    else:
        action = agent.evaluation_action(observation, generator)
    if quota.epsilon == 0:
        return action
    # Drawn for every environment in every step, so that one's chance does not depend on another's.
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
    """Reset `env`, which yields None, and play on; yield each step.

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
    """Separate environments in evaluation mode, made when they are first played.

    Seeds of the episodes and of the actions follow from the session's seed and the frame alone: what is
    played does not depend on what was played before, nor on the process that plays it.
    """

    def __init__(self, env: Component, seed: int, num_threads: int, quota: Quota) -> None:
        """env: as training has it; seed: of the session; num_threads: that it may keep busy."""
        self._component, self._seed, self._num_threads, self._quota = env, seed, num_threads, quota
        self._env: VectorEnv | None = None

    @property
    def env(self) -> VectorEnv:
        """The environments. Starting an emulator costs more than an evaluation step: they are made once."""
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
        """Return the first whole episodes of each environment, by environment; None once `stopping()`."""
        env, quota = self.env, self._quota
        streams = ("evaluation", "evaluation actions", "evaluation chance")
        seeds = [derived_seed(self._seed, stream, frame) for stream in streams]
        found: list[list[Played]] = [[] for _ in range(env.num_envs)]
        for step in played_steps(env, agent, transforms, quota, *seeds):
            for episode in step.episodes if step is not None else ():
                # An environment that is done plays on while others finish: a further, short episode
                # would count short episodes more often than long ones.
                if len(found[episode.env]) < quota.episodes:
                    found[episode.env].append(Played(episode, *env.played(episode), frame, "evaluation"))
            if min(map(len, found)) == quota.episodes:
                break
            if stopping():
                return None
        return [played for of_one in found for played in of_one]

    def close(self) -> None:
        """Close the environments; they are made again if need be."""
        if self._env is not None:
            self._env.close()
            self._env = None


class Snapshot(NamedTuple):
    """A snapshot to be evaluated."""

    columns: dict[str, Any]
    """The columns of the clock, with which its row begins."""
    acting: dict[str, Any] | None
    """The result of `acting_state`; None: the session's own agent as it is."""

    @property
    def frame(self) -> int:
        """The frame at which it was taken."""
        return int(self.columns["frame"])


class Evaluator:
    """Plays snapshots one after the other in a process beside training. It raises CompanionError."""

    def __init__(self, session: SessionView, quota: Quota) -> None:
        """Start the process for what `session` will hand it."""
        arguments = (session.config, session.index, session.seed, session.num_threads, quota)
        self._companion = Companion(NAME, serve, arguments, session.folder.log)

    def begin(self, snapshot: Snapshot) -> None:
        """Let it play; its answer to the one before was taken."""
        self._companion.send(snapshot)

    def answer(self, stopping: Callable[[], bool] | None = None) -> list[Played] | None:
        """Return what it has played, None as long as it does; with `stopping` wait, until that is true."""
        while not self._companion.has_message(POLL_SECONDS if stopping else 0.0):
            if stopping is None or stopping():
                return None
        return self._companion.receive()

    def close(self) -> None:
        """End it, whatever it plays."""
        self._companion.close()


def serve(line: Line, config: TrialConfig, index: int, seed: int, num_threads: int, quota: Quota) -> None:
    """Play every snapshot that the session sends: the work of the process."""
    envs = EvaluationEnvs(config.env, seed, num_threads, quota)
    env = envs.env
    spaces = Spaces(env.observation_space, env.action_space, config.env.config.num_envs, env.masked)
    copy = ActingCopy.of_session(config, spaces, seed, index, num_threads)
    try:
        while True:
            snapshot: Snapshot = line.receive()
            assert snapshot.acting is not None
            copy.load(snapshot.acting)
            line.send(envs.play(copy.agent, copy.transforms, snapshot.frame, line.stopped))
    finally:
        envs.close()
        copy.close()
