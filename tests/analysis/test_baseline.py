"""Tests of the baseline: the random policy is measured once per environment and cached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from env_cases import gymnasium_node, own_env
from gymnasium.spaces import Box, Discrete
from masked_env import Doors
from numpy.typing import NDArray
from run_cases import CONFIG, config_with, rising, write_run

from labrl.analysis import baselines
from labrl.envs.make import make_env
from labrl.envs.protocol import Backend, Transition
from labrl.envs.vector import VectorEnv
from labrl.run.signature import cache_folder
from labrl.trial.baseline import ensure_baseline, main, play_at_random

ENV = gymnasium_node(id="CartPole-v1", name="cartpole", num_envs=4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cartpole_run(path: Path, **changes: object) -> Path:
    config = config_with(
        env={**ENV, "max_frame": 1000},
        agent={"_target_": "labrl.agents.random.RandomAgent"},
        meta={"max_session": 1},
        **changes,
    )
    return write_run(path, [rising(10)], config=config)


@pytest.mark.extended
def test_report_does_not_import_torch_when_baseline_is_cached(tmp_path: Path) -> None:
    run = cartpole_run(tmp_path / "run")
    assert ensure_baseline(run, seconds=60) is not None
    program = (
        "import sys\n"
        "from labrl.trial.reporting import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(run)], check=True, capture_output=True)


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
    returns = play_at_random(VectorEnv(Counting(), seed=0), seconds=60, episodes=6)
    assert returns == [1, 1, 2, 2, 3, 3]


def test_no_return_is_measured_when_no_episode_ends_in_time() -> None:
    assert play_at_random(VectorEnv(Counting(), seed=0), seconds=0) == []


def test_measured_baseline_is_used_by_other_runs(tmp_path: Path, cache: Path) -> None:
    path = ensure_baseline(cartpole_run(tmp_path / "a"), seconds=60)
    assert path is not None
    assert path.parent == cache / "random"
    facts = json.loads(path.read_text())
    assert facts["episodes"] == len(facts["returns"]) == 100
    assert 18 < facts["mean"] < 27, "this is not the mean return of a random policy in CartPole"
    path.write_text(json.dumps({**facts, "mean": 3.5}))
    assert ensure_baseline(cartpole_run(tmp_path / "b"), seconds=60) == path
    other = {**ENV, "name": "my_pole", "num_envs": 64, "max_frame": 7}
    assert baselines.random_baseline(other) == baselines.Baseline(3.5, facts["std"], 100, "measured")


def test_measurement_is_reproducible(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cartpole_run(tmp_path / "a")
    first = ensure_baseline(run, seconds=60)
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "other"))
    second = ensure_baseline(run, seconds=60)
    assert first is not None
    assert second is not None
    assert json.loads(first.read_text())["returns"] == json.loads(second.read_text())["returns"]


def test_baseline_file_depends_only_on_keys_that_change_the_return() -> None:
    same = baselines.baseline_path(ENV)
    assert baselines.baseline_path({**ENV, "max_frame": 5, "num_envs": 1, "vectorization": "async"}) == same
    assert baselines.baseline_path({**ENV, "max_episode_steps": 10}) != same


def test_cache_folder_follows_environment_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("LABRL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/labrl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "labrl"


def test_damaged_file_counts_as_no_baseline(tmp_path: Path) -> None:
    path = baselines.baseline_path(ENV)
    path.parent.mkdir(parents=True)
    for content in ("", "[]", "{}", '{"mean": null, "std": 1, "episodes": 3}'):
        path.write_text(content)
        assert baselines.random_baseline(ENV) is None


def test_published_scores_are_used_for_unmeasured_games() -> None:
    assert baselines.random_baseline({"game": "pong"}) == baselines.Baseline(-20.7, None, None, "published")
    assert baselines.human_range({"game": "pong"}) == (-20.7, 14.6)
    assert baselines.random_baseline({"game": "air_raid"}) is None
    assert baselines.threshold_of({"game": "pong"}) == baselines.Threshold(14.6, "human")
    assert baselines.threshold_of({"id": "CartPole-v1"}) == baselines.Threshold(475.0, "gymnasium")
    assert baselines.threshold_of({"id": "Pendulum-v1"}) is None


def test_game_with_a_published_score_is_not_measured(tmp_path: Path, cache: Path) -> None:
    game = config_with(env__game="pong", env__name="pong", env___target_="labrl.envs.atari.AtariEnv")
    assert ensure_baseline(write_run(tmp_path / "a", [rising(1)], config=game)) is None
    assert not cache.exists()


def test_no_baseline_when_measuring_is_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ensure_baseline(tmp_path / "nowhere") is None
    gone = {**CONFIG["env"], "_target_": "gone.Env"}
    assert ensure_baseline(write_run(tmp_path / "a", [], config=config_with(env=gone))) is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "file"))
    assert ensure_baseline(cartpole_run(tmp_path / "b"), seconds=60) is None


def test_baseline_command_measures_and_prints_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cartpole_run(tmp_path / "a")
    assert main([str(run), "--seconds", "60"]) == 0
    assert Path(capsys.readouterr().out.strip()).exists()
    assert main([str(tmp_path)]) == 1


def test_random_policy_takes_valid_actions_only() -> None:
    env = make_env(own_env(Doors), seed=0, num_threads=1, num_envs=3)
    try:
        assert len(play_at_random(env, seconds=60, episodes=9)) == 9
    finally:
        env.close()


def test_no_baseline_when_the_environment_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> list[float]:
        raise AssertionError("no such move")

    monkeypatch.setattr("labrl.trial.baseline.play_at_random", fails)
    assert ensure_baseline(cartpole_run(tmp_path / "run"), seconds=60) is None
