"""Tests of the columns of training rows about the actions taken: shares, or means and deviations."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from exact_cases import small

import labrl
from labrl.envs.actions import WINDOW, ActionRecord, action_statistics


def shares(space: gym.Space[Any], *steps: Any) -> dict[str, float]:
    """Return the columns after vector steps with these actions."""
    record = ActionRecord(len(steps[0]), space)
    for actions in steps:
        record.append(np.array(actions))
    return action_statistics(record.latest, space)


def test_columns_are_named_by_action_numbers_of_environment() -> None:
    found = shares(gym.spaces.Discrete(3, start=5), [5, 7], [7, 7])
    assert found == {
        "action_share/5": 0.25,
        "action_share/6": 0.0,
        "action_share/7": 0.75,
        "action_top_share": 0.75,
    }


def test_components_of_an_action_are_counted_separately() -> None:
    found = shares(gym.spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 2]], [[1, 2], [1, 0]])
    assert [found[f"action_share/0/{value}"] for value in range(2)] == [0.25, 0.75]
    assert [found[f"action_share/1/{value}"] for value in range(3)] == [0.25, 0.0, 0.75]
    assert found["action_top_share"] == 0.75
    switches = shares(gym.spaces.MultiBinary(2), [[0, 1]], [[1, 1]])
    assert (switches["action_share/0/1"], switches["action_share/1/1"]) == (0.5, 1.0)


def test_only_latest_frames_are_counted() -> None:
    space = gym.spaces.Discrete(2)
    record = ActionRecord(4, space)
    for _ in range(100):
        record.append(np.zeros(4, np.int64))
    assert action_statistics(record.latest, space)["action_share/0"] == 1
    for _ in range(WINDOW // 4):
        record.append(np.ones(4, np.int64))
    assert action_statistics(record.latest, space)["action_share/1"] == 1


def test_large_spaces_have_only_top_share() -> None:
    assert shares(gym.spaces.Discrete(33), [1], [2], [2]) == {"action_top_share": pytest.approx(2 / 3)}


def test_real_valued_actions_have_moments_and_the_share_near_a_bound() -> None:
    space = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1000], np.float32))
    actions = [[[2.0, 500.0], [-1.97, 0.0]], [[0.0, 991.0], [1.0, 985.0]]]
    expected = np.array(actions).reshape(4, 2)
    found = shares(space, *actions)
    assert list(found) == [
        *("action_mean/0", "action_mean/1", "action_std/0", "action_std/1", "action_bound_share")
    ]
    assert list(found.values())[:2] == pytest.approx(expected.mean(0), rel=1e-6)
    assert list(found.values())[2:4] == pytest.approx(expected.std(0), rel=1e-6)
    assert found["action_bound_share"] == 4 / 8


def test_bounds_that_are_infinite_or_equal_are_never_reached() -> None:
    low, high = np.array([-np.inf, 3, 0], np.float32), np.array([np.inf, 3, np.inf], np.float32)
    assert shares(gym.spaces.Box(low, high), [[1e9, 3, 0]], [[0, 3, 1e-6]])["action_bound_share"] == 1 / 4


def test_columns_are_nan_before_first_step() -> None:
    for space, step in (
        (gym.spaces.Discrete(2), [0, 1]),
        (gym.spaces.Box(-1, 1, (2,), np.float32), [[0, 1], [1, 0]]),
    ):
        before = action_statistics(ActionRecord(2, space).latest, space)
        assert list(before) == list(shares(space, step))
        assert all(map(math.isnan, before.values()))


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_training_rows_have_the_columns_for_every_agent(agent: str, tmp_path: Path) -> None:
    overrides = [*small(agent, "cartpole"), "env.max_frame=200", f"hydra.run.dir={tmp_path / 'run'}"]
    run = labrl.train(overrides)
    with (run.folder / "session_0" / "train.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    left, right = float(last["action_share/0"]), float(last["action_share/1"])
    assert left + right == pytest.approx(1)
    assert 0 < left < 1
    assert float(last["action_top_share"]) == max(left, right)
