"""Tests of replay of sequences: samples equal what was played, with the recurrent state before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from options import options
from refusals import refused
from replay_cases import ACTIONS, DISCOUNT, STACK, VECTOR, NaiveReplay, World, saved

from labrl.memory.sequences import SequenceReplay, SequenceReplayConfig, SequenceSample
from labrl.memory.workspace import Workspace

ENVS, STATE = 3, 2


def config_of(**changes: Any) -> SequenceReplayConfig:
    return options("agent.memory", "agent=recurrent_dqn", **{"sequence_length": 7, "burn_in": 3, **changes})


def sequences(space: gym.Space, n_step: int = 3, **more: Any) -> SequenceReplay:
    folder: Path | None = more.pop("folder", None)
    storage: Any = "mmap" if folder else "ram"
    return SequenceReplay(
        config_of(storage=storage, **more),
        observation_space=space,
        action_space=ACTIONS,
        num_envs=ENVS,
        n_step=n_step,
        gamma=DISCOUNT,
        workspace=Workspace(folder, 30),
        generator=np.random.default_rng(0),
        state_size=STATE,
    )


def state_at(t: int) -> np.ndarray:
    """Return a made-up recurrent state that differs at every step. [num_envs, state_size]"""
    return np.stack([np.full(STATE, 100 * t + env, np.float32) for env in range(ENVS)])


def fill(memory: SequenceReplay, world: World, naive: NaiveReplay, count: int) -> list[np.ndarray]:
    """Add `count` steps to both replay buffers; return which episodes ended at each step, [num_envs]."""
    over = []
    for observation, action, step in world.steps(count):
        memory.add(observation, action, step, state=state_at(len(naive.seen[0])))
        naive.add(observation, action, step)
        over.append(step.episode_over)
    return over


def assert_as_played(
    sample: SequenceSample, naive: NaiveReplay, over: list[np.ndarray], burn_in: int, learned: int
) -> None:
    """Check each sequence of the sample, with its targets, against what `naive` has stored.

    over: which episodes ended, for each step, [num_envs]; learned: steps of a sequence after the burn-in.
    """
    for i, index in enumerate(sample.index):
        number, env = divmod(int(index), ENVS)
        t = number * learned
        seen = naive.seen[env]
        np.testing.assert_array_equal(sample.state[i], state_at(t)[env])
        begin = sample.burn_in.begin[i]
        before = [seen[t + k].observation for k in range(burn_in)]
        if burn_in:
            np.testing.assert_array_equal(sample.burn_in.observation[begin : begin + burn_in], before)
        for k in range(1, burn_in):
            assert sample.burn_in.start[begin + k] == over[t + k - 1][env]
        assert sample.rows.start[sample.rows.begin[i]] == (burn_in > 0 and over[t + burn_in - 1][env])
        rows = sample.rows[i : i + 1]
        for k in range(learned):
            now, place = t + burn_in + k, i * learned + k
            window = naive.window(now, env)
            at, following = sample.at[i, k], sample.following[i, k]
            np.testing.assert_array_equal(rows.observation[at], seen[now].observation)
            np.testing.assert_array_equal(rows.observation[following], window[-1].next_observation)
            assert not rows.start[at + 1 : following + 1].any(), "a target reaches into another episode"
            if k:
                assert rows.start[at] == over[now - 1][env]
            assert sample.action[place] == seen[now].action
            reward = sum(DISCOUNT**j * row.reward for j, row in enumerate(window))
            assert sample.reward[place] == pytest.approx(reward, rel=1e-5, abs=1e-5)
            discount = 0.0 if window[-1].terminated else DISCOUNT ** len(window)
            assert sample.discount[place] == pytest.approx(discount)


@pytest.mark.parametrize("space", [VECTOR, STACK], ids=["vector", "stack"])
@pytest.mark.parametrize(("burn_in", "n_step"), [(3, 3), (0, 1), (4, 5)])
def test_samples_equal_what_was_played(space: gym.Space, burn_in: int, n_step: int) -> None:
    memory = sequences(space, n_step, burn_in=burn_in, sequence_length=burn_in + 4, capacity=120)
    world, naive = World(space, ENVS, seed=1, ends=0.1, lives=0.1), NaiveReplay(space, ENVS, 120, n_step)
    over: list[np.ndarray] = []
    for count in (burn_in + 4 + n_step, 12, 50, 71):
        over += fill(memory, world, naive, count)
        assert_as_played(memory.sample(4 * 30, 0), naive, over, burn_in, 4)


def test_exactly_the_stored_sequences_with_complete_targets_are_sampled() -> None:
    memory, n_step = sequences(VECTOR, 3, capacity=90), 3
    world, naive = World(VECTOR, ENVS, seed=2), NaiveReplay(VECTOR, ENVS, 90, n_step)
    for _ in range(12):
        fill(memory, world, naive, 7)
        steps = len(naive.seen[0])
        there = [
            number * ENVS + env
            for number in range(steps)
            for env in range(ENVS)
            if number * 4 >= max(steps - 30, 0) and number * 4 + 7 + n_step - 1 <= steps
        ]
        assert len(memory) == len(there)
        if there:
            assert set(memory.sample(4 * 400, 0).index) == set(there)
        else:
            with pytest.raises(ValueError, match="sample"):
                memory.sample(4, 0)


@pytest.mark.parametrize("ends", [0.0, 1.0])
def test_smallest_replay_buffer_holds_a_sequence_for_each_environment(ends: float) -> None:
    n_step = 3
    least = ENVS * config_of().steps_kept(n_step)
    memory = sequences(STACK, n_step, capacity=least)
    world, naive = World(STACK, ENVS, seed=3, ends=ends, jumps=1.0), NaiveReplay(STACK, ENVS, least, n_step)
    fill(memory, world, naive, 7 + n_step - 1)
    for _ in range(40):
        assert len(memory) >= ENVS
        fill(memory, world, naive, 1)


def test_frames_for_is_the_number_of_frames_that_a_minibatch_needs() -> None:
    config = config_of(capacity=900)
    for batch in (4, 12, 16, 40):
        steps = config.frames_for(batch, ENVS, 3) // ENVS
        memory = sequences(VECTOR, 3, capacity=900)
        fill(memory, World(VECTOR, ENVS, seed=3), NaiveReplay(VECTOR, ENVS, 900, 3), steps)
        assert batch // 4 <= len(memory) < batch // 4 + ENVS


@pytest.mark.parametrize("mapped", [False, True], ids=["ram", "mmap"])
def test_restored_replay_buffer_gives_the_same_samples(mapped: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"capacity": 60, **({"folder": tmp_path} if mapped else {})}
    memory, world = sequences(STACK, **options), World(STACK, ENVS, seed=4)
    naive = NaiveReplay(STACK, ENVS, 60, 3)
    over = fill(memory, world, naive, 47)
    state, futures = saved(memory)[0], []
    further = list(world.steps(9))
    for before, action, step in further:
        naive.add(before, action, step)
        over.append(step.episode_over)
    for one in (memory, None):  # the second is restored from the saved state, with the same files
        if one is None:
            one = sequences(STACK, **options)
            one.load_state_dict(state)
        for number, (before, action, step) in enumerate(further):
            one.add(before, action, step, state=state_at(47 + number))
            futures.append(one.sample(40, 0))
    for ours, theirs in zip(futures[:9], futures[9:], strict=True):
        np.testing.assert_array_equal(ours.index, theirs.index)
        np.testing.assert_array_equal(ours.rows.observation, theirs.rows.observation)
    assert_as_played(futures[-1], naive, over, 3, 4)


def test_resume_with_other_sequence_lengths_is_refused() -> None:
    memory = sequences(VECTOR, capacity=90)
    fill(memory, World(VECTOR, ENVS, seed=5), NaiveReplay(VECTOR, ENVS, 90, 3), 20)
    with refused("changed-past", "agent.memory.burn_in", "3"):
        sequences(VECTOR, capacity=90, burn_in=2).load_state_dict(memory.state_dict())
