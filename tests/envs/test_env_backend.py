"""Tests of a user's class derived from Backend, which steps its environments at once, and of what is refused
in place of one."""

from __future__ import annotations

import signal
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from env_cases import assert_same_steps, gymnasium_node, own_env, play, sampled
from exact_cases import QUIET, VECTOR, Moment, differences, folder_override, interrupt
from refusals import refused

import labrl
from labrl.cli import main
from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.envs.make import describe, make_env

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def corridor(monkeypatch: pytest.MonkeyPatch) -> Component:
    """Return the example of the docs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    node = {"_target_": "vector_corridor.VectorCorridor", "name": "corridor", "num_envs": 3, "max_frame": 100}
    return dataclass_of(Component, {**node, "length": 8, "max_episode_steps": 20, "info_keys": None}, "env")


def test_example_of_the_docs_equals_separate_environments(corridor: Component) -> None:
    node = gymnasium_node(name="c", make={"_target_": "corridor.Corridor"}, max_episode_steps=20)
    alone = dataclass_of(Component, node, "env")
    assert describe(corridor) == describe(alone)
    left, right = (make_env(each, 2, 1, num_envs=3) for each in (corridor, alone))
    np.testing.assert_array_equal(left.reset(), right.reset())
    assert_same_steps(play(left, sampled(left, 2), 80), play(right, sampled(right, 2), 80))


@pytest.mark.extended
@pytest.mark.usefixtures("own_folder")
def test_killed_run_of_the_example_resumes_exactly(tmp_path: Path) -> None:
    overrides = ["--config-dir", str(EXAMPLES), "env=vector_corridor", *QUIET, *VECTOR, "env.num_envs=4"]
    overrides += ["agent.horizon=16", "agent.batch_size=32", "agent.epochs=2", "meta.rigorous_eval=2"]
    assert main([*overrides, "hydra.run.dir=whole"]) == 0
    folder = tmp_path / "killed"
    moment = Moment(600, seconds=0.01)
    code, output = interrupt(folder, [*overrides, folder_override(folder)], signal.SIGKILL, moment)
    assert code == -signal.SIGKILL, output
    assert main([f"+resume={folder}"]) == 0
    assert differences(Path("whole"), folder) == []
    assert labrl.load(folder).evaluate(episodes=2).returns.shape == (2,)


class Several(gym.vector.SyncVectorEnv):
    """A vector environment, made by a class."""

    def __init__(self) -> None:
        super().__init__([lambda: gym.make("CartPole-v1")])


def pool(num_envs: int) -> None:
    """Make a vector environment of another kind."""
    raise AssertionError("it need not be made")


@pytest.mark.parametrize("make", [Several, pool])
def test_vector_environment_is_no_environment(make: object) -> None:
    key = "env.make" if make is pool else "env.make._target_"
    with refused("target", key):
        describe(own_env(make))  # type: ignore[arg-type]
