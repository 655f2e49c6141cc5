"""Tests of environments that are made anew: an error or a killed worker changes no number of a run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_cases import Walk, assert_same_steps, own_env, play, sampled
from exact_cases import QUIET, VECTOR, differences
from refusals import refused

import labrl
from labrl.component import Component
from labrl.envs.make import make_env
from labrl.envs.workers import EnvironmentLostError


class FailsOnce(Walk):
    """Walk that fails in one of several ways in the step that reaches position 5, if `mark` does not exist.

    It makes this file, so that it fails once.
    """

    def __init__(
        self, mark: str, how: str, goal: int = 9, masked: bool = False, repeats: bool = True
    ) -> None:
        super().__init__(goal)
        self._mark, self._how, self._masked, self._repeats = Path(mark), how, masked, repeats

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], self._info()

    def step(self, action: Any) -> Any:
        *answer, _ = super().step(action)
        if self.position == 5 and not self._mark.exists():
            self._mark.touch()
            if self._how == "raised":
                raise OSError("the simulator gave up")
            if self._how == "left":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return *answer, self._info()

    def _observation(self) -> Any:
        seen = super()._observation()
        return seen if self._repeats else seen + np.float32(os.getpid())

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.position % 3 > 0, True])} if self._masked else {}


def failing(mark: Path, how: str, **settings: Any) -> Component:
    make = {name: settings.pop(name) for name in ("masked", "repeats") if name in settings}
    keys = {"vectorization": "async", "fresh_env_per_episode": False, **settings}
    return own_env(FailsOnce, {"mark": str(mark), "how": how, **make}, **keys)


@pytest.mark.parametrize(("how", "masked"), [("raised", False), ("killed", True), ("left", False)])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_steps_equal_those_without_the_failure(
    how: str, masked: bool, num_threads: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []
    (tmp_path / "whole").touch()
    for name in ("whole", "failing"):
        component = failing(tmp_path / name, how, masked=masked)
        env = make_env(component, seed=3, num_threads=num_threads, num_envs=3)
        try:
            env.reset()
            runs.append(play(env, sampled(env, 3), 60))
        finally:
            env.close()
    assert_same_steps(*runs)
    assert [step.mask is None for step in runs[0]] == [not masked] * 60
    assert (tmp_path / "failing").exists()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "env.restarts" in said
    assert {"raised": "the simulator gave up", "killed": "SIGKILL", "left": "3"}[how] in said


def test_episode_that_is_not_repeated_ends_as_truncated(tmp_path: Path) -> None:
    env = make_env(failing(tmp_path / "mark", "killed", repeats=False), 3, 1, num_envs=2)
    env.reset()
    steps = play(env, lambda step: np.array([1, 0]), 7)
    env.close()
    assert [bool(step.truncated[0]) for step in steps] == [False] * 4 + [True, False, False]
    assert not any(step.truncated[1] or step.terminated[1] for step in steps)
    cut = steps[4]
    np.testing.assert_array_equal(cut.next_observation[0], steps[3].next_observation[0])
    assert cut.reward[0] == 0
    assert not cut.terminated[0]
    assert (cut.observation[0] != cut.next_observation[0]).any()
    assert [(episode.env, episode.length, episode.truncated) for episode in cut.episodes] == [(0, 5, True)]


@pytest.mark.parametrize("restarts", [0, 2])
def test_environment_fails_for_good_when_its_restarts_are_used_up(restarts: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    env = make_env(failing(mark, "killed", restarts=restarts), seed=3, num_threads=1, num_envs=1)
    env.reset()
    failed = 0
    with refused("lost-process", "env", "SIGKILL", kind=EnvironmentLostError):
        for _ in range(100):
            failed += mark.exists()
            mark.unlink(missing_ok=True)
            env.step(np.array([1]))
    assert failed == restarts
    env.close()


@pytest.mark.extended
@pytest.mark.parametrize("how", ["raised", "killed"])
def test_rows_equal_those_of_a_run_without_the_failure(how: str, tmp_path: Path) -> None:
    overrides = [*QUIET, *VECTOR, "env=gymnasium", "env.id=null", "env.name=walk", "env.vectorization=async"]
    overrides += ["agent.horizon=16", "agent.batch_size=32", "agent.epochs=2", "env.num_envs=2"]
    overrides += ["env.max_frame=400", "env.fresh_env_per_episode=false"]
    (tmp_path / "mark_of_whole").touch()
    for name in ("whole", "failing"):
        mark = tmp_path / f"mark_of_{name}"
        make = f"env.make={{_target_: test_env_restarts.FailsOnce, mark: {mark}, how: {how}}}"
        result = labrl.train([*overrides, make, f"hydra.run.dir={tmp_path / name}"])
        assert result.exit_code == 0
    assert differences(tmp_path / "whole", tmp_path / "failing") == []
    log = (tmp_path / "failing" / "session_0" / "session.log").read_text()
    assert log.count("env.restarts") == 1
