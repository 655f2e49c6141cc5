"""Tests that labrl's own classic-control tasks equal Gymnasium's environments bit for bit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from env_cases import gymnasium_env, sampled
from gymnasium.envs.classic_control import AcrobotEnv
from gymnasium.spaces import Box

from labrl.component import Component
from labrl.envs.classic import ClassicControl, task_of
from labrl.envs.gym import GymnasiumEnv
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv

IDS = ["CartPole-v1", "CartPole-v0", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1"]

NUM_ENVS = 5


def both(id: str, **settings: Any) -> tuple[VectorEnv, VectorEnv]:
    """Return the same environments twice: stepped by labrl's own code and by Gymnasium's."""
    ours, theirs = (
        make_env(gymnasium_env(id, vectorization=kind, **settings), seed=3, num_threads=1, num_envs=NUM_ENVS)
        for kind in ("auto", "sync")
    )
    assert is_native(ours.backend)
    assert not is_native(theirs.backend)
    return ours, theirs


def is_native(backend: Any) -> bool:
    assert isinstance(backend, GymnasiumEnv | ClassicControl)
    return isinstance(backend, ClassicControl)


def equal(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("frames", [15_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("id", "settings"), [*((id, {}) for id in IDS), ("Acrobot-v1", {"max_episode_steps": 7})]
)
def test_every_step_equals_gymnasium(id: str, settings: dict[str, Any], frames: int) -> None:
    ours, theirs = both(id, **settings)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert equal(ours.reset(), theirs.reset())
    draw = sampled(ours, 7)
    finished = 0
    for number in range(frames // NUM_ENVS):
        action = draw(number)
        if isinstance(ours.action_space, Box) and number % 2:
            action = action * 1.5  # out of bounds, which the environment clips
        elif number % 200 > 100 and not isinstance(ours.action_space, Box):
            action = np.full_like(action, int(ours.action_space.n) - 1)
        one, other = ours.step(action), theirs.step(action)
        for name in ("observation", "next_observation", "reward", "terminated", "truncated", "episode_over"):
            assert equal(getattr(one, name), getattr(other, name)), (name, number)
        assert one.episodes == other.episodes
        finished += len(one.episodes)
    assert finished >= NUM_ENVS


def test_saved_state_can_be_restored_in_both_implementations() -> None:
    ours, theirs = both("CartPole-v1")
    again, _ = both("CartPole-v1")
    ours.reset()
    draw = sampled(ours, 1)
    for number in range(50):
        ours.step(draw(number))
    theirs.load_state_dict(ours.state_dict())
    again.load_state_dict(theirs.state_dict())
    for number in range(50, 80):
        one, other, third = (env.step(draw(number)).observation for env in (ours, theirs, again))
        assert equal(one, other)
        assert equal(one, third)


@pytest.mark.parametrize(
    "settings",
    [
        {"kwargs": {"g": 9.81}},
        {"kwargs": {"render_mode": "rgb_array"}},
        {"import_module": "env_cases"},
        {"reset_options": {"x_init": 0.1}},
        {"fresh_env_per_episode": True},
        {"vectorization": "async"},
    ],
)
def test_gymnasium_is_used_when_settings_may_change_the_task(settings: dict[str, Any]) -> None:
    component: Component = gymnasium_env("Pendulum-v1", **settings)
    env = make_env(component, seed=0, num_threads=1, num_envs=1)
    assert not is_native(env.backend)
    env.close()


def test_gymnasium_is_used_for_ids_that_the_user_registered(request: pytest.FixtureRequest) -> None:
    gymnasium.register("LabrlAcrobot-v0", entry_point=AcrobotEnv, max_episode_steps=9)
    gymnasium.register(
        "LabrlAcrobot-v1",
        entry_point="gymnasium.envs.classic_control.acrobot:AcrobotEnv",
        max_episode_steps=9,
        kwargs={"render_mode": "rgb_array"},
    )
    request.addfinalizer(lambda: [gymnasium.registry.pop(f"LabrlAcrobot-v{number}") for number in (0, 1)])
    for number in (0, 1):
        env = make_env(gymnasium_env(f"LabrlAcrobot-v{number}"), seed=0, num_threads=1, num_envs=1)
        assert not is_native(env.backend)


def test_gymnasium_is_used_when_its_task_differs_from_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcrobotEnv, "dt", 0.1)
    task_of.cache_clear()
    try:
        assert task_of("gymnasium.envs.classic_control.acrobot:AcrobotEnv") is None
    finally:
        task_of.cache_clear()
