"""Tests of observations outside the bounds of their space: one warning that names place and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from env_cases import gymnasium_env, own_env, play
from gymnasium import spaces

import labrl
from labrl.component import Component
from labrl.envs.bounds import STEPS, BoundsCheck, declares_own_bounds
from labrl.envs.make import make_env

PIXELS = spaces.Box(0, 255, (3, 4, 4), np.uint8)
_shown: list[tuple[spaces.Space[Any], tuple[Any, ...]]] = []
"""Spaces and values of the environments of this module."""


class Shown(gymnasium.Env[Any, Any]):
    """An environment that shows one value in each step, and the last one in all further steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.observation_space, self._values = _shown[number]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self._values[0], {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._values[min(self._steps, len(self._values) - 1)], 0.0, False, False, {}


class Distant(gymnasium.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return observation + np.float32(100)


class Paid(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return 2 * float(reward)


def warnings_of(component: Component, caplog: pytest.LogCaptureFixture, steps: int, **how: Any) -> list[str]:
    """Return the warnings of an environment in `steps` steps."""
    env = make_env(component, 3, 1, num_envs=2, **how)
    try:
        env.reset()
        play(env, lambda step: np.zeros(2, env.action_space.dtype), steps)
    finally:
        env.close()
    return [record.getMessage() for record in caplog.records]


def shown(space: spaces.Space[Any], *values: Any) -> Component:
    _shown.append((space, values))
    return own_env(Shown, {"number": len(_shown) - 1}, fresh_env_per_episode=False)


def own_space(low: float, high: float) -> spaces.Box:
    return spaces.Box(low, high, (2,), np.float32)


def pair(second: float) -> np.ndarray:
    return np.array([0, second], np.float32)


def image(value: int) -> np.ndarray:
    return np.full(PIXELS.shape, value, np.uint8)


@pytest.mark.parametrize("dict_too", [False, True])
@pytest.mark.parametrize("late", [0, 21, 300])
def test_value_outside_its_bounds_is_reported_once(
    late: int, dict_too: bool, caplog: pytest.LogCaptureFixture
) -> None:
    space, values = own_space(-1, 1), [pair(0)] * late + [pair(7.25)]
    inputs = spaces.Dict({"speed": space, "free": own_space(-np.inf, np.inf)})
    if dict_too:
        component = shown(inputs, *({"speed": value, "free": pair(1e9)} for value in values))
    else:
        component = shown(space, *values)
    (said,) = warnings_of(component, caplog, late + 50)
    for word in ("toy", "7.25", "-1 and 1", "[1]", "environment 0", *["'speed'"] * dict_too):
        assert word in said
    assert "free" not in said


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (own_space(-np.inf, np.inf), pair(1e30)),
        (own_space(0, np.inf), pair(-1e-7)),
        (own_space(-1, 1), pair(1.0001)),
        (spaces.Box(-1.0, 1.0, (2,), np.float64), np.array([-1 - 1e-9, 1])),
        (spaces.Box(float(np.finfo(np.float32).min), float(np.finfo(np.float32).max), (2,)), pair(1e38)),
        (PIXELS, image(255)),
        (PIXELS, image(2)),
        (spaces.Box(0, 1, (3, 4, 4), np.uint8), image(1)),
        (spaces.Discrete(3), 2),
    ],
)
def test_fitting_value_is_not_reported(
    space: spaces.Space[Any], value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not warnings_of(shown(space, value), caplog, 200)


def test_integers_outside_their_bounds_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = warnings_of(shown(spaces.Box(0, 1, (3, 4, 4), np.uint8), image(0), image(9)), caplog, 5)
    assert "is 9" in said


@pytest.mark.parametrize("value", [0, 1])
def test_image_of_zeros_and_ones_is_reported(value: int, caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Dict({"eye": spaces.Dict({"left": PIXELS}), "right": PIXELS})
    component = shown(space, {"eye": {"left": image(value)}, "right": image(90)})
    (said,) = warnings_of(component, caplog, 200)
    for word in ("toy", "'eye/left'", "255", "high=1"):
        assert word in said


def test_image_that_becomes_bright_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(shown(PIXELS, *[image(0)] * 40, image(200)), caplog, 200)


def test_evaluation_and_environments_of_other_ranks_report_nothing(caplog: pytest.LogCaptureFixture) -> None:
    component = shown(own_space(-1, 1), pair(7))
    assert not warnings_of(component, caplog, 50, evaluation=True)
    assert not warnings_of(component, caplog, 50, first=2)


def test_steps_between_checks_grow() -> None:
    bounds, checks = BoundsCheck(own_space(-1, 1), "toy"), [0]
    for step in range(1, 100_000):
        if step >= bounds.due:
            bounds.check(np.zeros((1, 2), np.float32), step, np.array([step]))
            checks.append(step)
    assert checks[: STEPS + 1] == list(range(STEPS + 1))
    assert len(checks) < 10 * STEPS


def test_session_reports_it_once_in_its_log(tmp_path: Path) -> None:
    make = shown(own_space(-1, 1), *[pair(0)] * 21, pair(7.25)).config.make
    settings = ["env=gymnasium", "env.id=null", "env.name=rover", "env.num_envs=2", "env.max_frame=200"]
    settings += [f"+env.make._target_={make.target}", f"+env.make.number={make.config['number']}"]
    settings += ["preset=none", "meta=dev", "meta.max_session=1", "agent.horizon=64", "agent.batch_size=64"]
    settings += ["agent.network.torso.mlp.hidden=[8]"]
    result = labrl.train([*settings, "wandb=disabled", f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 0
    log = (result.folder / "session_0" / "session.log").read_text()
    assert log.count("rover: ") == log.count("7.25") == 1


@pytest.mark.parametrize(
    ("wrapper", "own"),
    [(None, False), (Paid, False), (gymnasium.wrappers.FlattenObservation, False), (Distant, True)],
)
def test_bounds_of_gymnasium_are_not_checked(wrapper: Any, own: bool) -> None:
    made = gymnasium.make("MountainCar-v0")
    assert declares_own_bounds(made if wrapper is None else wrapper(made)) == own
    made.close()


def test_own_wrapper_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    wrapper = {"_target_": f"{__name__}.Distant"}
    component = gymnasium_env("MountainCar-v0", wrappers=[wrapper], fresh_env_per_episode=False)
    (said,) = warnings_of(component, caplog, 9)
    assert "MountainCar-v0" in said
