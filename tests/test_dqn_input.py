"""Unsupported options of the DQN family are refused before anything is built, with the key and the way
out."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from exact_cases import QUIET
from refusals import refused

import labrl
from labrl.agents.dqn import DQN
from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.errors import WRONG_INPUT, Code
from labrl.spaces import Spaces

NOISY = ["agent.network.noisy=0.5", "agent/exploration=epsilon_greedy"]


@pytest.mark.parametrize(
    ("overrides", "key", "way_out"),
    [
        (["agent.memory.capacity=50"], "agent.memory.capacity", ["agent.memory.capacity=128"]),
        (["agent.memory.capacity=900"], "agent.memory.capacity", ["agent.memory.capacity=1000"]),
        (
            ["agent.memory.capacity=64", "env.num_envs=16", "agent.n_step=5", "agent.learning_starts=0"],
            "agent.memory.capacity",
            ["agent.n_step", "env.num_envs", "agent.memory.capacity=96"],
        ),
        (["env.max_frame=1000"], "agent.learning_starts", ["env.max_frame=2000"]),
        (
            ["agent.learning_starts=0", "agent.batch_size=500", "env.max_frame=400"],
            "agent.learning_starts",
            ["agent.batch_size=500", "503", "env.max_frame=1006"],
        ),
        (["agent/exploration=noise"], "agent.exploration", NOISY),
    ],
    ids=["batch", "learning_starts", "n_step", "budget", "budget for a batch", "noise"],
)
def test_contradictions_name_both_sides_and_the_way_out(
    overrides: list[str], key: str, way_out: list[str]
) -> None:
    with refused("contradiction", key, *way_out):
        resolve(compose(["agent=dqn", "env=cartpole", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "key", "code", "named"),
    [
        (["agent/value=categorical"], "agent.value.v_min", "missing", ["agent.value.v_min="]),
        (["agent/value=categorical"], "agent.value.v_max", "missing", ["agent.value.v_max="]),
        (
            ["agent/value=categorical", "agent.value.v_min=10", "agent.value.v_max=-10"],
            "agent.value",
            None,
            ["v_min=10", "v_max=-10"],
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=1", "agent.value.v_max=1.00000001"],
            "agent.value",
            None,
            ["51", "v_max=1.00000001"],
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=-3e38", "agent.value.v_max=3e38"],
            "agent.value",
            None,
            ["51"],
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=1", "agent.value.v_max=1"],
            "agent.value",
            None,
            ["v_min=1", "v_max=1"],
        ),
        (
            ["agent/value=categorical", "agent.value.v_min=0", "agent.value.v_max=1", "agent.value.atoms=1"],
            "agent.value.atoms",
            "range",
            ["2"],
        ),
        (["agent.value.loss=huge"], "agent.value.loss", "unknown-option", ["huber", "squared"]),
        (["agent.updates_per_frame=0"], "agent.updates_per_frame", None, ["1/3"]),
        (["agent.updates_per_frame=true"], "agent.updates_per_frame", None, ["1/3"]),
        (["agent.updates_per_frame=1/0"], "agent.updates_per_frame", None, ["1/3"]),
        (["agent.updates_per_frame=often"], "agent.updates_per_frame", None, ["1/3", "often"]),
        (["agent.exploration.epsilon=1.5"], "agent.exploration.epsilon", "range", ["1.5"]),
        (["agent.exploration.epsilon.start=2"], "agent.exploration.epsilon", "range", []),
        (["agent.target.every=0"], "agent.target.every", "range", ["1"]),
        (["agent/target=polyak", "agent.target.tau=0"], "agent.target.tau", "range", ["0"]),
        (["agent.target.tau=0.1"], "agent.target.tau", "unknown-key", []),
        (["agent.network.noisy=0"], "agent.network.noisy", "range", ["0"]),
        (["agent.network.head=[0]"], "agent.network.head[0]", "range", ["1"]),
        (["agent.n_step=0"], "agent.n_step", "range", ["1"]),
        (["agent.warmup_actions=greedy"], "agent.warmup_actions", "unknown-option", ["random", "policy"]),
        (["agent/value=c51"], "agent/value", "unknown-option", ["categorical", "expected", "quantile"]),
    ],
)
def test_wrong_values_name_what_is_allowed(
    overrides: list[str], key: str, code: Code | None, named: list[str]
) -> None:
    with refused(code, key, *named):
        resolve(compose(["agent=dqn", "env=gymnasium", "env.id=CartPole-v1", *overrides]))


def test_epsilon_with_a_noisy_network_is_allowed() -> None:
    resolve(compose(["agent=dqn", "agent.network.noisy=0.5"]))
    resolve(compose(["agent=rainbow", "agent/exploration=epsilon_greedy"]))


@pytest.mark.parametrize(
    ("actions", "fits"),
    [
        (gym.spaces.Box(-1, 1, (2,), np.float32), "agent=ppo"),
        (gym.spaces.MultiDiscrete([2, 3]), "agent=ppo"),
        (gym.spaces.MultiBinary(3), "agent=ppo"),
    ],
    ids=["box", "multi-discrete", "multi-binary"],
)
def test_actions_that_cannot_be_listed_are_refused_with_an_agent_that_fits(
    actions: gym.Space, fits: str
) -> None:
    config = resolve(compose(["agent=dqn"])).agent.config
    observation = gym.spaces.Box(-1, 1, (3,), np.float32)
    DQN.check(config, Spaces(observation, gym.spaces.Discrete(3), 1))
    with refused("unsupported", "agent", "agent=dqn", fits):
        DQN.check(config, Spaces(observation, actions, 1))


def test_a_network_that_cannot_read_the_observations_is_refused_before_it_is_built() -> None:
    config = resolve(compose(["agent=dqn", "agent/network=nature_cnn"])).agent.config
    with refused("unsupported", "agent.network.torso"):
        DQN.check(config, Spaces(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3), 1))


@pytest.mark.parametrize("agent", ["c51", "rainbow"])
def test_an_agent_that_does_not_fit_is_not_asked_for_its_values(agent: str, tmp_path: Path) -> None:
    """The first message asked for v_min; that the agent needs discrete actions came after it."""
    with refused("unsupported", "agent", f"agent={agent}", "agent=ppo") as error:
        labrl.train([f"agent={agent}", "env=pendulum", f"hydra.run.dir={tmp_path / 'run'}"])
    assert len(error.value.mistakes) == 1
    with refused("missing", "agent.value.v_min"):
        labrl.train(
            [f"agent={agent}", "env=gymnasium", "env.id=MountainCar-v0", f"hydra.run.dir={tmp_path / 'run'}"]
        )
    assert not (tmp_path / "run").exists()


def test_a_pair_that_does_not_fit_leaves_the_other_trials_of_a_grid(tmp_path: Path) -> None:
    """A value that only the other environment needs was asked for, and no trial ran."""
    quick = ["env.max_frame=200", "agent.learning_starts=100", "agent.batch_size=32", *QUIET, "seed=1"]
    grid = ["agent=c51", "env=cartpole,pendulum", "hydra/launcher=basic", f"hydra.sweep.dir={tmp_path / 'e'}"]
    assert main(["-m", *quick, *grid]) == WRONG_INPUT
    assert [path.parent.name for path in tmp_path.glob("e/*/run.json")] == ["0_c51_cartpole"]


def test_an_agent_of_a_search_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", "hydra/sweeper=optuna", "agent=c51", "env=pendulum", "agent.lr=interval(1e-4,1e-3)"]
    assert main([*words, f"hydra.sweep.dir={tmp_path / 'e'}"]) == WRONG_INPUT
    said = capsys.readouterr().err
    assert "agent=ppo" in said
    assert "v_min" not in said
