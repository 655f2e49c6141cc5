"""Tests of Gymnasium environments: sync and async workers, resets that keep history, and wrong input."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from env_cases import (
    Remembers,
    Walk,
    assert_same_steps,
    constant,
    gymnasium_env,
    own_env,
    play,
    sampled,
)
from exact_cases import QUIET
from gymnasium.error import DependencyNotInstalled
from refusals import refused

import labrl
import labrl.envs.gym
import labrl.envs.workers
from labrl.component import Component
from labrl.envs.description import description_of
from labrl.envs.make import describe, make_env
from labrl.errors import Code
from labrl.processes.signals import SIGNALS
from labrl.run.find import load_run

UNCHECKED = {"fresh_env_per_episode": False, "action_mask": False}
"""Settings with which nothing is played before the run."""


class Refuses(Walk):
    """Environment whose step raises an exception."""

    def step(self, action: Any) -> Any:
        raise FileNotFoundError("no level there")


def test_sync_and_async_give_the_same_steps() -> None:
    runs = []
    for vectorization in ("sync", "async"):
        component = gymnasium_env("CartPole-v1", vectorization=vectorization)
        env = make_env(component, seed=11, num_threads=2, num_envs=3)
        try:
            env.reset()
            runs.append(play(env, sampled(env, 11), 120))
        finally:
            env.close()
            env.close()  # closing twice is harmless
    assert_same_steps(*runs)
    assert sum(len(step.episodes) for step in runs[0]) > 5


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_workers_ignore_signals_that_the_main_process_handles(number: signal.Signals) -> None:
    env = make_env(gymnasium_env("CartPole-v1", vectorization="async"), seed=1, num_threads=2, num_envs=2)
    try:
        env.reset()
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, number)
        assert len(play(env, constant(1, 0), 5)) == 5
    finally:
        env.close()


def test_exception_of_an_environment_is_raised_unchanged() -> None:
    env = make_env(own_env(Refuses, vectorization="async", **UNCHECKED), seed=1, num_threads=1, num_envs=2)
    env.reset()
    with pytest.raises(FileNotFoundError, match="no level there"):
        play(env, constant(1, 0), 5)
    env.close()


def test_history_dependent_environment_is_recreated_for_each_episode() -> None:
    assert description_of(own_env(Remembers).config).repeats == "if new"
    env = make_env(own_env(Remembers, max_episode_steps=4), seed=0, num_threads=1, num_envs=2)
    env.reset()
    steps = play(env, constant(1, 0), 8)
    np.testing.assert_array_equal([step.next_observation[0, 0] for step in steps], [1, 2, 3, 4] * 2)

    kept = make_env(own_env(Remembers, max_episode_steps=4, **UNCHECKED), seed=0, num_threads=1, num_envs=2)
    kept.reset()
    last = play(kept, constant(1, 0), 8)[-1]
    assert last.next_observation[0, 0] == 8, "an explicit fresh_env_per_episode=false was ignored"


@pytest.mark.parametrize(
    ("component", "length"),
    [
        (own_env(Walk), 9),
        (own_env(Walk, max_episode_steps=5), 5),
        (own_env(Walk, max_episode_steps=30), 30),
        (gymnasium_env("CliffWalking-v1"), 9),
        (gymnasium_env("Acrobot-v1"), None),
    ],
)
def test_evaluation_caps_episodes_that_have_no_step_limit(
    component: Component,
    length: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labrl.envs.gym, "LONGEST_EVALUATION", 9)
    for evaluation in (True, False):
        env = make_env(component, seed=0, num_threads=1, num_envs=1, evaluation=evaluation)
        env.reset()
        ended = [step.episodes[0].length for step in play(env, constant(0), 30) if step.episodes]
        limited = evaluation or length != 9
        assert ended[:1] == ([length] if length is not None and limited else [])


@pytest.mark.parametrize(("cls", "fresh"), [(Walk, False), (Remembers, True)])
def test_run_says_that_its_environment_is_made_for_each_episode(
    cls: type, fresh: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*QUIET, "agent=random", "env=gymnasium", "env.id=null", "env.name=own", "env.max_frame=40"]
    made = f"env.make={{_target_: {cls.__module__}.{cls.__name__}, goal: 3}}"
    labrl.train([*overrides, made, f"hydra.run.dir={tmp_path / 'run'}"])
    output = capsys.readouterr().out
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())
    assert recorded.get("fresh_env_per_episode", False) == fresh
    for advice in ("env.fresh_env_per_episode=", "transforms/observation=normalize"):
        assert output.count(advice) == fresh
    assert any("env.fresh_env_per_episode" in one for one in load_run(tmp_path / "run").warnings) == fresh
    assert "not reproducible" not in output


class Picky(Walk):
    """Environment that accepts only actions of the dtype of its space, as checked by `contains`."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(2, dtype=np.int32)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), repr(action)
        return *super().step(action)[:4], {"action_mask": np.array([0, 1], np.int8)}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_environment_gets_actions_of_its_declared_dtype(vectorization: str) -> None:
    env = make_env(own_env(Picky, vectorization=vectorization), seed=0, num_threads=1, num_envs=2)
    env.reset()
    play(env, constant(1, 0), 1)
    again = make_env(own_env(Picky), seed=0, num_threads=1, num_envs=2)
    again.load_state_dict(env.state_dict())
    env.close()


@pytest.mark.parametrize(
    ("component", "code", "key", "named"),
    [
        (gymnasium_env("CartPole-v7"), "unknown-option", "env.id", ["CartPole-v7", "v1"]),
        (
            gymnasium_env("Nowhere/Nothing-v0"),
            "unknown-option",
            "env.id",
            ["Nowhere? ", "env.import_module="],
        ),
        (
            gymnasium_env("X-v0", import_module="no_such_package"),
            "not-installed",
            "env.import_module",
            ["no_such_package"],
        ),
        (
            gymnasium_env("FrozenLake-v1", kwargs={"map_name": "9x9"}),
            "environment",
            "env.kwargs",
            ["KeyError: '9x9'"],
        ),
        (gymnasium_env("a:b:c"), "environment", "env.id", ["env.id=a:b:c"]),
        (own_env(dict), "target", "env.make._target_", ["builtins.dict"]),
    ],
)
def test_wrong_environment_is_refused_with_its_key(
    component: Component, code: Code, key: str, named: list[str]
) -> None:
    with refused(code, key, *named):
        describe(component)
    with refused(code, key, *named):
        make_env(component, seed=0, num_threads=1)


def test_missing_extra_is_named_in_the_error(request: pytest.FixtureRequest) -> None:
    def needs_box2d() -> None:
        raise DependencyNotInstalled(
            'Box2D is not installed, you can install it by run `pip install "gymnasium[box2d]"`'
        )

    gymnasium.register("LabrlNeedsBox2D-v0", entry_point=needs_box2d)  # type: ignore[arg-type]
    request.addfinalizer(lambda: gymnasium.registry.pop("LabrlNeedsBox2D-v0"))
    with refused("not-installed", "env.id", "gymnasium[box2d]"):
        describe(gymnasium_env("LabrlNeedsBox2D-v0"))
