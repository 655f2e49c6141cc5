"""Tests of `labrl-export`: the exported file takes the same actions as the policy, without labrl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from exact_cases import small

import labrl
from labrl.agents.agent import Observation
from labrl.cli import export_policy
from labrl.play.export import TOLERANCE, export

pytestmark = pytest.mark.extended

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text()

RUNS: dict[str, tuple[str, str, list[str]]] = {
    "ppo": ("ppo", "cartpole", []),
    "gauss": ("ppo", "pendulum", ["transforms/observation=normalize", "agent.action_bounds=squash"]),
    "lstm": ("recurrent_ppo", "cartpole", ["agent/network=lstm"]),
    "inputs": ("a2c", "lamp", []),
    # One long game: each start of a game takes as long as hundreds of steps.
    "rainbow": ("rainbow", "pong", ["env.image_size=44", "env.max_episode_frames=4000"]),
    "masks": ("dqn", "taxi", []),
    "beta": ("ppo", "pendulum", ["agent.action_bounds=beta"]),
    "sac": ("sac", "pendulum", []),
    "td3": ("td3", "pendulum", ["transforms/observation=normalize"]),
    "random": ("random", "cartpole", []),
}
"""Runs that cover every kind of head, network, observation and transform: agent, task, overrides."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the runs, each of which is trained when it is first used."""
    return tmp_path_factory.mktemp("runs")


def run_of(name: str, folder: Path) -> Path:
    """Return the folder of one of RUNS, after training it if necessary."""
    path = folder / name
    if not path.exists():
        frames = 100 if name in ("rainbow", "inputs") else 400
        agent, task, overrides = RUNS[name]
        overrides = [*small(agent, task), *overrides, f"env.max_frame={frames}", f"hydra.run.dir={path}"]
        assert labrl.train(overrides).exit_code == 0
    return path


@pytest.mark.parametrize("name", [name for name in RUNS if name != "random"])
def test_exported_file_takes_the_same_actions_as_the_policy(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(name, folder)
    assert export_policy([str(run), "--checkpoint", "latest"]) == 0, capsys.readouterr().err
    (path,) = (run / "exports").glob("*_greedy.onnx")
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["checked"]["largest_difference"] <= TOLERANCE
    assert facts["checked"]["observations"] > 0
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    sizes = {one["name"]: one["shape"][1:] for one in facts["inputs"]}
    assert [one.name for one in session.get_inputs()] == [*sizes]
    names = [one["name"] for one in facts["outputs"]]
    assert [one.name for one in session.get_outputs()] == names
    # Play by hand, and compare each action with that of the policy.
    policy = labrl.load(run, checkpoint="latest")
    env = policy.env()
    (observation, info), start, found = env.reset(seed=9), True, {}
    for _ in range(30):
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        inputs = {name: np.asarray(part)[None] for name, part in parts.items()}
        mask = info["action_mask"] if policy.spaces.masked else None
        if mask is not None:
            inputs["mask"] = mask[None]
        if "state" in sizes:
            inputs["state"] = np.zeros((1, *sizes["state"]), np.float32) if start else found["next_state"]
        found = dict(zip(names, session.run(None, inputs), strict=True))
        if start:
            policy.reset()
        expected = policy.act(observation, mask, greedy=True)
        assert found["action"].dtype == np.asarray(expected).dtype
        assert np.allclose(found["action"][0], expected, atol=1e-4)
        observation, _, terminated, truncated, info = env.step(found["action"][0])
        start = terminated or truncated
        if start:
            observation, info = env.reset()


@pytest.mark.parametrize("name", ["ppo", "gauss", "beta", "sac"])
def test_sampled_actions_follow_the_policy(name: str, folder: Path) -> None:
    path, _ = export(
        str(run_of(name, folder)), "torch", 0, "latest", sampled=True, out=folder / f"{name}.pt2"
    )
    module = torch.export.load(path).module()
    policy = labrl.load(run_of(name, folder), checkpoint="latest")
    policy.observation_space.seed(3)
    observation = np.stack([policy.observation_space.sample()] * 4000).clip(-5, 5)
    torch.manual_seed(0)
    drawn = module(torch.from_numpy(observation))[0].numpy()
    assert all(policy.action_space.contains(one) for one in drawn[:50])
    if name == "sac":  # it evaluates with its best actions and samples only in training
        expected: Any = policy.agent.act(Observation(policy.transforms.frozen(observation)))
    else:
        expected = policy.act(observation)
    assert np.allclose(drawn.mean(0), expected.mean(0), atol=0.1 * max(1.0, float(expected.std())))
    assert np.allclose(drawn.std(0), expected.std(0), atol=0.1 * max(1.0, float(expected.std())))
    assert drawn.std() > 0


def test_code_of_the_page_plays_the_file_without_labrl(folder: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    export(str(run_of("ppo", folder)), "onnx", 0, "latest", out=tmp_path / "policy.onnx")
    code += "\nimport sys\nassert not [name for name in sys.modules if name.startswith('labrl')]\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    policy = labrl.load(run_of("ppo", folder), checkpoint="latest")
    env, total, over = gymnasium.make("CartPole-v1"), 0.0, False
    observation, _ = env.reset(seed=0)
    while not over:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation, greedy=True))
        total, over = total + float(reward), terminated or truncated
    assert float(done.stdout) == total


def test_commands_of_the_page_run(folder: Path, tmp_path: Path) -> None:
    commands = re.findall(r"^    labrl-export (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for overrides in commands:
        given = [str(run_of("ppo", folder)) if one == "runs/mine" else one for one in overrides.split()]
        given = [str(tmp_path / override) if override.endswith(".pt2") else override for override in given]
        assert export_policy(given) == 0
    assert (tmp_path / "policy.json").exists()


def test_wrong_export_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ppo = run_of("ppo", folder)
    bare = tmp_path / "bare"
    shutil.copytree(ppo, bare)
    shutil.rmtree(bare / "session_0" / "checkpoints")
    wrong = {
        "nowhere": ["nowhere"],
        "checkpoint": [str(bare)],
        "td3_bc": [str(run_of("random", folder)), "--checkpoint", "latest"],
        "--sampled": [str(run_of("td3", folder)), "--checkpoint", "latest", "--sampled"],
        "--format": [str(ppo), "--format", "tflite"],
        "--session 4": [str(ppo), "--session", "4"],
        "/proc/none": [str(ppo), "--checkpoint", "latest", "--out", "/proc/none/policy.onnx"],
    }
    for named, overrides in wrong.items():
        capsys.readouterr()
        assert export_policy(overrides) == 2, overrides
        error = capsys.readouterr().err
        assert named in error
        assert "Traceback" not in error
    assert export_policy([]) == export_policy([str(ppo), "--greedy", "--sampled"]) == 2
