"""Tests of rollouts: stored steps come back in order, in minibatches, with generalized advantages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from labrl.memory import Minibatch
from labrl.memory.rollout import Episodes, Rollout, generalized_advantages
from labrl.step import Step

ENVS, HORIZON, STATE = 3, 12, 2


def make_rollout(length: int = 1) -> Rollout:
    """Make a rollout of sequences with recurrent states, or of single rows without states if length is 1."""
    state_size = STATE if length > 1 else 0
    return Rollout(HORIZON, ENVS, sequence_length=length, state_size=state_size)


def play(rollout: Rollout, steps: int, seed: int = 0, begin: int = 0) -> list[dict[str, Any]]:
    """Add random steps, some of them truncated, starting at step `begin`; return what was stored."""
    stored = []
    for t in range(begin, begin + steps):
        rng = np.random.default_rng((seed, t))
        observation, final = rng.normal(size=(2, ENVS, 4)).astype(np.float32)
        truncated, terminated = rng.random((2, ENVS)) < 0.2
        size = STATE if rollout.sequence_length > 1 else 0
        state, after = rng.normal(size=(2, ENVS, size)).astype(np.float32)
        row = {
            "observation": observation,
            "action": rng.integers(0, 5, ENVS),
            "parameters": rng.normal(size=(ENVS, 5)).astype(np.float32),
            "value": rng.normal(size=ENVS).astype(np.float32),
            "mask": rng.random((ENVS, 5)) < 0.5,
        }
        rollout.add_action(*row.values(), state)
        over = terminated | truncated
        step = Step(observation, final, row["value"], terminated, truncated, over, next_mask=row["mask"])
        rollout.add_result(step, state=after)
        cut = truncated & ~terminated
        stored.append({**row, "state": state, "over": over, "cut": final[cut], "cut_state": after[cut]})
    return stored


def batch_of(rollout: Rollout) -> Minibatch:
    """Return the whole rollout as one minibatch, with random advantages."""
    count = len(rollout.rows("action"))
    rng = np.random.default_rng(1)
    return rollout.batch(rng.normal(size=count).astype(np.float32), torch.arange(count).float())


@pytest.mark.parametrize("length", [1, 4])
def test_batch_contains_the_stored_steps_ordered_by_sequence(length: int) -> None:
    rollout = make_rollout(length)
    stored = play(rollout, HORIZON)
    assert rollout.full
    batch = batch_of(rollout)
    assert len(batch) == HORIZON * ENVS // length
    order = [
        (s * length + k, env) for s in range(HORIZON // length) for env in range(ENVS) for k in range(length)
    ]
    for name in ("observation", "action", "value", "mask"):
        expected = np.array([stored[t][name][env] for t, env in order])
        np.testing.assert_array_equal(getattr(batch, name).numpy(), expected)
    torch.testing.assert_close(batch.value_target, batch.advantage + batch.value)
    begins = order[::length]
    np.testing.assert_array_equal(batch.state, np.array([stored[t]["state"][env] for t, env in begins]))
    for (t, env), start in zip(begins, batch.start, strict=True):
        assert start.tolist() == [False, *(bool(stored[t + k]["over"][env]) for k in range(length - 1))]


@pytest.mark.parametrize("length", [1, 4])
def test_epoch_uses_every_row_once_in_the_given_order(length: int) -> None:
    rollout = make_rollout(length)
    play(rollout, HORIZON)
    values = np.random.default_rng(0).normal(size=HORIZON * ENVS).astype(np.float32)
    rollout.set_values(values)
    batch = batch_of(rollout)
    np.testing.assert_array_equal(batch.value, values)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    rows = (order[:, None] * length + torch.arange(length)).flatten()
    parts = list(batch.minibatches(order, 12))
    assert [len(part) for part in parts] == [12 // length] * 3
    parts = [half for part in parts for half in (part[: len(part) // 3], part[len(part) // 3 :])]
    for name in ("observation", "action", "advantage", "value_target", "value", "log_prob", "mask"):
        torch.testing.assert_close(
            torch.cat([getattr(part, name) for part in parts]), getattr(batch, name)[rows]
        )
    torch.testing.assert_close(torch.cat([part.state for part in parts]), batch.state[order])
    np.testing.assert_array_equal(np.concatenate([part.start for part in parts]), batch.start[order])
    for part in batch.minibatches(order, 12, lambda rows: torch.std_mean(rows, 1, keepdim=True)):
        assert float(part.advantage.mean()) == pytest.approx(0, abs=1e-5)
        assert float(part.advantage.std()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("length", [1, 4])
def test_observations_beyond_the_rows_are_the_last_and_the_truncated_ones(length: int) -> None:
    rollout = make_rollout(length)
    stored = play(rollout, HORIZON)
    last, state = np.ones((ENVS, 4), np.float32), np.ones((ENVS, STATE if length > 1 else 0), np.float32)
    observation, states = rollout.bootstrap_states(last, state)
    np.testing.assert_array_equal(observation, np.concatenate([last, *(row["cut"] for row in stored)]))
    np.testing.assert_array_equal(states, np.concatenate([state, *(row["cut_state"] for row in stored)]))
    assert rollout.advantages(np.zeros(len(observation), np.float32), 0.9, 0.8).shape == (HORIZON * ENVS,)


@pytest.mark.parametrize("kind", ["rows", "sequences", "episodes"])
@pytest.mark.parametrize("before", [0, 3, 8])
def test_restored_rollout_equals_the_saved_one(kind: str, before: int) -> None:
    def new() -> Rollout:
        if kind == "episodes":
            return Episodes(4, ENVS)
        return make_rollout(4) if kind == "sequences" else make_rollout()

    one, other = new(), new()
    play(one, before)
    other.load_state_dict(one.state_dict())
    for rollout in (one, other):
        play(rollout, HORIZON - before, begin=before)
        assert rollout.full
    left, right = batch_of(one), batch_of(other)
    for name in ("observation", "action", "value", "mask", "state"):
        assert torch.equal(getattr(left, name), getattr(right, name))
    last = np.ones((ENVS, 4), np.float32), np.ones((ENVS, STATE if kind == "sequences" else 0), np.float32)
    beyond = one.bootstrap_states(*last)[0]
    np.testing.assert_array_equal(beyond, other.bootstrap_states(*last)[0])
    value = np.arange(len(beyond), dtype=np.float32)
    np.testing.assert_array_equal(one.advantages(value, 0.9, 0.8), other.advantages(value, 0.9, 0.8))
    for rollout in (one, other):
        rollout.clear()
        assert not rollout.full


def test_advantages_equal_a_loop_over_the_steps_of_each_environment() -> None:
    rng = np.random.default_rng(0)
    reward, value, following = (rng.normal(size=(20, 4)).astype(np.float32) for _ in range(3))
    terminated, over = rng.random((20, 4)) < 0.1, rng.random((20, 4)) < 0.2
    found = generalized_advantages(reward, value, following, terminated, over, 0.9, 0.8)
    for env in range(4):
        later = 0.0
        for t in reversed(range(20)):
            bootstrap = 0.0 if terminated[t, env] else 0.9 * following[t, env]
            continues = not (terminated[t, env] or over[t, env])
            later = reward[t, env] + bootstrap - value[t, env] + 0.9 * 0.8 * later * continues
            assert found[t, env] == pytest.approx(later, abs=1e-5)
