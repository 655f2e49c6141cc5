"""Tests of how often environments are created: no more than needed, because one may take seconds."""

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
from labrl.errors import DONE

NUM_ENVS = 3
COMPARED = 2
"""Number of environments that are compared before a run, if they repeat episodes."""


def note(log: str, event: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{event} {os.getpid()}\n")


class Counted(Drawn):
    """Environment that writes to a log when it is created and when it is closed."""

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


def count(log: Path, event: str) -> int:
    """Return how often an event ("made" or "closed") is in the log."""
    return sum(line.startswith(event) for line in log.read_text().splitlines())


def overrides(log: Path, folder: Path, *more: str) -> list[str]:
    return [
        *(override for override in QUIET if not override.startswith("meta.videos")),
        *("env=gymnasium", "env.id=null", "env.name=counted", "+env.make._target_=test_env_made.Counted"),
        *(f"+env.make.log={log}", f"env.num_envs={NUM_ENVS}", "env.max_frame=600", "agent=ppo"),
        *("agent.horizon=100", "agent.batch_size=300", "meta.eval_frequency=300"),
        *(f"hydra.run.dir={folder}", "env.check=false", *more),
    ]


@pytest.mark.extended
@pytest.mark.uses_videos
@pytest.mark.parametrize("masked", [False, True])
def test_without_check_one_environment_exists_besides_those_of_the_run(
    masked: bool, log: Path, tmp_path: Path
) -> None:
    labrl.train(overrides(log, tmp_path / "run", f"+env.make.masked={str(masked).lower()}"))
    events = [line.partition(" ")[0] for line in log.read_text().splitlines()]
    assert events == ["made", "closed", *["made"] * NUM_ENVS, *["closed"] * NUM_ENVS, "made", "closed"]


@pytest.mark.extended
def test_checked_trial_compares_two_environments_and_closes_them(log: Path, tmp_path: Path) -> None:
    labrl.train(overrides(log, tmp_path / "run", "meta.videos=false", "env.check=true"))
    events = [line.partition(" ")[0] for line in log.read_text().splitlines()]
    assert events[: 2 * COMPARED] == [*["made"] * COMPARED, *["closed"] * COMPARED]
    assert count(log, "made") == count(log, "closed") > COMPARED + NUM_ENVS  # some repeat an episode


@pytest.mark.extended
def test_resume_creates_no_extra_environments(log: Path, tmp_path: Path) -> None:
    run = labrl.train(overrides(log, tmp_path / "run", "meta.videos=false")).folder
    before = count(log, "made")
    labrl.train([f"+resume={run}", "env.max_frame=900"])
    assert count(log, "made") == count(log, "closed") == before + NUM_ENVS


def test_session_processes_create_theirs_after_the_first_is_closed(log: Path, tmp_path: Path) -> None:
    labrl.train(overrides(log, tmp_path / "run", "meta.videos=false", "meta.max_session=2"))
    lines = log.read_text().splitlines()
    assert lines[:2] == [f"made {os.getpid()}", f"closed {os.getpid()}"]
    assert count(log, "made") == count(log, "closed") == 1 + 2 * (1 + NUM_ENVS)


@pytest.mark.extended
def test_all_videos_of_enjoy_are_rendered_by_one_environment(log: Path, tmp_path: Path) -> None:
    run = labrl.train(overrides(log, tmp_path / "run", "meta.videos=false")).folder
    before = count(log, "made")
    assert main([f"+enjoy={run}", "episodes=3", "videos=3"]) == DONE
    assert len(list(run.rglob("*.mp4"))) == 3
    assert count(log, "made") == before + 3 + 1  # three play the episodes, and one renders them


def test_known_properties_do_not_create_an_environment_again(log: Path) -> None:
    env = own_env(Counted, {"log": str(log), "masked": True})
    assert gives_masks(env)
    describe(env)
    assert gives_masks(env)
    assert count(log, "made") == count(log, "closed") == COMPARED
    for _ in range(2):
        make_env(env, seed=0, num_threads=1, num_envs=NUM_ENVS).close()
    assert count(log, "made") == count(log, "closed") == COMPARED + 2 * NUM_ENVS


class CountedBits(BitFlip):
    def __init__(self, log: str) -> None:
        super().__init__()
        self._log = log
        note(log, "made")

    def close(self) -> None:
        note(self._log, "closed")


def test_environment_of_goals_is_closed_after_the_check(log: Path) -> None:
    component = own_env(CountedBits, {"log": str(log)})
    goals = goals_of(component, describe(component)[0])
    assert goals is not None
    goals.check()
    assert count(log, "made") == count(log, "closed") == COMPARED + 1
