"""What an actor process does: act ahead of the learner, with the newest weights that there are."""

from __future__ import annotations

import queue
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.agent import Observation
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import ReplayError, VectorEnv
from labrl.networks.spaces import Spaces
from labrl.seeding import derived_seed
from labrl.session.acting import ActingCopy
from labrl.session.companion import Line, TrainingEndedError
from labrl.session.options import AsyncUnrollConfig
from labrl.session.weights_file import WeightsFile
from labrl.step import Step


class Described(NamedTuple):
    """The environments, as the learner has to know them."""

    name: str
    frame_skip: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    masked: bool


class Begin(NamedTuple):
    """Where to begin."""

    acting: dict[str, Any]
    """As `acting_state` has it."""
    env: dict[str, Any] | None
    """A saved state of the environments; None: from their first episodes."""
    weights: Path
    """Of a `WeightsFile`."""


class Begun(NamedTuple):
    """Where it has begun."""

    observation: NDArray
    """As the environments give it. [num_envs, *obs]"""
    mask: NDArray[np.bool_] | None
    """Which actions are valid there. [num_envs, flags]"""


class Acted(NamedTuple):
    """One vector step."""

    action: NDArray
    """As the environments took it. [num_envs, *action]"""
    decision: dict[str, NDArray]
    """The same, as the agent remembers it."""
    step: Step
    """As the environments gave it."""
    version: int
    """Of the weights that acted: optimizer updates before they were published."""
    ended: float
    """When, in seconds of a clock that both processes share."""


def serve(
    line: Line,
    taken: Connection,
    config: TrialConfig,
    options: AsyncUnrollConfig,
    index: int,
    seed: int,
    num_threads: int,
) -> None:
    """What the process does. taken: gets a message for each vector step that the learner has taken; index,
    seed, num_threads: of the session."""
    env = make_env(config.env, seed, num_threads)
    try:
        line.send(Described(env.name, env.frame_skip, env.observation_space, env.action_space, env.masked))
        begin: Begin = line.receive()
        spaces = Spaces(env.observation_space, env.action_space, env.num_envs, env.masked)
        # Not the learner's own streams: it draws from those of the same names.
        own_seed = derived_seed(seed, "actor", int(begin.acting["clock"]["frame"]))
        copy = ActingCopy(config, index, own_seed, num_threads, spaces)
        try:
            _act(line, Room(options.queue_size, taken), env, copy, begin, options.step_interval)
        finally:
            copy.close()
    finally:
        env.close()


def _act(
    line: Line, room: Room, env: VectorEnv, copy: ActingCopy, begin: Begin, step_interval: float
) -> None:
    agent, transforms, clock = copy.agent, copy.transforms, copy.clock
    copy.load(begin.acting)
    modules = agent.acting_modules()
    weights = WeightsFile(begin.weights, modules)
    observation = _reset(env, begin)
    line.send(Begun(observation, env.action_mask))
    # Statistics that were saved had seen this observation.
    seen = transforms.collected(observation) if begin.env is None else transforms.frozen(observation)
    sender = Sender(line)
    next_step = time.monotonic()
    while True:
        while not room.take_place(timeout=0.1):
            line.stopped()
        line.stopped()
        time.sleep(max(next_step - time.monotonic(), 0.0))
        next_step = max(next_step, time.monotonic()) + step_interval
        version = weights.take(modules, line.stopped)
        action = agent.act(Observation(seen, env.action_mask))
        step = env.step(action)
        # Copies: they are sent later, when the agent may have written into its arrays again.
        decision = {name: part.copy() for name, part in agent.decision().items()}
        sender.send(Acted(action.copy(), decision, step, version, time.monotonic()))
        view = transforms.step(step)
        agent.observe(view)
        clock.tick(env.num_envs, len(step.episodes))
        seen = view.observation


def _reset(env: VectorEnv, begin: Begin) -> NDArray:
    if begin.env is None:
        return env.reset()
    try:
        return env.load_state_dict(begin.env)
    except ReplayError:
        return env.abandon(begin.env)


class Room:
    """Places for vector steps that the learner has not taken yet."""

    def __init__(self, places: int, taken: Connection) -> None:
        """taken: gets a message for each step that the learner has taken."""
        self._places, self._taken = places, taken

    def take_place(self, timeout: float) -> bool:
        """Whether there is a place for one more step; waits up to `timeout` seconds for it."""
        try:
            while self._taken.poll(0.0 if self._places else timeout):
                self._taken.recv_bytes()
                self._places += 1
        except (EOFError, OSError):
            raise TrainingEndedError from None
        if not self._places:
            return False
        self._places -= 1
        return True


class Sender:
    """Sends in the background: a learner that is busy does not read, and steps of images fill a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiting: queue.SimpleQueue[Acted] = queue.SimpleQueue()
        threading.Thread(target=self._send_all, name="sender", daemon=True).start()

    def send(self, acted: Acted) -> None:
        """As soon as all before it has been sent."""
        self._waiting.put(acted)

    def _send_all(self) -> None:
        try:
            while True:
                self._line.send(self._waiting.get())
        except TrainingEndedError:
            return  # the one who acts will notice, too
