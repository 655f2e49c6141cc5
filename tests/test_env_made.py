"""Environments are made as often as they are needed: making one may take seconds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_cases import Remembers, own_env
from exact_cases import QUIET
from goal_env import BitFlip
from pictures_env import Drawn

import labrl
from labrl.cli import main
from labrl.envs.make import describe, gives_masks, goals_of, make_env
from labrl.envs.sample import drop_spares, kept_for_the_run
from labrl.errors import DONE
from labrl.trial.baseline import ensure_baseline

NUM_ENVS = 3


def note(log: str, what: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{what} {os.getpid()}\n")


class Counted(Drawn):
    """Notes in a file that it was made, and that it was closed."""

    def __init__(self, log: str, masked: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._log, self._masked = log, masked
        note(log, "made")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], self._info()

    def step(self, action: np.int64) -> Any:
        return *super().step(action)[:4], self._info()

    def close(self) -> None:
        note(self._log, "closed")

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.ones(2, np.int8)} if self._masked else {}


class CountedRemembers(Remembers):
    def __init__(self, log: str) -> None:
        super().__init__()
        note(log, "made")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def count(log: Path, what: str) -> int:
    return sum(line.startswith(what) for line in log.read_text().splitlines())


def overrides(log: Path, folder: Path, *more: str) -> list[str]:
    return [
        *(override for override in QUIET if not override.startswith("meta.videos")),
        *("env=gymnasium", "env.id=null", "env.name=counted", "+env.make._target_=test_env_made.Counted"),
        *(f"+env.make.log={log}", f"env.num_envs={NUM_ENVS}", "env.max_frame=600", "agent=ppo"),
        *("agent.horizon=100", "agent.batch_size=300", "meta.eval_frequency=300"),
        *(f"hydra.run.dir={folder}", *more),
    ]


@pytest.mark.uses_videos
@pytest.mark.parametrize("masked", [False, True])
def test_a_trial_makes_one_more_for_its_videos(masked: bool, log: Path, tmp_path: Path) -> None:
    run = labrl.train(overrides(log, tmp_path / "run", f"+env.make.masked={str(masked).lower()}")).folder
    assert len(list((run / "session_0" / "videos").iterdir())) == 2
    assert count(log, "made") == NUM_ENVS + 1
    assert count(log, "closed") == NUM_ENVS + 1


def test_a_resume_makes_no_more(log: Path, tmp_path: Path) -> None:
    run = labrl.train(overrides(log, tmp_path / "run", "meta.videos=false")).folder
    labrl.train([f"+resume={run}", "env.max_frame=900"])
    assert count(log, "made") == count(log, "closed") == 2 * NUM_ENVS


def test_sessions_in_processes_make_their_own_when_the_first_is_closed(log: Path, tmp_path: Path) -> None:
    labrl.train(overrides(log, tmp_path / "run", "meta.videos=false", "meta.max_session=2"))
    lines = log.read_text().splitlines()
    assert lines[:2] == [f"made {os.getpid()}", f"closed {os.getpid()}"]
    assert count(log, "made") == count(log, "closed") == 2 * NUM_ENVS + 1


def test_several_episodes_are_shown_in_one(log: Path, tmp_path: Path) -> None:
    run = labrl.train(overrides(log, tmp_path / "run", "meta.videos=false")).folder
    before = count(log, "made")
    assert main([f"+enjoy={run}", "episodes=3", "videos=3"]) == DONE
    assert len(list(run.rglob("*.mp4"))) == 3
    assert count(log, "made") == before + 3 + 1  # three that play, and one that draws


def test_a_measurement_of_the_random_policy_makes_one_where_that_takes_long(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("labrl.trial.baseline.SLOWLY_MADE", 0.0)
    run = labrl.train(overrides(log, tmp_path / "run", "meta.videos=false")).folder
    before = count(log, "made")
    assert ensure_baseline(run, 2.0) is not None
    assert count(log, "made") == before + 1


def test_what_is_known_of_an_environment_is_not_asked_again(log: Path) -> None:
    env = own_env(Counted, {"log": str(log), "masked": True})
    assert gives_masks(env)
    describe(env)
    assert gives_masks(env)
    assert count(log, "made") == count(log, "closed") == 1
    for _ in range(2):
        make_env(env, seed=0, num_threads=1, num_envs=NUM_ENVS).close()
    assert count(log, "made") == count(log, "closed") == 1 + 2 * NUM_ENVS


def test_a_spare_environment_is_closed_where_no_session_takes_it(log: Path) -> None:
    with kept_for_the_run():
        describe(own_env(Counted, {"log": str(log)}))
        assert count(log, "closed") == 0
        drop_spares()
        assert count(log, "closed") == 1
    with kept_for_the_run():
        describe(own_env(Counted, {"log": str(log), "masked": True}))
    assert count(log, "made") == count(log, "closed") == 2


def test_one_that_has_played_is_not_taken_where_it_plays_otherwise_then(log: Path) -> None:
    component = own_env(CountedRemembers, {"log": str(log)}, fresh_env_per_episode=False)
    env = make_env(component, seed=0, num_threads=1, num_envs=2)
    assert env.reset()[:, 0].tolist() == [0, 0]
    assert count(log, "made") == 3


class CountedBits(BitFlip):
    def __init__(self, log: str) -> None:
        super().__init__()
        note(log, "made")


def test_goals_are_asked_of_the_environment_that_is_looked_at(log: Path) -> None:
    component = own_env(CountedBits, {"log": str(log)})
    with kept_for_the_run():
        goals = goals_of(component, describe(component)[0])
        assert goals is not None
        goals.check()
        make_env(component, seed=0, num_threads=1, num_envs=2).close()
    assert count(log, "made") == 2
