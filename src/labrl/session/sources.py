"""Sources of a session's steps: its own environments, or a process that acts ahead of the learner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import ReplayError, VectorEnv
from labrl.learning.ranks import Ranks
from labrl.run.session import RunSession
from labrl.session.actor import ActorProcess

_log = logging.getLogger(__name__)


class Source(Protocol):
    """A source of a session's steps."""

    @property
    def env(self) -> VectorEnv | ActorProcess:
        """The environments, or the object that takes their place."""

    def connect(self, agent: Agent, transforms: Transforms, clock: Clock) -> Callable[[Observation], NDArray]:
        """Act with `agent` from now on. Return the function from observations to actions."""

    def restore(self, state: Mapping[str, Any]) -> NDArray:
        """Restore the environments from a saved state. Return their observations, [num_envs, *obs]."""


class OwnEnvironments:
    """Environments in the session's process, where the agent itself acts."""

    def __init__(self, env: VectorEnv) -> None:
        self.env = env

    def connect(self, agent: Agent, transforms: Transforms, clock: Clock) -> Callable[[Observation], NDArray]:
        """Return the agent's `act`."""
        return agent.act

    def restore(self, state: Mapping[str, Any]) -> NDArray:
        """Replay the saved actions. If this does not reproduce the episodes, start new ones and warn."""
        try:
            return self.env.load_state_dict(state)
        except ReplayError as error:
            _log.warning("%s; new episodes start, so this run differs from an uninterrupted one", error)
            return self.env.abandon(state)


def make_source(
    config: TrialConfig, index: int, seed: int, num_threads: int, folder: RunSession, ranks: Ranks
) -> Source:
    """Return the source of steps for one rank of a session."""
    unroll, env = config.meta.async_unroll, config.env
    if unroll is not None:
        return ActorProcess(config, unroll, index, seed, num_threads, folder)
    own = env.config.num_envs // ranks.size
    return OwnEnvironments(make_env(env, seed, num_threads, num_envs=own, first=ranks.rank * own))
