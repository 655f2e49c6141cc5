"""Tests of the return of the random policy: known for many environments, otherwise played and recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_cases import gymnasium_node, own_env
from gymnasium.spaces import Box, Discrete
from masked_env import Doors
from numpy.typing import NDArray
from run_cases import config_with, rising, write_run

from labrl.analysis import baselines
from labrl.analysis.baselines import Baseline, random_baseline
from labrl.analysis.statistics import group_statistics
from labrl.component import Component
from labrl.config import config_folder
from labrl.config.compose import compose, to_plain
from labrl.config.validate import dataclass_of
from labrl.envs.make import make_env
from labrl.envs.protocol import Backend, Transition
from labrl.envs.vector import VectorEnv
from labrl.run.run import Run
from labrl.trial.reporting import EPISODES, play_at_random, random_return, record_random_return

KNOWN = gymnasium_node(id="CartPole-v1", name="cartpole", num_envs=4)
UNKNOWN = {**KNOWN, "max_episode_steps": 15}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def component(env: dict[str, Any]) -> Component:
    found: Component = dataclass_of(Component, env, "env")
    return found


class Counting(Backend):
    """A backend whose environment i ends an episode every i + 1 steps and pays 1 for each step."""

    name, num_envs, frame_skip = "counting", 3, 1
    observation_space, action_space = Box(-1, 1, ()), Discrete(2)

    def __init__(self) -> None:
        self.steps = np.zeros(3)

    def reset(self, mask: NDArray, seeds: NDArray) -> NDArray:
        self.steps = np.where(mask, 0, self.steps)
        return np.zeros(3)

    def step(self, actions: NDArray) -> Transition:
        self.steps = self.steps + 1
        ended = self.steps >= [1, 2, 3]
        return Transition(np.zeros(3), np.ones(3), ended, np.zeros(3, bool), ended)

    def close(self) -> None:
        pass


def test_each_environment_plays_equally_many_episodes() -> None:
    returns = play_at_random(VectorEnv(Counting(), seed=0), seconds=60)
    each = EPISODES // 3
    assert returns == [1] * each + [2] * each + [3] * each


def test_random_policy_takes_valid_actions_only() -> None:
    env = make_env(own_env(Doors), seed=0, num_threads=1, num_envs=5)
    try:
        assert len(play_at_random(env, seconds=60)) == EPISODES
    finally:
        env.close()


def test_table_has_every_environment_of_the_configuration_that_is_no_game() -> None:
    names = sorted(path.stem for path in (config_folder() / "env").glob("*.yaml"))
    own = [name for name in names if name not in ("gymnasium", "mujoco", "atari")]
    missing = [name for name in own if random_baseline(to_plain(compose([f"env={name}"]))["env"]) is None]
    assert not missing


def test_known_return_is_that_of_random_play_and_is_not_measured_again(cache: Path) -> None:
    known = random_return(KNOWN, component(KNOWN))
    assert known is not None
    assert known.source == "table"
    assert not (cache / "random").exists()
    env = make_env(component(KNOWN), seed=0, num_threads=1)
    try:
        returns = play_at_random(env, seconds=60)
    finally:
        env.close()
    assert known.std is not None
    assert abs(np.mean(returns) - known.mean) < 5 * known.std / len(returns) ** 0.5


def test_measured_return_is_recorded_in_the_run_and_used_by_others(tmp_path: Path, cache: Path) -> None:
    run = Run.open(write_run(tmp_path / "a", [rising(10)], config=config_with(env=UNKNOWN)))
    record_random_return(run, component(UNKNOWN))
    (path,) = (cache / "random").iterdir()
    facts = json.loads(path.read_text())
    assert facts["episodes"] == EPISODES
    assert 9 < facts["mean"] <= 15
    measured = Baseline(facts["mean"], facts["std"], EPISODES, "measured")
    other = {**UNKNOWN, "name": "my_pole", "num_envs": 64, "max_frame": 7}
    assert random_return(other, component(other)) == measured
    path.unlink()
    assert group_statistics([Run.open(run.path)])["baseline"] == vars(measured)


def test_damaged_file_counts_as_no_baseline() -> None:
    path = baselines.baseline_path(UNKNOWN)
    path.parent.mkdir(parents=True)
    for content in ("", "[]", "{}", '{"mean": null, "std": 1, "episodes": 3}'):
        path.write_text(content)
        assert random_baseline(UNKNOWN) is None
    assert random_baseline(UNKNOWN, [{}, {"random_return": 3}]) is None


def test_published_scores_are_used_for_games(cache: Path) -> None:
    assert random_baseline({"game": "pong"}) == Baseline(-20.7, None, None, "published")
    assert baselines.human_range({"game": "pong"}) == (-20.7, 14.6)
    assert random_baseline({"game": "air_raid"}) is None
    assert baselines.threshold_of({"game": "pong"}) == baselines.Threshold(14.6, "human")
    assert baselines.threshold_of({"id": "CartPole-v1"}) == baselines.Threshold(475.0, "gymnasium")
    assert baselines.threshold_of({"id": "Pendulum-v1"}) is None


def test_no_return_when_playing_is_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(VectorEnv, "reset", lambda self: 1 / 0)
        assert random_return(UNKNOWN, component(UNKNOWN)) is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "file"))
    assert random_return(UNKNOWN, component(UNKNOWN)) is None
