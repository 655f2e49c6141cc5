"""Tests of user vector environments: refused unless each member can be reset alone with its own seed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_cases import Walk, assert_same_steps, gymnasium_env, gymnasium_node, own_env, play, sampled
from exact_cases import QUIET
from refusals import refused
from vector_env import Doors, Walks

import labrl
import labrl.envs.gym
from labrl.cli import main, replay
from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.envs.make import describe, gives_masks, make_env
from labrl.envs.masks import first_valid
from labrl.errors import Code

AT_ONCE = {"vectorization": "vector_entry_point"}
OWN = ["env=gymnasium", "env.id=null", "env.name=walks", "env.vectorization=vector_entry_point"]
MAKE_VEC = {
    "_target_": "gymnasium.make_vec",
    "id": "CartPole-v1",
    "vectorization_mode": "sync",
    "vector_kwargs": {"autoreset_mode": "Disabled"},
}
VECTORIZATION = "env.vectorization"
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def made_by(make: dict[str, Any], **settings: Any) -> Component:
    """Return the configuration of an environment that is created by `make`."""
    return dataclass_of(Component, gymnasium_node(name="toy", make=make, **{**AT_ONCE, **settings}), "env")


@pytest.mark.parametrize(
    ("at_once", "one_by_one"),
    [
        (own_env(Walks, {"goal": 7}, **AT_ONCE), own_env(Walk, {"goal": 7})),
        (made_by({"_target_": "vector_env.made"}, max_episode_steps=9), own_env(Walk, max_episode_steps=9)),
        (made_by(MAKE_VEC), gymnasium_env("CartPole-v1")),
    ],
    ids=["class", "function and limit", "make_vec"],
)
@pytest.mark.parametrize("num_envs", [1, 5])
def test_vector_environment_equals_separate_environments(
    at_once: Component, one_by_one: Component, num_envs: int
) -> None:
    assert describe(at_once) == describe(one_by_one)
    left, right = (make_env(each, seed=4, num_threads=1, num_envs=num_envs) for each in (at_once, one_by_one))
    first = left.reset()
    np.testing.assert_array_equal(first, right.reset())
    before = first.copy()
    assert_same_steps(play(left, sampled(left, 4), 60), play(right, sampled(right, 4), 60))
    np.testing.assert_array_equal(first, before)  # the array has not been overwritten
    left.close()
    right.close()


def test_vector_example_of_the_docs_equals_the_single_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    limited = {"max_episode_steps": 20}
    at_once = make_env(made_by({"_target_": "vector_corridor.VectorCorridor"}, **limited), 2, 1, num_envs=3)
    corridor = {"_target_": "corridor.Corridor"}
    alone = dataclass_of(Component, gymnasium_node(name="c", make=corridor, **limited))
    other = make_env(alone, 2, 1, num_envs=3)
    np.testing.assert_array_equal(at_once.reset(), other.reset())
    assert_same_steps(play(at_once, sampled(at_once, 2), 80), play(other, sampled(other, 2), 80))


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("resets by itself", "autoreset_mode"),
        ("says nothing", "autoreset_mode"),
        ("has no metadata", "autoreset_mode"),
        ("has another number", "num_envs"),
        ("resets all", "reset_mask"),
        ("takes one seed", "seed="),
        ("draws from one generator", "seed"),
        ("does not forget", "seed"),
        ("fails", "no more steps"),
        ("plays Gym's old interface", "(observation, reward, terminated, truncated, info)"),
        ("resets without info", "(observation, info)"),
        ("has no info", "info"),
        ("gives columns", "rewards"),
        ("leaves one out", "shape"),
    ],
)
def test_unrepeatable_vector_environment_is_refused_before_a_run(fault: str, named: str) -> None:
    env = own_env(Walks, {"fault": fault, "goal": 7}, **AT_ONCE)
    with refused(None, "env.vectorization", "vector_env.Walks", named) as caught:
        describe(env)
    assert caught.value.code in ("unsupported", "environment")


class Pool:
    """Vector environment with the interface of EnvPool."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def send(self) -> None: ...

    def recv(self) -> None: ...


@pytest.mark.parametrize(
    ("env", "code", "key", "named"),
    [
        # has one generator for all environments, and resets by itself
        (gymnasium_env("CartPole-v1", **AT_ONCE), "unsupported", VECTORIZATION, f"{VECTORIZATION}=sync"),
        # has no vector entry point
        (gymnasium_env("Acrobot-v1", **AT_ONCE), "unsupported", VECTORIZATION, f"{VECTORIZATION}=sync"),
        (gymnasium_env("Nothing-v0", **AT_ONCE), "unknown-option", "env.id", "env.id=Nothing-v0"),
        (own_env(Walk, **AT_ONCE), "unsupported", VECTORIZATION, f"{VECTORIZATION}=sync"),
        (own_env(Pool, **AT_ONCE), "unsupported", VECTORIZATION, "EnvPool"),
        (own_env(Walks), "contradiction", VECTORIZATION, f"{VECTORIZATION}=vector_entry_point"),
        (
            made_by({"_target_": "vector_env.made"}, vectorization="sync"),
            "contradiction",
            VECTORIZATION,
            f"{VECTORIZATION}=vector_entry_point",
        ),
        (
            made_by(MAKE_VEC, vectorization="async"),
            "contradiction",
            VECTORIZATION,
            f"{VECTORIZATION}=vector_entry_point",
        ),
        (own_env(Walks, {"num_envs": 4}, **AT_ONCE), "contradiction", "env.make.num_envs", "env.num_envs"),
        (
            own_env(Walks, kwargs={"num_envs": 4}, **AT_ONCE),
            "contradiction",
            "env.kwargs.num_envs",
            "env.num_envs",
        ),
        (
            own_env(Walks, fresh_env_per_episode=True, **AT_ONCE),
            "contradiction",
            "env.fresh_env_per_episode",
            VECTORIZATION,
        ),
    ],
)
def test_unsupported_vectorization_is_refused_with_a_remedy(
    env: Component, code: Code, key: str, named: str
) -> None:
    with refused(code, key, named):
        describe(env)


@pytest.mark.parametrize("style", ["info", "dict", "sparse"])
def test_action_masks_belong_to_the_current_states(style: str) -> None:
    component = own_env(Doors, {"style": style}, **AT_ONCE)
    assert gives_masks(component)
    assert describe(component)[0].shape == (2,)
    env = make_env(component, seed=1, num_threads=1, num_envs=3)
    env.reset()
    ended = 0
    for _ in range(40):  # the environment raises an exception at an invalid action
        assert env.action_mask is not None
        still = (env.action_mask[:, 0] == 1) & ~env.action_mask[:, 1]
        step = env.step(first_valid(env.action_mask, env.action_space))
        ended += len(step.episodes)
        assert not still.all() or (step.next_observation[:, 0] == 0).all()
    assert ended
    unmasked = own_env(Doors, {"style": style}, action_mask=False, **AT_ONCE)
    with refused("environment", VECTORIZATION, "a closed door"):  # which random actions try to open
        gives_masks(unmasked)


def test_action_masks_must_be_returned_by_reset_too() -> None:
    with refused("environment", VECTORIZATION, "action_mask"):
        describe(own_env(Doors, {"style": "late"}, **AT_ONCE))


def test_evaluation_caps_episodes_that_have_no_step_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(labrl.envs.gym, "LONGEST_EVALUATION", 9)
    env = make_env(own_env(Walks, **AT_ONCE), seed=1, num_threads=1, num_envs=2, evaluation=True)
    env.reset()
    with caplog.at_level(logging.WARNING):
        steps = play(env, lambda step: np.zeros(2), 20)
    assert [episode.length for step in steps for episode in step.episodes] == [9] * 4
    assert caplog.text.count("env.max_episode_steps") == 1


@pytest.mark.uses_videos
def test_run_can_be_evaluated_recorded_and_played_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [override for override in QUIET if not override.startswith("meta.videos")]
    overrides += [
        *OWN,
        "env.make={_target_: vector_env.Walks, goal: 9}",
        "env.num_envs=3",
        "env.max_frame=300",
    ]
    overrides += ["agent=random", "meta.rigorous_eval=2", "meta.eval_frequency=150"]
    run = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"]).folder
    assert (run / "session_0" / "videos" / "best.mp4").exists()
    assert replay([str(run)]) == 0
    assert main([f"+enjoy={run}", "episodes=2"]) == 0
    assert len(list(run.glob("enjoy/*/*.mp4"))) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main([*overrides, "+env.make.fault=resets all", f"hydra.run.dir={tmp_path / 'refused'}"]) == 2
    assert "reset_mask" in capsys.readouterr().err
