"""Tests of how often environments are created: no more than needed, because one may take seconds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_cases import own_env
from exact_cases import QUIET
from pictures_env import Drawn

import labrl
from labrl.envs.make import describe, gives_masks, make_env

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
def test_without_check_one_environment_exists_besides_those_of_the_run(log: Path, tmp_path: Path) -> None:
    labrl.train(overrides(log, tmp_path / "run", "+env.make.masked=true"))
    events = [line.partition(" ")[0] for line in log.read_text().splitlines()]
    assert events == ["made", "closed", *["made"] * NUM_ENVS, *["closed"] * NUM_ENVS, "made", "closed"]


@pytest.mark.extended
def test_checked_trial_compares_two_environments_and_closes_them(log: Path, tmp_path: Path) -> None:
    labrl.train(overrides(log, tmp_path / "run", "meta.videos=false", "env.check=true"))
    events = [line.partition(" ")[0] for line in log.read_text().splitlines()]
    assert events[: 2 * COMPARED] == [*["made"] * COMPARED, *["closed"] * COMPARED]
    assert count(log, "made") == count(log, "closed") > COMPARED + NUM_ENVS  # some repeat an episode


def test_session_processes_create_theirs_after_the_first_is_closed(log: Path, tmp_path: Path) -> None:
    labrl.train(overrides(log, tmp_path / "run", "meta.videos=false", "meta.max_session=2"))
    lines = log.read_text().splitlines()
    assert lines[:2] == [f"made {os.getpid()}", f"closed {os.getpid()}"]
    assert count(log, "made") == count(log, "closed") == 1 + 2 * (1 + NUM_ENVS)


def test_known_properties_do_not_create_an_environment_again(log: Path) -> None:
    env = own_env(Counted, {"log": str(log), "masked": True})
    assert gives_masks(env)
    describe(env)
    assert gives_masks(env)
    assert count(log, "made") == count(log, "closed") == COMPARED
    for _ in range(2):
        make_env(env, seed=0, num_threads=1, num_envs=NUM_ENVS).close()
    assert count(log, "made") == count(log, "closed") == COMPARED + 2 * NUM_ENVS
