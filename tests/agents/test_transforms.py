"""Tests of transforms of what the learner sees: normalization, scaling, clipping, and their statistics."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from options import options
from refusals import refused

import labrl
from labrl.agents.transforms import (
    NormalizeObservation,
    NormalizeReward,
    RunningMoments,
    ScaleReward,
    SignReward,
    SignRewardConfig,
    Transform,
    Transforms,
)
from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.errors import Code
from labrl.spaces import Spaces, array_dtype, packed
from labrl.step import Step

OBSERVATION = options("transforms.observation", "transforms/observation=normalize")
REWARD = options("transforms.reward", "transforms/reward=normalize")
SCALE = options("transforms.reward", "transforms/reward=scale transforms.reward.scale=0.5")
VECTOR = Spaces(gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Discrete(2), num_envs=2)


def step(
    reward: list[float], observation: np.ndarray | None = None, over: tuple[bool, bool] = (False, False)
) -> Step:
    seen = np.zeros((2, 3), np.float32) if observation is None else observation
    no = np.zeros(2, bool)
    return Step(seen, seen, np.array(reward, np.float32), np.array(over), no, np.array(over))


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_running_moments_of_batches_equal_those_of_all_data(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(3, 5, size=(n, 4)) for n in sizes]
    moments = RunningMoments((4,))
    for batch in batches:
        moments.update(batch)
    data = np.concatenate(batches)
    assert moments.mean == pytest.approx(data.mean(0))
    if len(data) > 1:
        assert moments.variance == pytest.approx(data.var(0))


def test_statistics_are_updated_by_collection_and_not_by_evaluation() -> None:
    transforms = Transforms({"observation": NormalizeObservation(OBSERVATION, VECTOR)})
    rng = np.random.default_rng(0)
    data = rng.normal(2, 3, size=(500, 2, 3)).astype(np.float32)
    for observation in data:
        transforms.collected(observation)
    probe = data[0]
    before = transforms.frozen(probe)
    for observation in 100 + data:
        transforms.frozen(observation)
    assert np.array_equal(transforms.frozen(probe), before)
    normalized = np.stack([transforms.frozen(o) for o in data])
    assert normalized.mean() == pytest.approx(0, abs=0.05)
    assert normalized.std() == pytest.approx(1, abs=0.05)


def test_final_observation_is_normalized_but_not_counted_in_the_statistics() -> None:
    part = NormalizeObservation(OBSERVATION, VECTOR)
    transforms = Transforms({"observation": part})
    transforms.collected(np.ones((2, 3), np.float32))
    ended = step([0, 0], np.zeros((2, 3), np.float32), over=(True, False))
    ended.next_observation = np.full((2, 3), 5.0, np.float32)
    view = transforms.step(ended)
    assert np.array_equal(view.next_observation, part.observation(np.full((2, 3), 5.0, np.float32)))
    assert part.statistics()[0].count == 4  # two for each step, without the final observations


@pytest.mark.extended
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    part = NormalizeReward(dataclasses.replace(REWARD, gamma=0.5, clip=100.0), VECTOR)
    rng = np.random.default_rng(1)
    running, returns = np.zeros(2), []
    for _ in range(200):
        rewards, over = rng.normal(size=2), rng.random(2) < 0.1
        running = running * 0.5 + rewards
        returns.append(running.copy())
        seen = part.reward(step(list(rewards), over=(bool(over[0]), bool(over[1]))))
        assert seen == pytest.approx(rewards / np.sqrt(np.var(returns) + 1e-8), rel=1e-3)
        running[over] = 0


class Scribbles(Transform):
    """Transform that reuses its own output arrays and overwrites all arrays that it was given."""

    def __init__(self, spaces: Spaces | None = None) -> None:
        self._view, self._rewards = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)

    def observation(self, observation: NDArray) -> NDArray:
        self._view[:] = observation / 2
        observation[:] = -7
        return self._view

    def collect(self, observation: NDArray) -> None:
        observation[:] = -8

    def reward(self, step: Step) -> NDArray:
        self._rewards[:] = step.reward + step.next_observation[:, 0]
        for array in (step.reward, step.observation, step.terminated, step.episode_over):
            array[:] = 1
        return self._rewards


def test_custom_transform_may_write_into_its_arrays() -> None:
    transforms = Transforms({"own": Scribbles()})
    raw = step([1, 2], np.ones((2, 3), np.float32))
    kept, views = raw.copied(), []
    for _ in range(2):
        views.append(transforms.step(raw))
        transforms.frozen(raw.observation * 9)
    for view in views:
        assert view.observation is view.next_observation, "two arrays were made although no episode has ended"
        assert view.observation.tolist() == [[0.5] * 3] * 2
        assert view.reward.tolist() == [1.5, 2.5]
    for name in ("observation", "reward", "terminated", "episode_over"):
        np.testing.assert_array_equal(getattr(raw, name), getattr(kept, name))


def test_custom_agents_get_copies_and_labrls_agents_get_views() -> None:
    raw = step([1, 2], np.ones((2, 3), np.float32))
    for target, copies in (("my_agents.Mine", True), ("labrl.agents.ppo.PPO", False)):
        transforms = Transforms.build({}, VECTOR, agent=Component(target, {}))
        view = transforms.step(raw)
        assert view.observation is view.next_observation
        assert np.shares_memory(view.observation, raw.observation) != copies
        assert np.shares_memory(view.reward, raw.reward) != copies
        for look in (transforms.frozen, transforms.collected):
            assert np.shares_memory(look(raw.observation), raw.observation) != copies


@pytest.mark.parametrize(
    ("agent", "kind", "middle", "several"),
    [("ppo", "float64", 1.7e9, False), ("dqn", "int64", 1.7e9, True)],
)
def test_large_numbers_are_normalized_alone_and_beside_other_inputs(
    agent: str, kind: str, middle: float, several: bool, tmp_path: Path
) -> None:
    make = f"env.make={{_target_: inputs_env.Clock, kind: {kind}, middle: {middle}, several: {several}}}"
    options = [f"agent={agent}", "env=gymnasium", "env.id=null", "env.name=clock", make, "env.max_frame=280"]
    options += ["env.num_envs=2", "preset=none", "agent.network.torso.mlp.hidden=[8]", "meta=dev"]
    options += ["agent.horizon=64", "agent.batch_size=64"] if agent == "ppo" else ["agent.learning_starts=64"]
    options += ["transforms/observation=normalize", "meta.max_session=1", f"hydra.run.dir={tmp_path}"]
    assert labrl.train(options).exit_code == 0
    policy = labrl.load(tmp_path)
    (moments,) = policy.transforms.part("observation")[1].values()
    assert moments["mean"] == pytest.approx([middle], abs=5)
    deviation = np.sqrt(moments["squares"] / moments["count"])
    assert deviation == pytest.approx([17.6], abs=2.5)
    numbers = (middle + np.arange(-30, 31))[:, None].astype(kind)
    shown = {"flags": np.ones((61, 2), np.bool_), "number": numbers} if several else numbers
    space = policy.observation_space
    seen = policy.transforms.frozen(packed(shown, array_dtype(space), 61) if several else shown)
    wanted = (numbers - moments["mean"]) / deviation
    np.testing.assert_allclose(seen["number"] if several else seen, wanted, atol=1e-3)
    assert not several or seen["flags"].all()
    policy.act(shown)
    policy.close()


def test_normalizing_images_is_refused() -> None:
    images = Spaces(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(2), 2)
    with refused("unsupported", "transforms.observation", "transforms.observation=null"):
        NormalizeObservation(OBSERVATION, images)


def test_moments_with_a_window_forget_older_data() -> None:
    rng = np.random.default_rng(3)
    fading, all_of_it = RunningMoments((1,), window=100), RunningMoments((1,))
    for batch in rng.normal(0, 1, size=(50, 2, 1)):
        fading.update(batch)
        all_of_it.update(batch)
    assert fading.mean == pytest.approx(all_of_it.mean)
    assert fading.variance == pytest.approx(all_of_it.variance)
    for batch in rng.normal(50, 2, size=(500, 2, 1)):  # as many rows as ten windows
        fading.update(batch)
        all_of_it.update(batch)
    assert fading.mean == pytest.approx([50], abs=0.5)
    assert fading.variance == pytest.approx([4], rel=0.3)
    assert all_of_it.mean == pytest.approx([45], abs=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [-3.5, 0.5, 15.0]),
        ({"shift": -0.5, "low": -1.0, "high": 2.0}, [-1.0, 0.0, 2.0]),
        ({"low": 1.0}, [1.0, 1.0, 15.0]),
        ({"high": 1.0}, [-3.5, 0.5, 1.0]),
    ],
)
def test_rewards_are_scaled_then_shifted_then_clipped(
    changes: dict[str, float], expected: list[float]
) -> None:
    found = ScaleReward(dataclasses.replace(SCALE, **changes), VECTOR).reward(step([-7.0, 1.0, 30.0]))
    assert found.tolist() == expected


def test_transforms_are_applied_in_the_given_order() -> None:
    shift, clip = (
        ScaleReward(dataclasses.replace(SCALE, scale=1.0, **changes), VECTOR)
        for changes in ({"shift": -0.5}, {"low": -1.0, "high": 2.0})
    )
    assert Transforms({"shift": shift, "clip": clip}).step(step([-7.0, 2.0])).reward.tolist() == [-1.0, 1.5]
    raw = step([-7.0, 3.0])
    assert Transforms({"clip": clip, "shift": shift}).step(raw).reward.tolist() == [-1.5, 1.5]
    assert Transforms({"sign": SignReward(SignRewardConfig(), VECTOR)}).step(raw).reward.tolist() == [-1, 1]
    assert raw.reward.tolist() == [-7.0, 3.0]


@pytest.mark.parametrize(
    ("overrides", "key", "code"),
    [
        (["transforms/reward=clip", "transforms.reward.low=1"], "transforms.reward", None),
        (["transforms/reward=shift"], "transforms.reward.shift", "missing"),
        (["transforms/reward=normalize", "transforms.reward.window=0"], "transforms.reward.window", "range"),
    ],
)
def test_wrong_bounds_and_missing_values_are_refused(
    overrides: list[str], key: str, code: Code | None
) -> None:
    with refused(code, key):
        resolve(compose(["env=pendulum", "preset=none", *overrides]))


def test_transforms_are_composed_from_options_with_their_values() -> None:
    """A transform may be added under another name; the scale of rewards uses the agent's discount factor."""
    overrides = ["transforms/observation=normalize", "transforms/reward=clip", "agent.gamma=0.9"]
    overrides += ["+transforms/reward@transforms.scaled=normalize"]
    transforms = resolve(compose(["env=cartpole", "preset=none", *overrides])).transforms
    kinds = {name: part.target.rpartition(".")[2] for name, part in transforms.items() if part is not None}
    assert kinds == {
        "observation": "NormalizeObservation",
        "reward": "ScaleReward",
        "scaled": "NormalizeReward",
    }
    assert transforms["scaled"].config.gamma == 0.9


@pytest.mark.extended
@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_replay_buffer_with_changing_reward_statistics_gives_a_warning(agent: str, tmp_path: Path) -> None:
    overrides = [f"agent={agent}", "env=cartpole", "env.max_frame=1200", "meta=dev", "meta.max_session=1"]
    overrides += ["+transforms/reward@transforms.scaled=normalize"]
    run = labrl.train([*overrides, f"hydra.run.dir={tmp_path}"])
    assert run.exit_code == 0
    log = tmp_path / "session_0" / "session.log"
    output = log.read_text() if log.exists() else ""
    assert ("transforms.scaled" in output) == (agent == "dqn")
