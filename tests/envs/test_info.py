"""Tests of `env.info_keys`: one number per episode from the infos of its steps, in rows and in searches."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_cases import atari, constant, own_env, play, sampled
from exact_cases import (
    QUIET,
    REPLAY,
    VECTOR,
    differences,
    rows,
)
from info_env import Drive
from rich.console import Console

import labrl
from labrl.analysis.listing import as_table, entries
from labrl.analysis.report.build import build
from labrl.analysis.tables import comparison_rows
from labrl.cli import main
from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.validate import dataclass_of
from labrl.envs.make import info_keys, make_env
from labrl.envs.solo import SoloEnv
from labrl.envs.vector import VectorEnv
from labrl.experiment.search.objective import Objective
from labrl.run.folder import read_json
from labrl.run.run import Run
from labrl.run.tables import CsvTable
from labrl.session.episodes import EpisodeWindow
from labrl.step import Episode
from labrl.trial.summary import print_summary

pytestmark = pytest.mark.usefixtures("own_folder")

KEYS = {"speed": "mean", "cost.fuel": "sum", "steps": "max", "late": "sum", "success": "last", "a.b": "min"}
FAULTY = {"lane": "last", "far": "sum", "brakes": "mean", "speed": "mean"}
DRIVE = ["env=gymnasium", "env.id=null", "env.name=drive", "+env.make._target_=info_env.Drive"]
DRIVE += [*QUIET, *VECTOR, "env.num_envs=4"]
PPO = [*DRIVE, "agent.horizon=16", "agent.batch_size=32", "agent.epochs=2"]
PPO += ["agent.network.torso.mlp.hidden=[8]"]
INFO = "env.info_keys={speed: mean, cost.fuel: sum, success: last}"


def made(kind: str, keys: Any) -> Component:
    """Return the configuration of the environment `Drive` in one of its forms."""
    if kind == "backend":
        node = {"name": "drive", "num_envs": 3, "max_frame": 100, "info_keys": keys}
        return dataclass_of(Component, {"_target_": "info_env.DriveBackend", **node}, "env")
    return own_env(Drive, vectorization=kind, info_keys=keys)


def episodes_of(env: VectorEnv, steps: int = 60) -> list[Episode]:
    env.reset()
    return [episode for step in play(env, sampled(env, 1), steps) for episode in step.episodes]


KINDS = ("sync", "async", "backend")


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_an_episode_is_the_last_sum_mean_or_extreme_of_its_steps(kind: str) -> None:
    env = make_env(made(kind, KEYS), seed=3, num_threads=2, num_envs=3)
    env.reset()
    policy, alone, count = sampled(env, 1), Drive(), 0
    for number in range(60):
        for episode in env.step(policy(number)).episodes:
            actions, _ = env.played(episode)
            alone.reset(seed=episode.seed)
            infos = [alone.step(action)[-1] for action in actions]
            speeds, fuel = [info["speed"] for info in infos], [float(info["cost"]["fuel"]) for info in infos]
            expected = {"speed": sum(speeds) / len(infos), "cost.fuel": sum(fuel), "steps": len(infos)}
            expected |= {"late": sum(info["late"] for info in infos), "success": infos[-1]["success"]}
            assert episode.info == {**expected, "a.b": 2.5}
            count += 1
    env.close()
    assert count > 10


@pytest.mark.parametrize("kind", ["sync", "backend"])
def test_single_environment_returns_the_whole_info(kind: str) -> None:
    """A loop over `labrl.load(run).env()` failed at info["success"]."""
    env, alone = SoloEnv(made(kind, None)), Drive()
    _, info = env.reset(seed=3)
    _, expected = alone.reset(seed=3)
    assert info == ({} if kind == "backend" else expected)
    over, count = False, 0
    while not over:
        _, _, over, _, info = env.step(0)
        expected = alone.step(0)[-1]
        assert {name: info[name] for name in expected} == expected
        count += 1
    env.close()
    assert count > 2
    assert "success" in info


class Quiet(Drive):
    """A drive without success, or with success under the name of Stable-Baselines3."""

    def __init__(self, entry: str | None = None) -> None:
        super().__init__()
        self.entry = entry

    def _info(self, over: bool) -> dict[str, Any]:
        return {} if self.entry is None else {self.entry: np.bool_(self.steps > 4)}


@pytest.mark.parametrize("entry", [None, "success", "is_success"])
def test_success_is_recorded_by_itself(entry: str | None, caplog: pytest.LogCaptureFixture) -> None:
    config = own_env(Quiet, {"entry": entry}, info_keys="auto")
    env = make_env(config, seed=3, num_threads=2, num_envs=3)
    with caplog.at_level(logging.WARNING):
        episodes = episodes_of(env)
    env.close()
    assert not caplog.records
    assert len({episode.length > 4 for episode in episodes}) == 2
    for episode in episodes:
        assert episode.info == ({} if entry is None else {"success": float(episode.length > 4)})
    window = EpisodeWindow(len(episodes), info_keys(config))
    assert "info/success" not in window.statistics()
    window.latest.extend(episodes)
    rate = np.mean([episode.length > 4 for episode in episodes])
    assert window.statistics().get("info/success") == (None if entry is None else pytest.approx(rate))


@pytest.mark.parametrize("off", [False, True])
def test_column_of_success_exists_by_itself_and_can_be_switched_off(off: bool) -> None:
    overrides = [*PPO, *(["env.info_keys=null"] if off else [])]
    assert labrl.train([*overrides, "env.max_frame=256", "hydra.run.dir=whole"]).exit_code == 0
    (session,) = Run.open(Path("whole")).sessions
    assert ("info/success" in session.train) != off
    assert list(labrl.load("whole").evaluate(episodes=4).info) == ([] if off else ["success"])
    assert labrl.train([*overrides, "env.max_frame=128", "hydra.run.dir=half"]).exit_code == 0
    assert labrl.train(["+resume=half", "env.max_frame=256"]).exit_code == 0
    assert not differences(Path("half"), Path("whole"))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_non_numeric_values_are_warned_of_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(made(kind, FAULTY), seed=3, num_threads=2, num_envs=3)
    with caplog.at_level(logging.WARNING):
        episodes = episodes_of(env)
    env.close()
    for name in ("lane", "far", "brakes"):
        assert all(np.isnan(episode.info[name]) for episode in episodes)
        assert len([one for one in caplog.records if repr(name) in one.getMessage()]) == 1
    assert all(np.isfinite(episode.info["speed"]) for episode in episodes)
    assert len(caplog.records) == 3


def test_list_means_last_and_nested_groups_are_joined_by_dots() -> None:
    for given, expected in {
        "[success,a.b]": {"success": "last", "a.b": "last"},
        "{cost: {fuel: sum}, speed: mean}": {"cost.fuel": "sum", "speed": "mean"},
        "null": None,
        "{}": {},
        "auto": {"success": "auto"},
    }.items():
        assert resolve(compose([f"env.info_keys={given}"])).env.config.info_keys == expected


@pytest.mark.parametrize("num_threads", [1, 16])
def test_numbers_of_the_emulator_are_recorded(num_threads: int) -> None:
    keys = {"lives": "max", "episode_frame_number": "last"}
    env = make_env(atari("breakout", num_envs=2, max_episode_frames=60, info_keys=keys), 1, num_threads)
    env.reset()
    found = [e for step in play(env, constant(0, 0), 30) for e in step.episodes]
    env.close()
    assert found
    assert all(episode.info["lives"] == 5 for episode in found)
    assert all(60 <= episode.info["episode_frame_number"] < 100 for episode in found)


def test_numbers_added_in_a_resume_count_from_the_start_of_the_unfinished_episodes() -> None:
    before, now = (make_env(made("sync", keys), 5, 1, num_envs=4) for keys in (None, {"speed": "max"}))
    whole = make_env(made("sync", {"speed": "max"}), 5, 1, num_envs=4)
    for env in (before, whole):
        env.reset()
        play(env, sampled(env, 2), 23)
    now.load_state_dict(before.state_dict())
    left, right = (play(env, sampled(env, 2), 40, first=23) for env in (whole, now))
    assert [step.episodes for step in left] == [step.episodes for step in right]


def test_window_averages_the_episodes_that_have_a_number_and_is_restored() -> None:
    window = EpisodeWindow(3, {"success": "last", "cost": "last"})
    assert np.isnan(window.statistics()["info/success"])
    for number, success in enumerate([1.0, 0.0, np.nan, 1.0]):
        window.latest.append(Episode(0, number, 0, 1.0, 1, False, {"success": success, "cost": np.nan}))
    assert window.statistics()["info/success"] == 0.5
    assert np.isnan(window.statistics()["info/cost"])
    same, other = EpisodeWindow(3, {"success": "last", "cost": "last"}), EpisodeWindow(3, {"more": "last"})
    for restored in (same, other):
        restored.load_state_dict(window.state_dict())
    np.testing.assert_equal(same.statistics(), window.statistics())
    assert np.isnan(other.statistics()["info/more"])


@pytest.mark.extended
def test_processes_that_act_and_evaluate_return_the_numbers() -> None:
    beside = ["meta.rigorous_eval=2", "meta.async_eval=true"]
    assert main([*PPO, INFO, *beside, "hydra.run.dir=beside"]) == 0
    assert main([*PPO, INFO, beside[0], "hydra.run.dir=inside"]) == 0
    assert rows(Path("beside/session_0/eval.csv")) == rows(Path("inside/session_0/eval.csv"))
    ahead = [*DRIVE, *REPLAY, INFO, "agent=dqn", "meta/async_unroll=on", "env.max_frame=600"]
    assert main([*ahead, "hydra.run.dir=ahead"]) == 0
    assert all(float(row["info/cost.fuel"]) > 0 for row in rows(Path("ahead/session_0/train.csv")))


def test_objective_of_a_search_may_be_a_number(tmp_path: Path) -> None:
    for frame, success in ((10, None), (20, 0.2), (90, 0.5), (100, 0.7)):
        path = tmp_path / "session_0"
        path.mkdir(exist_ok=True)
        row = {"frame": frame, "return_mean": 1.0, "wall": 1.0, "info/success": success}
        CsvTable(path / "eval.csv").append(row)
    assert Objective("info/success").value(tmp_path) == 0.7
    assert Objective("info/success").reports(tmp_path, 100) == {20: 0.2, 90: 0.5, 100: 0.7}


def test_results_of_a_run_contain_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["hydra.run.dir=run", "meta.rigorous_eval=2", "meta.eval_frequency=100"]
    result = labrl.train([*PPO, INFO, *told, "meta.max_session=2"], config_dir=None)
    print_summary(result, Console(width=200))
    table, meant = capsys.readouterr().out, {}
    run = Run.open(Path("run"))
    for session in run.sessions:
        found = [row for row in session.read_rows("eval") if row["frame"] > 0.9 * 2400]
        meant[session.index] = np.mean([row["info/success"] for row in found])
        assert session.read_result()["info"]["success"] == pytest.approx(meant[session.index])
        assert list(session.read_result()["info"]) == ["speed", "cost.fuel", "success"]
    assert "info/success of 2 sessions: " in table
    assert repr(result).count("info/cost.fuel") == 2
    mean = pytest.approx(np.mean(list(meant.values())))
    assert main(["+enjoy=run", "episodes=3", "videos=0"]) == 0
    assert capsys.readouterr().out.count("info/success") == 4
    played = read_json(next(Path("run/enjoy").glob("*/result.json")))
    every = [episode["info"]["success"] for episode in played["episodes"]]
    assert played["info/success"] == pytest.approx(np.mean(every))
    (entry,) = entries(Path("run").absolute().parent)
    assert entry["info"]["info/success"] == mean
    assert "info/success" in as_table([entry]).splitlines()[0]
    built = build(Path("run"))
    assert "info/success: " in built.verdict
    assert comparison_rows(built.statistics)["info/success"][0] == mean
    assert read_json(Path("run/statistics.json"))["measures"]["info/success"]["mean"] == mean
