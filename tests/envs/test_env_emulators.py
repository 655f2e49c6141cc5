"""Tests of Atari emulators that run separately: they give the same steps and prepare the next episodes."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest
from env_cases import assert_same_steps, atari, play, sampled
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from labrl.envs.emulators import FEW_THREADS, SeparateEmulators, have_all_cores, separate_is_faster
from labrl.envs.make import make_env
from labrl.envs.vector import SHORT
from labrl.seeding import episode_seed
from labrl.step import Step


@functools.cache
def breakout(num_threads: int) -> list[Step]:
    game = atari("breakout", max_episode_frames=240, noop_max=4)
    env = make_env(game, seed=3, num_threads=num_threads, num_envs=2)
    env.reset()
    steps = play(env, sampled(env, seed=1), 130)
    env.close()
    return steps


@pytest.mark.extended
@pytest.mark.parametrize(
    "num_threads",
    [
        FEW_THREADS + 1,
        *(pytest.param(n, marks=pytest.mark.matrix) for n in (FEW_THREADS, 2 * FEW_THREADS + 4)),
    ],
)
def test_steps_do_not_depend_on_the_number_of_threads(num_threads: int) -> None:
    alone = breakout(1)
    assert_same_steps(alone, breakout(num_threads))
    assert any((step.terminated & ~step.episode_over).any() for step in alone), "no life was lost"
    assert sum(len(step.episodes) for step in alone) >= 4, "too few episodes to include prepared ones"


def test_saved_game_is_restored_although_another_was_prepared() -> None:
    game = atari("pong", max_episode_frames=200, noop_max=4)
    env = make_env(game, seed=5, num_threads=FEW_THREADS + 1, num_envs=2)
    env.reset()
    play(env, sampled(env, seed=1), 40)
    state = env.state_dict()
    after = sampled(env, seed=2)
    expected = play(env, after, 40)
    assert sum(len(step.episodes) for step in expected) == 2, "the prepared episodes must begin"
    env.load_state_dict(state)
    assert_same_steps(play(env, after, 40), expected)
    env.close()


@pytest.mark.parametrize(
    ("num_threads", "all_cores", "separate"),
    [(1, True, False), (1, False, False), (2, True, True), (2, False, False), (3, False, True)],
)
def test_emulators_are_separate_if_a_core_is_free_to_prepare_episodes(
    num_threads: int, all_cores: bool, separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labrl.envs.emulators.have_all_cores", lambda _: all_cores)
    assert separate_is_faster(num_threads) is separate


class FakeEmulator:
    """Emulator that records its resets, and counts how many emulators are stepping at the same time."""

    single_observation_space = Box(0, 255, (1,), np.uint8)
    single_action_space = Discrete(2)
    running = 0
    most_running = 0

    def __init__(self, resets: list[int]) -> None:
        self._resets = resets

    def reset(self, seed: NDArray[np.int64]) -> tuple[NDArray, dict[str, Any]]:
        self._resets.append(int(seed[0]))
        return np.full((1, 1), seed[0], np.uint8), {"lives": np.array([3])}

    @property
    def ale(self) -> FakeEmulator:
        return self

    def send(self, action: NDArray, strength: NDArray) -> None:
        FakeEmulator.running += 1
        FakeEmulator.most_running = max(FakeEmulator.most_running, FakeEmulator.running)
        self._action = action

    def recv(self) -> tuple[Any, ...]:
        FakeEmulator.running -= 1
        no = np.zeros(1, np.bool_)
        return self._action[None], self._action, no, no, {"lives": np.array([2])}


def separate_emulators(num_envs: int, num_threads: int, resets: list[int]) -> SeparateEmulators:
    make: Any = lambda: FakeEmulator(resets)  # noqa: E731
    emulators = SeparateEmulators(make, num_envs, num_threads)
    emulators.reset(np.ones(num_envs, np.bool_), np.arange(num_envs))
    return emulators


def test_prepared_episode_is_used_only_for_its_own_seed() -> None:
    resets: list[int] = []
    emulators = separate_emulators(2, 3, resets)
    emulators.prepare(0, seed=7)
    emulators.prepare(1, seed=8)
    first, lives = emulators.reset(np.array([True, False]), np.array([7, 0]))
    assert (first[:, 0].tolist(), lives.tolist()) == ([7, 1], [3, 3])
    other, _ = emulators.reset(np.array([False, True]), np.array([0, 9]))
    assert other[:, 0].tolist() == [7, 9]
    assert sorted(resets) == [0, 1, 7, 8, 9]
    emulators.close()


def test_second_episodes_are_prepared_one_per_step_unless_a_run_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = make_env(atari("pong"), seed=3, num_threads=FEW_THREADS + 1, num_envs=2)
    prepared: list[tuple[int, int]] = []
    monkeypatch.setattr(env.backend, "prepare", lambda number, seed: prepared.append((number, seed)))
    env.reset()
    actions, counts = sampled(env, seed=1), []
    for step in range(SHORT + 3):
        play(env, actions, 1, first=step)
        counts.append(len(prepared))
    env.close()
    assert counts == [*[0] * (SHORT - 1), 1, 2, 2, 2]
    assert prepared == [(0, episode_seed(3, 0, 1)), (1, episode_seed(3, 1, 1))]


@pytest.mark.extended
def test_no_more_emulators_run_at_once_than_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labrl.envs.emulators.have_all_cores", lambda _: False)
    monkeypatch.setattr(FakeEmulator, "most_running", 0)
    emulators = separate_emulators(7, 3, [])
    played = emulators.step(np.arange(7))
    assert played.reward.tolist() == played.observation[:, 0].tolist() == list(range(7))
    assert (FakeEmulator.most_running, FakeEmulator.running) == (3, 0)
    emulators.close()


@pytest.mark.parametrize(
    ("num_threads", "allowed", "cores", "expected"), [(4, 4, 4, True), (2, 4, 4, False), (4, 4, 64, False)]
)
def test_process_has_all_cores_only_if_it_may_use_all_of_the_machine(
    num_threads: int, allowed: int, cores: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert have_all_cores(num_threads) is expected
