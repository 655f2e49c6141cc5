"""Sources of a session's steps: its own environments, or a process that acts ahead of the learner."""

from __future__ import annotations

import logging
import mmap
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.agents.agent import Agent, Observation
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.schema import TrialConfig
from labrl.envs.actions import ActionRecord, action_statistics
from labrl.envs.make import goals_of, make_env
from labrl.envs.vector import ReplayError, VectorEnv
from labrl.learning.ranks import Ranks
from labrl.processes.worker import ParentConnection, ParentEndedError, Worker, WorkerError
from labrl.run.session import RunSession
from labrl.run.session_log import warnings_logged
from labrl.seeding import derived_seed
from labrl.session.acting import ActingCopy, acting_state
from labrl.session.options import AsyncUnrollConfig
from labrl.spaces import Spaces
from labrl.step import Episode, Step

_log = logging.getLogger(__name__)

NAME = "the actor process (meta.async_unroll)"
START_SECONDS = 300.0
"""Seconds allowed for the start of the actor process, unless its timeout is longer. Importing torch can be
slow."""
WINDOW = 100
"""Number of the latest vector steps over which metrics are computed."""


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
        """Replay the saved actions. If this does not reproduce the episodes, start new episodes and warn."""
        try:
            return self.env.load_state_dict(state)
        except ReplayError as error:
            _log.warning("%s; new episodes start, so this run differs from an uninterrupted one", error)
            return self.env.abandon(state)


class Acted(NamedTuple):
    """A vector step of the actor process."""

    action: NDArray
    """Actions passed to the environments. [num_envs, *action]"""
    decision: dict[str, NDArray]
    """Result of the agent's `decision()` for these actions."""
    step: Step
    """Result of the environments' step, before any transform."""
    version: int
    """Version of the acting weights: the number of optimizer updates when they were published."""
    ended: float
    """Time at which the step ended, `time.monotonic` in seconds, the same clock in both processes."""
    saw_not_finite: bool
    """Whether there was a warning of an observation that is not finite."""


class ActorProcess:
    """A process that takes the place of a session's environments and, when acting, of its agent.

    The process is at most `queue_size` vector steps ahead of the learner, with weights that are published
    every `update_period` updates. The learner receives every step in order, so the number of updates per
    frame is exact; the age of the acting weights depends on timing. Frames, episodes and statistics count
    only the steps that the learner has received. The methods raise WorkerError.
    """

    def __init__(
        self,
        config: TrialConfig,
        options: AsyncUnrollConfig,
        index: int,
        seed: int,
        num_threads: int,
        folder: RunSession,
    ) -> None:
        """Start the process, and wait until its environments are made.

        index, seed, folder: index, seed and folder of the session.
        """
        self.seed = seed
        self.num_envs: int = config.env.config.num_envs
        self.action_mask: NDArray[np.bool_] | None = None
        self.saw_not_finite = False
        """Whether there was a warning of an observation that is not finite."""
        self.actions: NDArray | None = None
        """Actions of the last step; None before the first step. [num_envs, *action]"""
        self._options, self._weights_path = options, folder.path / "acting_weights.bin"
        self._worker = Worker(
            NAME,
            serve,
            (config, options, index, seed, num_threads),
            folder.log,
            partial(warnings_logged, folder.log),
        )
        try:
            name, frame_skip, observation_space, action_space, masked = self._next(START_SECONDS)
        except BaseException:
            self.close()
            raise
        self.name: str = name
        self.frame_skip: int = frame_skip
        self.observation_space: gym.Space[Any] = observation_space
        self.action_space: gym.Space[Any] = action_space
        self.masked: bool = masked
        self.goals = goals_of(config.env, observation_space)
        self._episode = np.zeros(self.num_envs, np.int64)
        self._record = ActionRecord(self.num_envs, self.action_space)
        self._steps = self._published = 0
        self._latest: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    @property
    def env(self) -> ActorProcess:
        """This object, which the session uses in place of the environments."""
        return self

    def connect(self, agent: Agent, transforms: Transforms, clock: Clock) -> Callable[[Observation], NDArray]:
        """Make the process act with copies of `agent`. Return the function from observations to actions."""
        self._agent, self._transforms, self._clock = agent, transforms, clock
        return self.act

    def reset(self) -> NDArray:
        """Start acting. Return the first observations, [num_envs, *obs]."""
        return self._begin(None)

    def restore(self, state: Mapping[str, Any]) -> NDArray:
        """Start acting in new episodes, and cut off the saved unfinished episodes.

        Returns the first observations, [num_envs, *obs].
        """
        self.seed, self._steps = int(state["seed"]), int(state["steps"])
        self._episode = np.array(state["episode"], np.int64)
        self._record.begin_after(np.asarray(state["latest_actions"]))
        return self._begin(dict(state))

    def act(self, observation: Observation) -> NDArray:
        """Return the next actions of the process, and pass them to the agent. [num_envs, *action]"""
        if self._clock.opt_step - self._published >= self._options.update_period:
            self._publish()
        self._acted: Acted = self._next()
        self._worker.send(None)  # the queue has room for one more step
        self._latest.append((self._clock.opt_step - self._acted.version, self._acted.ended))
        self._agent.adopt(observation, self._acted.decision)
        return self._acted.action

    def step(self, action: NDArray) -> Step:
        """Return the environments' step that belongs to `action`."""
        step = self._acted.step
        self._record.append(action)
        self.actions, self.action_mask = action, step.mask
        self.saw_not_finite = self._acted.saw_not_finite
        self._reached, self._observation = step.next_observation, step.observation
        self._steps += 1
        if step.void:  # the episodes of a resumed run were cut, and the process has started new ones
            self._episode += 1
        for episode in step.episodes:
            self._episode[episode.env] = episode.index + 1
        if step.episode_over.any():
            self._record.begin(step.episode_over)
        return step

    def played(self, episode: Episode) -> tuple[NDArray, NDArray]:
        """Return the actions [length, *action] and final observation [*obs] of an episode that just ended."""
        return self._record.last(episode.env, episode.length), self._reached[episode.env]

    @property
    def longest_episode(self) -> int:
        """Number of steps so far in the longest unfinished episode."""
        return int(self._record.lengths.max())

    def metrics(self) -> dict[str, float]:
        """Return the columns `staleness`, `staleness_max`, `step_interval`, and those of `action_statistics`.

        staleness, staleness_max: mean and maximum number of optimizer updates by which the acting weights
        were behind, over the last WINDOW vector steps; step_interval: mean seconds per vector step, over the
        last WINDOW vector steps.
        """
        shares = action_statistics(self._record.latest, self.action_space)
        if not self._latest:
            return {**dict.fromkeys(("staleness", "staleness_max", "step_interval"), np.nan), **shares}
        staleness = [behind for behind, _ in self._latest]
        (_, first), (_, last) = self._latest[0], self._latest[-1]
        return {
            "staleness": float(np.mean(staleness)),
            "staleness_max": max(staleness),
            "step_interval": (last - first) / (len(staleness) - 1) if len(staleness) > 1 else np.nan,
            **shares,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return a state in the format of `VectorEnv.state_dict`. It marks the current episodes as lost,
        because the actor's environments are already ahead of this state."""
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
            "latest_actions": self._record.latest,
        }

    def close(self) -> None:
        """End the process. Calling it again has no effect."""
        self._worker.close()
        self._weights_path.unlink(missing_ok=True)

    def _begin(self, env: dict[str, Any] | None) -> NDArray:
        self._modules = self._agent.acting_modules()
        self._weights = WeightsFile(self._weights_path, self._modules, create=True)
        self._publish()
        acting = acting_state(self._agent, self._transforms, self._clock)
        self._worker.send((acting, env, self._weights_path))
        observation: NDArray
        observation, self.action_mask = self._next(START_SECONDS)
        self._weights_path.unlink()  # both processes have it open, so a kill cannot leave the file behind
        self._observation = observation
        return observation

    def _publish(self) -> None:
        self._published = self._clock.opt_step
        self._weights.publish(self._modules, self._published)

    def _next(self, at_least: float = 0.0) -> Any:
        """Wait for the next message, up to the timeout or `at_least` seconds, whichever is longer."""
        timeout = max(self._options.timeout, at_least)
        if self._worker.has_message(timeout):
            return self._worker.receive()
        self._worker.signal(signal.SIGUSR2)  # makes it write its stack to the log
        time.sleep(0.5)
        self._worker.kill()
        raise WorkerError(
            f"{NAME} has sent nothing for {timeout:g} seconds (meta.async_unroll.timeout); the session's log "
            "shows the line at which it hangs",
            key="meta.async_unroll.timeout",
        )


def make_source(
    config: TrialConfig, index: int, seed: int, num_threads: int, folder: RunSession, ranks: Ranks
) -> Source:
    """Return the source of steps for one rank of a session."""
    unroll, env = config.meta.async_unroll, config.env
    if unroll is not None:
        return ActorProcess(config, unroll, index, seed, num_threads, folder)
    own = env.config.num_envs // ranks.size
    return OwnEnvironments(make_env(env, seed, num_threads, num_envs=own, first=ranks.rank * own))


def serve(
    parent: ParentConnection,
    config: TrialConfig,
    options: AsyncUnrollConfig,
    index: int,
    seed: int,
    num_threads: int,
) -> None:
    """Run the actor process: act ahead of the learner with the newest weights."""
    env = make_env(config.env, seed, num_threads)
    copy: ActingCopy | None = None
    try:
        parent.send((env.name, env.frame_skip, env.observation_space, env.action_space, env.masked))
        # State of the agent, state of the environments (None: new ones), and file of the weights.
        acting, state, path = parent.receive()
        spaces = Spaces(env.observation_space, env.action_space, env.num_envs, env.masked)
        # The learner draws from streams of the same names, so the actor needs another seed.
        own_seed = derived_seed(seed, "actor", int(acting["clock"]["frame"]))
        copy = ActingCopy.of_session(config, spaces, own_seed, index, num_threads)
        copy.load(acting)
        agent, transforms, clock = copy.agent, copy.transforms, copy.clock
        modules = agent.acting_modules()
        weights = WeightsFile(path, modules)
        try:
            observation = env.reset() if state is None else env.load_state_dict(state)
        except ReplayError:
            observation = env.abandon(state)
        parent.send((observation, env.action_mask))
        # Saved statistics already include this observation.
        seen = transforms.collected(observation) if state is None else transforms.frozen(observation)
        sender, places = Sender(parent), options.queue_size
        next_step = time.monotonic()
        while True:
            while not places or parent.has_message():  # the learner has received a step
                parent.receive()
                places += 1
            places -= 1
            time.sleep(max(next_step - time.monotonic(), 0.0))
            next_step = max(next_step, time.monotonic()) + options.step_interval
            version = weights.take(modules)
            action = agent.act(Observation(seen, env.action_mask))
            step = env.step(action)
            # Copies, because they are sent later, when the agent may have reused its arrays.
            decision = {name: part.copy() for name, part in agent.decision().items()}
            ended = time.monotonic()
            sender.send(Acted(action.copy(), decision, step, version, ended, env.saw_not_finite))
            view = transforms.step(step)
            agent.observe(view)
            clock.tick(env.num_envs, len(step.episodes))
            seen = view.observation
    finally:
        if copy is not None:
            copy.close()
        env.close()


class Sender:
    """Send steps in the background, because steps with images fill the pipe while a busy learner does not
    read."""

    def __init__(self, parent: ParentConnection) -> None:
        self._parent = parent
        self._waiting: queue.SimpleQueue[Acted] = queue.SimpleQueue()
        threading.Thread(target=self._send_all, name="sender", daemon=True).start()

    def send(self, acted: Acted) -> None:
        """Queue a step, to be sent after all earlier ones."""
        self._waiting.put(acted)

    def _send_all(self) -> None:
        try:
            while True:
                self._parent.send(self._waiting.get())
        except ParentEndedError:
            return  # the acting thread will find out, too


_HEADER = 64
"""Number of bytes before the first tensor. They contain the number of starts and ends of writes, and the
version."""


def _tensors(modules: Mapping[str, nn.Module]) -> Iterator[Tensor]:
    """Yield weights and buffers in an order that is the same for every copy of the agent."""
    for name in sorted(modules):
        yield from (tensor.detach() for tensor in modules[name].state_dict().values() if tensor.numel())


class WeightsFile:
    """The newest weights, in a file that may be unlinked once both processes have opened it.

    The writer never waits; a reader that meets an unfinished write reads again. `version` is the writer's
    count of optimizer updates.
    """

    def __init__(self, path: Path, modules: Mapping[str, nn.Module], create: bool = False) -> None:
        """modules: networks of the same shapes as those of the other process; create: whether to create the
        file, as only the writer does."""
        layout, end = [], _HEADER
        for tensor in _tensors(modules):
            layout.append((tensor.dtype, tensor.shape, end))
            end += -(-tensor.nbytes // _HEADER) * _HEADER
        if create:
            with path.open("wb") as file:
                file.truncate(end)
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), end)
        self._header = torch.frombuffer(memory, dtype=torch.int64, count=2)
        self._places = [
            torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=offset).view(shape)
            for dtype, shape, offset in layout
        ]
        self._taken = 0

    def publish(self, modules: Mapping[str, nn.Module], version: int) -> None:
        """Write the weights of `modules`, which the other process uses from its next step on."""
        self._header[0] += 1  # an odd number tells the reader that a write is in progress
        for place, tensor in zip(self._places, _tensors(modules), strict=True):
            place.copy_(tensor)
        self._header[1] = version
        self._header[0] += 1

    def take(self, modules: Mapping[str, nn.Module]) -> int:
        """Copy the latest published weights into `modules` if they are new. Return their version."""
        while (written := int(self._header[0])) != self._taken or written % 2:
            if written % 2 == 0:
                version = int(self._header[1])
                for place, tensor in zip(self._places, _tensors(modules), strict=True):
                    tensor.copy_(place)
                if int(self._header[0]) == written:
                    self._taken, self._version = written, version
                    break
            time.sleep(1e-4)
        return self._version
