"""Environments in an actor process, as the learner sees them."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Agent, Observation
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.schema import TrialConfig
from labrl.envs.make import goals_of
from labrl.envs.vector import ActionRecord
from labrl.session.acting import acting_state
from labrl.session.actor import Acted, Begin, Begun, Described, serve
from labrl.session.companion import Companion, CompanionError
from labrl.session.options import AsyncUnrollConfig
from labrl.session.weights_file import WeightsFile
from labrl.step import Episode, Step
from labrl.storage.run_folder import SessionFolder

NAME = "the actor process (meta.async_unroll)"
START_SECONDS = 300.0
"""What the process has to begin, unless its timeout is longer: a busy machine loads torch slowly."""
WINDOW = 100
"""Vector steps over which a training row looks back."""


class ActorEnv:
    """Stands in a session for its environments, and for its agent where that acts.

    The process plays ahead by at most `queue_size` vector steps, with weights that are published every
    `update_period` updates. What it plays is learned from in its order, all of it, so updates for each frame
    are exact; how old the weights were that acted depends on the machine. Frames, episodes and statistics are
    those that the learner has taken. What it raises is a CompanionError.
    """

    def __init__(
        self,
        config: TrialConfig,
        options: AsyncUnrollConfig,
        index: int,
        seed: int,
        num_threads: int,
        folder: SessionFolder,
    ) -> None:
        """Start the process, and wait for its environments. index, seed, folder: of the session."""
        self.seed = seed
        self.num_envs: int = config.env.config.num_envs
        self.action_mask: NDArray[np.bool_] | None = None
        self.actions: NDArray | None = None
        """What was done in the last step, None before there is one. [num_envs, *action]"""
        self._options, self._weights_path = options, folder.path / "acting_weights.bin"
        # A semaphore would need room in /dev/shm, which not every machine has.
        taken, self._taken = multiprocessing.get_context("spawn").Pipe(duplex=False)
        arguments = (taken, config, options, index, seed, num_threads)
        self._companion = Companion(NAME, serve, arguments, folder.log)
        try:
            described: Described = self._next(START_SECONDS)
        except BaseException:
            self.close()
            raise
        self.name, self.frame_skip = described.name, described.frame_skip
        self.observation_space, self.action_space = described.observation_space, described.action_space
        self.masked = described.masked
        self.goals = goals_of(config.env, described.observation_space)
        self._episode = np.zeros(self.num_envs, np.int64)
        self._record = ActionRecord(self.num_envs, self.action_space)
        self._steps = 0
        self._published = 0
        self._latest: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def of(self, agent: Agent, transforms: Transforms, clock: Clock) -> ActorEnv:
        """The same, for this learner from now on."""
        self._agent, self._transforms, self._clock = agent, transforms, clock
        return self

    def reset(self) -> NDArray:
        """Let the process begin. Returns the first observations, [num_envs, *obs]."""
        return self._begin(None)

    def load_state_dict(self, state: Mapping[str, Any]) -> NDArray:
        """Let the process begin fresh episodes; those that ran are cut. Returns [num_envs, *obs]."""
        self.seed, self._steps = int(state["seed"]), int(state["steps"])
        self._episode = np.array(state["episode"], np.int64)
        return self._begin(dict(state))

    def act(self, observation: Observation) -> NDArray:
        """What the process did next, which the agent learns from as if it had done so. [num_envs, *action]"""
        if self._clock.opt_step - self._published >= self._options.update_period:
            self._publish()
        acted: Acted = self._next()
        with contextlib.suppress(OSError):  # it is gone, as the next message will tell
            self._taken.send_bytes(b"1")
        self._acted = acted
        self._latest.append((self._clock.opt_step - acted.version, acted.ended))
        self._agent.adopt(observation, acted.decision)
        return acted.action

    def step(self, action: NDArray) -> Step:
        """What came of it."""
        step = self._acted.step
        self._record.append(action)
        self.actions = action
        self._reached, self._observation, self.action_mask = (
            step.next_observation,
            step.observation,
            step.mask,
        )
        self._steps += 1
        if step.void:  # the episodes of a run that goes on were cut, and the process has begun the next ones
            self._episode += 1
        for episode in step.episodes:
            self._episode[episode.env] = episode.index + 1
        if step.episode_over.any():
            self._record.begin(step.episode_over)
        return step

    def played(self, episode: Episode) -> tuple[NDArray, NDArray]:
        """Of an episode that ended in the last step: actions [length, *action], final observation [*obs]."""
        return self._record.last(episode.env, episode.length), self._reached[episode.env]

    @property
    def longest_episode(self) -> int:
        """Steps so far of the longest of the running episodes."""
        return int(self._record.lengths.max())

    def metrics(self) -> dict[str, float]:
        """Of the last WINDOW vector steps: optimizer updates that the weights which acted were behind, and
        seconds from one step of the actor to the next."""
        if not self._latest:
            return dict.fromkeys(("staleness", "staleness_max", "step_interval"), np.nan)
        staleness = [behind for behind, _ in self._latest]
        (_, first), (_, last) = self._latest[0], self._latest[-1]
        return {
            "staleness": float(np.mean(staleness)),
            "staleness_max": max(staleness),
            "step_interval": (last - first) / (len(staleness) - 1) if len(staleness) > 1 else np.nan,
        }

    def state_dict(self) -> dict[str, Any]:
        """As a VectorEnv's whose episodes do not come back: the actor has played on."""
        shape = self.action_space.shape or ()
        return {
            "seed": self.seed,
            "episode": self._episode.copy(),
            "episode_seed": np.zeros(self.num_envs, np.int64),
            "episode_return": np.zeros(self.num_envs),
            "actions": [np.zeros((0, *shape), np.int64)] * self.num_envs,
            "observation": self._observation.copy(),
            "lost": True,
            "steps": self._steps,
            "action_mask": self.action_mask,
        }

    def close(self) -> None:
        """End the process; calling it again changes nothing."""
        self._companion.close()
        self._taken.close()
        self._weights_path.unlink(missing_ok=True)

    def _begin(self, env: dict[str, Any] | None) -> NDArray:
        self._modules = self._agent.acting_modules()
        self._weights = WeightsFile(self._weights_path, self._modules, create=True)
        self._publish()
        acting = acting_state(self._agent, self._transforms, self._clock)
        self._companion.send(Begin(acting, env, self._weights_path))
        begun: Begun = self._next(START_SECONDS)
        self._weights_path.unlink()  # both have it open: no kill leaves it behind
        self._observation, self.action_mask = begun.observation, begun.mask
        return begun.observation

    def _publish(self) -> None:
        self._weights.publish(self._modules, self._clock.opt_step)
        self._published = self._clock.opt_step

    def _next(self, at_least: float = 0.0) -> Any:
        """The process's next message, waited for as long as it may take, and `at_least` seconds."""
        timeout = max(self._options.timeout, at_least)
        if self._companion.has_word(timeout):
            return self._companion.receive()
        self._companion.signal(signal.SIGUSR2)  # it writes where it is into the log
        time.sleep(0.5)
        self._companion.kill()
        raise CompanionError(
            f"{NAME} has sent nothing for {timeout:g} seconds (meta.async_unroll.timeout); the log of the "
            "session shows where it hangs",
            key="meta.async_unroll.timeout",
        )
