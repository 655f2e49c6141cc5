"""Tests of observations with several inputs: each keeps its type and values, and networks read them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from env_cases import gymnasium_node, own_env
from exact_cases import LAMP, QUIET, SMALL, rows
from gymnasium import spaces
from inputs_env import Lamp
from numpy.typing import NDArray
from options import component, options
from refusals import refused
from restoring import changed_futures

import labrl
from labrl.agents.transforms import NormalizeObservation, NormalizeObservationConfig, RunningMoments
from labrl.cli import main, replay
from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.validate import dataclass_of
from labrl.envs.make import describe, make_env
from labrl.envs.screen import WatchedGymnasium
from labrl.memory.replay import Replay
from labrl.memory.workspace import Workspace
from labrl.networks.building import build_torso
from labrl.networks.layers import ConcatInputs
from labrl.networks.torso import Inputs, NatureCNN
from labrl.seeding import episode_seed
from labrl.spaces import Spaces, array_dtype, example, flat_space, stored_dtype
from labrl.step import Step

TORSO = "agent.network.torso"
PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
MIXED = flat_space(Lamp().observation_space)
VECTORS = spaces.Dict(
    {
        "place": spaces.Box(-9, 9, (2, 2), np.float32),
        "door": spaces.Discrete(3, start=1),
        "keys": spaces.MultiBinary(2),
    }
)


def lamp(**settings: Any) -> Component:
    more = {name: settings.pop(name) for name in ("vectorization",) if name in settings}
    make = {"_target_": "inputs_env.Lamp", **settings}
    return dataclass_of(Component, gymnasium_node(name="lamp", make=make, **more), "env")


def overrides(agent: str, **settings: Any) -> list[str]:
    own = [f"+env.make.{name}={value}" for name, value in settings.items()]
    budget = ["env.max_frame=128", "env.num_envs=4", "meta.log_frequency=64", "meta.eval_frequency=92"]
    target = str(compose([f"agent={agent}"]).agent["_target_"])
    return [f"agent={agent}", *LAMP, *own, *QUIET, *SMALL[target], *budget]


def batch(space: spaces.Dict, count: int, seed: int = 0) -> NDArray:
    space.seed(seed)
    return np.concatenate([example(space) for _ in range(count)])


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("style", "picture"), [("dict", "picture"), ("nested", "eye/picture"), ("tuple", "0")]
)
def test_each_input_equals_what_the_environment_returned(
    style: str, picture: str, vectorization: str
) -> None:
    env = make_env(lamp(style=style, vectorization=vectorization), seed=3, num_threads=1, num_envs=2)
    mark = {"dict": "mark", "nested": "mark", "tuple": "1"}[style]
    alone = Lamp(style=style)

    def parts(given: Any) -> tuple[NDArray, NDArray]:
        if style == "tuple":
            return given
        return given["eye"]["picture"] if style == "nested" else given["picture"], given["mark"]

    try:
        seen = env.reset()
        assert seen.dtype[picture].base == np.uint8
        assert seen.dtype[mark].base == np.float64
        (pixels, numbers), over = parts(alone.reset(seed=episode_seed(3, 0, 0))[0]), False
        while not over:
            np.testing.assert_array_equal(seen[picture][0], pixels)
            np.testing.assert_array_equal(seen[mark][0], numbers)
            step = env.step(np.array([1, 2]))
            given, _, ended, cut, _ = alone.step(1)
            (pixels, numbers), over, seen = parts(given), ended or cut, step.next_observation
        np.testing.assert_array_equal(seen[picture][0], pixels)  # the final observation of the episode
        assert (step.observation[picture][0] != pixels).any()
        _, final = env.played(step.episodes[0])
        np.testing.assert_array_equal(final[picture], pixels)
    finally:
        env.close()


def test_watched_environment_ignores_the_configured_render_mode() -> None:
    overrides = ["env=gymnasium", "env.id=null", "env.name=lamp", "preset=none"]
    lamp = "+env.make={_target_: inputs_env.Lamp, style: tuple, render_mode: human}"
    watched = WatchedGymnasium(resolve(compose([*overrides, lamp])).env.config)
    watched.reset(np.ones(1, np.bool_), np.array([3]))
    assert watched.picture().shape == (36, 36, 3)
    watched.close()


def test_network_reads_images_like_a_cnn_and_numbers_exactly() -> None:
    torch.manual_seed(0)
    torso = build_torso(component(TORSO, "agent/network=inputs"), MIXED)
    assert isinstance(torso, Inputs)
    joined = []
    torso.joint = torch.nn.Identity()
    torso.joint.register_forward_hook(lambda module, inputs, output: joined.append(output))
    seen = batch(MIXED, 5)
    rows = torso.layout(seen)
    assert rows.dtype == np.uint8
    assert rows.shape == (5, PICTURE.shape[0] * PICTURE.shape[1] * 3 + 4 * (2 + 3))
    torso(torch.as_tensor(rows))
    alone = torso.images["picture_torso"]
    assert isinstance(alone, NatureCNN)
    features = alone(torch.as_tensor(alone.layout(seen["picture"])))
    torch.testing.assert_close(joined[0][:, :-5], features)
    numbers = joined[0][:, -5:].detach().numpy()
    names = list(MIXED.spaces)
    assert names.index("mark") < names.index("turn")
    np.testing.assert_array_equal(numbers[:, :2], seen["mark"])
    np.testing.assert_array_equal(numbers[:, 2:], np.eye(3)[seen["turn"] - 1])


def test_inputs_without_images_are_joined_into_one_vector() -> None:
    side_by_side = ConcatInputs(VECTORS)
    assert side_by_side.space.shape == (4 + 3 + 2,)
    seen = batch(VECTORS, 6)
    flat = np.stack(
        [spaces.flatten(VECTORS, {name: seen[name][i] for name in VECTORS.spaces}) for i in range(6)]
    )
    np.testing.assert_array_equal(side_by_side(seen), flat.astype(np.float32))


def test_replay_buffer_stores_images_as_bytes_and_restores_all_inputs(tmp_path: Path) -> None:
    space, count = flat_space(Lamp().observation_space), 12
    assert isinstance(space, spaces.Dict)
    for storage in ("ram", "mmap"):
        memory = Replay(
            options("agent.memory", "agent=dqn", capacity=count, storage=storage, newest_share=1.0),
            observation_space=space,
            action_space=spaces.Discrete(4),
            num_envs=1,
            n_step=1,
            gamma=0.9,
            workspace=Workspace(tmp_path),
            generator=np.random.default_rng(0),
        )
        assert memory.num_bytes < 2 * count * array_dtype(space).itemsize + 4096
        seen, no = batch(space, count + 1), np.zeros(1, np.bool_)
        for t in range(count):
            following, action = seen[t + 1 : t + 2], np.array([t % 4])
            memory.add(
                seen[t : t + 1], action, Step(following, following, np.ones(1, np.float32), no, no, no)
            )
        sample, newest_first = memory.sample(count, 0), seen.astype(stored_dtype(seen.dtype))[::-1]
        assert sample.observation.tobytes() == newest_first[1:].tobytes()
        assert sample.next_observation.tobytes() == newest_first[:-1].tobytes()


def test_each_vector_is_normalized_and_images_are_unchanged() -> None:
    config = NormalizeObservationConfig(clip=10.0, epsilon=1e-8, window=None)
    transform = NormalizeObservation(config, Spaces(MIXED, spaces.Discrete(4), 8))
    seen, moments = batch(MIXED, 8), RunningMoments((2,))
    transform.collect(seen)
    moments.update(seen["mark"])
    view = transform.observation(seen)
    expected = (seen["mark"] - moments.mean) / np.sqrt(moments.variance + 1e-8)
    np.testing.assert_allclose(view["mark"], expected, rtol=1e-4, atol=1e-5)
    assert view["picture"].tobytes() == seen["picture"].tobytes()
    assert view["turn"].tobytes() == seen["turn"].tobytes()


AGENTS = [
    ("ppo", {}),
    ("dqn", {}),
    pytest.param("sac", {"continuous": True}, marks=pytest.mark.slow),
    *(
        pytest.param(name, {}, marks=pytest.mark.slow)
        for name in ("a2c", "sarsa", "rainbow", "sac", "sil_ppo")
    ),
    *(pytest.param(name, {"continuous": True}, marks=pytest.mark.slow) for name in ("td3", "ppo")),
]


@pytest.mark.extended
@pytest.mark.parametrize(("agent", "settings"), AGENTS)
def test_agents_with_several_inputs_resume_exactly(
    agent: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    given = [*overrides(agent, **settings), "meta.rigorous_eval=1"]
    if agent == "rainbow":
        given += ["agent.value.v_min=-2", "agent.value.v_max=2"]
    given.append("+transforms/observation@transforms.seen=normalize")
    assert changed_futures(tmp_path, given, frame=100) == []


@pytest.mark.extended
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_action_masks_work_with_several_inputs(agent: str, tmp_path: Path) -> None:
    env = make_env(lamp(style="masked"), seed=1, num_threads=1, num_envs=2)
    assert env.masked
    assert set(env.observation_space.spaces) == {"picture", "mark"}  # type: ignore[attr-defined]
    env.close()
    # The environment raises an exception at an invalid action.
    result = labrl.train([*overrides(agent, style="masked"), f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 0


@pytest.mark.extended
def test_run_can_be_enjoyed_and_played_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*overrides("ppo"), "meta.rigorous_eval=1", f"hydra.run.dir={run}"]) == 0
    assert (
        "policy_torso.0.images.picture_torso.0.first.weight"
        in (run / "session_0" / "networks.txt").read_text()
    )
    assert main([f"+enjoy={run}", "episodes=2", "videos=1"]) == 0
    assert replay([str(run), "episode=last"]) == 0


REFUSED = [("mlp", MIXED, "MLP"), ("inputs", VECTORS, "Inputs"), ("nature_cnn", VECTORS, "NatureCNN")]
REFUSED += [("impala_cnn", spaces.Box(-1, 1, (3,)), "ImpalaCNN")]


@pytest.mark.parametrize(("option", "space", "named"), REFUSED)
def test_torso_unsuited_to_the_inputs_is_refused(option: str, space: gym.Space, named: str) -> None:
    with refused("unsupported", TORSO, named):
        build_torso(component(TORSO, f"agent/network={option}"), space)


def test_own_torso_must_belong_to_an_existing_image() -> None:
    own = {"camera": component(TORSO, "agent/network=impala_cnn")}
    torso = component(TORSO, "agent/network=inputs", own=own)
    with refused("unknown-key", f"{TORSO}.own.camera", "picture"):
        build_torso(torso, MIXED)
    names = {"picture": PICTURE, "camera": PICTURE}
    built = torso.build(observation_space=spaces.Dict(names))
    kinds = {name: type(part).__name__ for name, part in built.images.items()}
    assert kinds == {"picture_torso": "NatureCNN", "camera_torso": "ImpalaCNN"}
    assert built(torch.as_tensor(built.layout(batch(spaces.Dict(names), 2)))).shape[0] == 2


class Odd(gym.Env):
    """Environment with a text among its observations, or with two inputs of the same name."""

    def __init__(self, twice: bool = False) -> None:
        word, number = spaces.Text(4), spaces.Discrete(2)
        both = {"a": spaces.Dict({"b": number}), "a/b": number}
        self.observation_space = spaces.Dict(both if twice else {"say": word, "n": number})
        self.action_space = spaces.Discrete(2)


@pytest.mark.parametrize(("twice", "named"), [(False, ["say", "Text"]), (True, ["a/b"])])
def test_texts_and_ambiguous_inputs_are_refused_by_name(twice: bool, named: list[str]) -> None:
    with refused("unsupported", "env", *named):
        describe(own_env(Odd, {"twice": twice}))


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_agents_learn_from_both_inputs(agent: str, tmp_path: Path) -> None:
    own = {
        "ppo": ["agent.horizon=32", "agent.batch_size=64", "agent.epochs=4", "env.max_frame=4000"],
        "dqn": ["agent.learning_starts=200", "agent.updates_per_frame=0.25", "env.max_frame=3000"],
    }[agent]
    more = [*LAMP, *QUIET, *own, "agent.lr=1e-3", "agent.gamma=0", "env.num_envs=8", "meta.rigorous_eval=16"]
    result = labrl.train([f"agent={agent}", *more, f"hydra.run.dir={tmp_path / 'run'}"])
    row = rows(result.folder / "session_0" / "eval.csv")[-1]
    # Random answers earn 0.25 per step, and answers that depend on only one of the inputs earn 0.5.
    assert float(row["return_mean"]) > 0.75 * float(row["length_mean"])
