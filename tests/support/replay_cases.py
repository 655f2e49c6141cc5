"""A world of random steps and a naive reference implementation, for the tests of replay buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from options import options

from labrl.memory import Transitions
from labrl.memory.prioritized import PrioritizedReplay
from labrl.memory.replay import Replay
from labrl.memory.workspace import Workspace
from labrl.step import Step

DISCOUNT = 0.9
VECTOR = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
STACK = gym.spaces.Box(0, 255, (2, 5, 4), np.uint8)
"""A stack of two planes of 5 x 4 pixels."""
NUMBER = gym.spaces.Discrete(1000)
ACTIONS = gym.spaces.Discrete(7)


class World:
    """A world with random observations, rewards and ends; nothing repeats, so that every mistake shows."""

    def __init__(
        self,
        space: gym.Space,
        num_envs: int,
        seed: int,
        ends: float = 0.1,
        lives: float = 0.1,
        jumps: float = 0.0,
    ) -> None:
        """Set the probabilities of random events.

        ends: the end of an episode. lives: a lost life. jumps: a stack of planes that does not continue the
        stack before it.
        """
        self.space, self.num_envs = space, num_envs
        self.ends, self.lives, self.jumps = ends, lives, jumps
        self.rng = np.random.default_rng(seed)
        self.observation = self.look()

    def look(self) -> NDArray:
        """Draw observations independent of all earlier ones. [num_envs, *obs]"""
        shape = (self.num_envs, *(self.space.shape or ()))
        if self.space.dtype == np.uint8 or self.space is NUMBER:
            return self.rng.integers(0, 256, shape).astype(self.space.dtype)
        return self.rng.normal(size=shape).astype(self.space.dtype)

    def step(self) -> tuple[NDArray, NDArray, Step]:
        """Make a vector step with random actions. Return the observation, the action and the step."""
        rng, before = self.rng, self.observation
        after = self.look()
        if self.space is STACK:
            shifts = rng.random(self.num_envs) >= self.jumps
            after[shifts, :-1] = before[shifts, 1:]
        ended, truncated = rng.random((2, self.num_envs)) < self.ends
        lost = rng.random(self.num_envs) < self.lives
        over = ended | truncated
        step = Step(
            observation=after,
            next_observation=after,
            reward=rng.normal(size=self.num_envs).astype(np.float32),
            terminated=ended | lost,
            truncated=truncated,
            episode_over=over,
        )
        if over.any():
            step.observation = np.where(over.reshape(-1, *[1] * (after.ndim - 1)), self.look(), after)
        self.observation = step.observation
        return before, rng.integers(0, 7, self.num_envs), step

    def steps(self, count: int) -> Iterator[tuple[NDArray, NDArray, Step]]:
        """Make `count` vector steps."""
        for _ in range(count):
            yield self.step()


def fill(world: World, count: int, *buffers: Any) -> None:
    """Add `count` vector steps of the world to each of the buffers."""
    for step in world.steps(count):
        for buffer in buffers:
            buffer.add(*step)


class Seen(NamedTuple):
    """A step of one environment."""

    observation: NDArray
    action: int
    reward: float
    next_observation: NDArray
    terminated: bool
    cut: bool
    first_plane: int
    """The number of planes that had been stored before the oldest plane of the observation."""


class NaiveReplay:
    """A reference implementation that keeps all steps and searches them for what may be sampled."""

    def __init__(self, space: gym.Space, num_envs: int, capacity: int, n_step: int) -> None:
        self.live, self.n_step = capacity // num_envs, n_step
        self.stack = STACK.shape[0] if space is STACK else 1
        # As ReplayConfig.capacity says: a sixteenth more planes than transitions, and those of a few steps.
        self.planes = self.live + -(-self.live // 16) + (2 * n_step + 3) * self.stack
        self.limited = space is STACK
        self.seen: list[list[Seen]] = [[] for _ in range(num_envs)]
        self.pushed = [self.stack] * num_envs

    def add(self, observation: NDArray, action: NDArray, step: Step) -> None:
        """Store a vector step."""
        for env, seen in enumerate(self.seen):
            before, after = observation[env], step.next_observation[env]
            shifted = self.stack == 1 or np.array_equal(before[1:], after[:-1])
            over = bool(step.episode_over[env])
            seen.append(
                Seen(
                    before.copy(),
                    int(action[env]),
                    float(step.reward[env]),
                    after.copy(),
                    bool(step.terminated[env]),
                    bool(step.terminated[env]) or over,
                    self.pushed[env] - self.stack,
                )
            )
            self.pushed[env] += (1 if shifted else self.stack) + (self.stack if over else 0)

    def sampleable(self) -> list[tuple[int, int]]:
        """Return (step, env) of all transitions that may be sampled, newest first."""
        steps = len(self.seen[0])
        pairs = [(t, env) for env in range(len(self.seen)) for t in range(max(steps - self.live, 0), steps)]
        return sorted((pair for pair in pairs if self._whole(*pair)), key=lambda pair: (-pair[0], pair[1]))

    def window(self, t: int, env: int) -> list[Seen]:
        """Return the steps of the n-step transition that begins at step t."""
        rows = self.seen[env][t : t + self.n_step]
        ends = [k for k, row in enumerate(rows) if row.cut]
        return rows[: ends[0] + 1] if ends else rows

    def _whole(self, t: int, env: int) -> bool:
        seen, window = self.seen[env], self.window(t, env)
        stored = not self.limited or seen[t].first_plane >= self.pushed[env] - self.planes
        return stored and (window[-1].cut or len(window) == self.n_step)


def assert_all_as_seen(sample: Transitions, naive: NaiveReplay, pairs: list[tuple[int, int]]) -> None:
    """Check that the transitions of `sample` are those of the (step, env) `pairs`, in this order."""
    windows = [naive.window(t, env) for t, env in pairs]
    np.testing.assert_array_equal(sample.observation, [window[0].observation for window in windows])
    np.testing.assert_array_equal(
        sample.next_observation, [window[-1].next_observation for window in windows]
    )
    np.testing.assert_array_equal(sample.action, [window[0].action for window in windows])
    rewards = [sum(DISCOUNT**k * seen.reward for k, seen in enumerate(window)) for window in windows]
    np.testing.assert_allclose(sample.reward, rewards, rtol=1e-6, atol=1e-6)
    discounts = [0.0 if window[-1].terminated else DISCOUNT ** len(window) for window in windows]
    np.testing.assert_allclose(sample.discount, discounts, rtol=1e-6)


def uniform(space: gym.Space, num_envs: int, n_step: int = 1, seed: int = 0, **more: Any) -> Any:
    """Build a uniform replay buffer.

    more: the class `cls`, the `folder` of a memory-mapped buffer, `frames_kept`, `sharers` or a `workspace`;
    all other keywords are options of the buffer.
    """
    return _build(more.pop("cls", Replay), "uniform", space, num_envs, n_step, seed, more)


def prioritized(
    space: gym.Space, num_envs: int, n_step: int = 1, seed: int = 0, **more: Any
) -> PrioritizedReplay:
    """Build a prioritized replay buffer; `more` is as in `uniform`, without `cls`."""
    return _build(PrioritizedReplay, "prioritized", space, num_envs, n_step, seed, more)


def _build(cls: Any, option: str, space: gym.Space, num_envs: int, n_step: int, seed: int, more: Any) -> Any:
    folder: Path | None = more.pop("folder", None)
    kept, sharers = more.pop("frames_kept", 0), more.pop("sharers", 1)
    workspace = more.pop("workspace", None) or Workspace(folder, kept, sharers)
    storage = "mmap" if folder else "ram"
    return cls(
        options("agent.memory", f"agent=dqn agent/memory={option}", storage=storage, **more),
        observation_space=space,
        action_space=ACTIONS,
        num_envs=num_envs,
        n_step=n_step,
        gamma=DISCOUNT,
        workspace=workspace,
        generator=np.random.default_rng(seed),
    )


def everything(memory: Replay) -> Transitions:
    """Return all transitions that may be sampled, newest first; needs newest_share=1."""
    return memory.sample(len(memory), 0)


def saved(memory: Replay) -> tuple[Any, Any]:
    """Return the state of a replay buffer and of its generator, as a checkpoint keeps them."""
    return copy.deepcopy((memory.state_dict(), memory.generator.bit_generator.state))


def load(memory: Replay, state: tuple[Any, Any]) -> None:
    """Load a state that `saved` returned."""
    memory.load_state_dict(state[0])
    memory.generator.bit_generator.state = state[1]


def assert_same(left: Transitions, right: Transitions) -> None:
    """Check that two batches of transitions are equal bit for bit."""
    for name, one in vars(left).items():
        other = vars(right)[name]
        if one is None or other is None:
            assert one is other, "only one of the two has action masks"
            continue
        assert one.dtype == other.dtype
        assert np.array_equal(one, other), name
