"""Tests of the MuJoCo tasks: all of Gymnasium's are available, have presets, and resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from exact_cases import rows, state, unequal

import labrl
from labrl.config import config_folder
from labrl.config.compose import compose, origins, resolve
from labrl.envs.make import describe

pytestmark = pytest.mark.extended

TASKS = {
    file.stem: yaml.safe_load(file.read_text())["id"]
    for file in (config_folder() / "env").glob("*.yaml")
    if "the extra mujoco" in file.read_text()
}
QUIET = ["meta.progress=false", "meta.tensorboard=false", "meta.report=false", "wandb=disabled", "seed=5"]


def test_all_mujoco_tasks_of_gymnasium_are_available() -> None:
    known = {
        spec.id
        for spec in gym.registry.values()
        if "envs.mujoco" in str(spec.entry_point) and spec.version == 5 and spec.namespace is None
    }
    assert set(TASKS.values()) == known


AGENTS = ("ppo", "sac", "tqc", "td3", "crossq")
WITH_OWN_PRESETS = {task for task in TASKS if (config_folder() / "preset" / f"{task}.yaml").exists()}


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_has_presets(task: str) -> None:
    for agent in AGENTS:
        found = origins("agent", [f"agent={agent}", f"env={task}"]).values()
        assert any(one.endswith(f"mujoco.yaml, section {agent}") for all_ in found for one, _ in all_)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=() if task in {"ant", *WITH_OWN_PRESETS} else pytest.mark.matrix)
        for task in sorted(TASKS)
    ],
)
def test_presets_of_a_task_compose(task: str) -> None:
    for agent in AGENTS:
        resolve(compose([f"agent={agent}", f"env={task}"]))


@pytest.mark.parametrize("task", sorted(TASKS))
def test_experiment_of_a_task_composes(task: str) -> None:
    recipe: Any = compose([f"experiment=slm_lab/{task}", "agent=ppo"])
    assert (recipe.env.id, recipe.env.num_envs, recipe.meta.max_session) == (TASKS[task], 16, 4)
    assert resolve(recipe).env.config.max_frame in (4_000_000, 10_000_000)


def test_preset_of_a_task_takes_precedence_over_that_of_all_tasks() -> None:
    assert compose(["env=swimmer"]).agent.gamma == 0.9999
    assert compose(["env=hopper"]).agent.gamma == 0.99


@pytest.mark.parametrize("task", sorted(TASKS))
def test_spaces_equal_those_of_gymnasium(task: str) -> None:
    pytest.importorskip("mujoco")
    observation, action = describe(resolve(compose([f"env={task}"])).env)
    env = gym.make(TASKS[task])
    assert action == env.action_space
    assert observation.shape == env.observation_space.shape


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_resumed_run_equals_an_uninterrupted_one(agent: str, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    small = {
        "ppo": ["agent.horizon=32", "agent.batch_size=32", "env.num_envs=2"],
        "sac": ["agent.learning_starts=60", "agent.batch_size=8", "agent.memory.capacity=512"],
    }[agent]
    overrides = [f"agent={agent}", "env=hopper", "agent.lr=1e-3", "meta.log_frequency=50", *small, *QUIET]
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    for folder, budget in ((uninterrupted, 300), (resumed, 170)):
        done = labrl.train([*overrides, f"env.max_frame={budget}", f"hydra.run.dir={folder}"])
        assert done.exit_code == 0
    assert labrl.train([f"+resume={resumed}", "env.max_frame=300"]).exit_code == 0
    assert rows(uninterrupted / "session_0/train.csv")[-1] == rows(resumed / "session_0/train.csv")[-1]
    assert unequal(state(uninterrupted / "session_0"), state(resumed / "session_0")) == []
