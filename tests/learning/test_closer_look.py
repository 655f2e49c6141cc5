"""Tests of norms, histograms and the gradient noise scale: correct values and no influence on training."""

from __future__ import annotations

import math
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from exact_cases import QUIET, rows, small, state, unequal
from options import options
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from labrl.agents.make import named_agents
from labrl.cli import main
from labrl.clock import Clock
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.learning import noise_scale
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.learning.make import make_learner
from labrl.learning.noise_scale import NoiseScales
from labrl.learning.optimizers import Adam, Optimizer
from labrl.seeding import Streams
from labrl.session.callbacks.closer_look import weights
from labrl.spaces import Spaces

AGENTS = sorted(path.stem for path in (config_folder() / "agent").glob("*.yaml"))
RANGE = ("agent.value.v_min=-1", "agent.value.v_max=1")
NEEDED = {"c51": RANGE, "rainbow": RANGE}
"""Overrides for options without a default, by agent."""
CLOSE = ["meta.log=histograms", "meta.gradient_noise=true", "meta.tensorboard=true"]


def run(folder: Path, *overrides: str) -> Path:
    assert main([*overrides, f"hydra.run.dir={folder}"]) == 0
    return folder / "session_0"


def short(agent: str, task: str) -> list[str]:
    frames = ["env.max_frame=640", "meta.log_frequency=80", "meta.eval_frequency=320"]
    return [*(override for override in small(agent, task) if override != "meta.tensorboard=false"), *frames]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("agent", "task"),
    [
        ("ppo", "cartpole"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in [("dqn", "cartpole"), ("sac", "pendulum")]),
    ],
)
def test_closer_look_adds_columns_and_histograms_without_side_effects(
    agent: str, task: str, tmp_path: Path
) -> None:
    overrides = short(agent, task)
    plain = run(tmp_path / "plain", *overrides, "meta.tensorboard=false")
    close = run(tmp_path / "close", *overrides, *CLOSE)
    assert unequal(state(plain), state(close)) == []
    few, many = rows(plain / "train.csv"), rows(close / "train.csv")
    assert [{name: row[name] for name in few[0]} for row in many] == few

    added = set(many[0]) - set(few[0])
    assert "noise_scale" in added
    norms = {
        kind: [name for name in added if name.startswith(f"{kind}_norm/")] for kind in ("weight", "grad")
    }
    total = math.hypot(*(float(many[-1][name]) for name in norms["grad"]))
    assert total > 0, "all gradients are zero"
    if agent == "ppo":
        whole = math.hypot(*(float(many[-1][name]) for name in norms["weight"]))
        assert whole == pytest.approx(float(many[-1]["weight_norm"]), rel=1e-5)
        assert len(norms["grad"]) == len(norms["weight"])

    events = EventAccumulator(str(close / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()["histograms"]
    kinds = {tag.partition("/")[0] for tag in tags}
    assert {"weights", "gradients", "outputs", "actions"} <= kinds
    if agent == "ppo":
        assert {"policy/probability", "outputs/actor_critic/policy_head"} <= set(tags)
        actions = events.Histograms("actions")
        assert [found.step for found in actions] == [int(row["frame"]) for row in many]
        assert [sum(found.histogram_value.bucket) for found in actions] == [80] * len(actions)
        filled = [count for count in actions[0].histogram_value.bucket if count]
        assert len(filled) == 2, "the histogram does not have one bucket per action"


@pytest.mark.extended
def test_output_histograms_exist_in_reduced_precision(tmp_path: Path) -> None:
    overrides = ["meta.precision=bf16", "env.num_envs=1", "agent.horizon=16", "agent.batch_size=16"]
    overrides += ["env.image_size=52"]  # just large enough for a rounded copy of the matrix
    frames = ["env.max_frame=32", "meta.log_frequency=16", "meta.max_session=1", "wandb=disabled"]
    folder = run(tmp_path / "run", "agent=ppo", "env=pong", *overrides, *frames, *CLOSE)
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    torso = "outputs/actor_critic/policy_torso"
    assert {torso, f"{torso}.0.convolutions.2", f"{torso}.0.linear.1"} <= set(events.Tags()["histograms"])


@pytest.mark.extended
def test_norms_and_noise_scale_of_resumed_run_equal_uninterrupted_run(tmp_path: Path) -> None:
    overrides = [
        *short("ppo", "cartpole"),
        *CLOSE,
        "meta.log=norms",
        "meta.tensorboard=false",
        "meta.log_frequency=40",
    ]
    uninterrupted = run(tmp_path / "uninterrupted", *overrides)
    resumed = run(tmp_path / "resumed", *overrides, "env.max_frame=360")
    assert main([f"+resume={resumed.parent}", "env.max_frame=640"]) == 0
    assert rows(resumed / "train.csv") == rows(uninterrupted / "train.csv")


class Linear(nn.Module):
    """Ten weights, whose gradients the test chooses through `linear_loss`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10))


def linear_loss(module: Linear, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return a loss whose gradient is the mean of `gradient`. [units, samples, 10]"""
    value = (gradient @ module.weight).mean()
    return value, value.detach().reshape(1)


def adam(flat: FlatParameters) -> Optimizer:
    return Adam(options("agent.optimizer", "agent=a2c agent/optimizer=adam"), [flat.vector], None)


@pytest.mark.extended
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(("each", "size"), [(1, 1.0), (4, 1e-22)], ids=["samples", "small sequences"])
def test_noise_scale_equals_that_of_gradients_with_known_noise(
    each: int, size: float, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_scale, "EVERY", 2)
    monkeypatch.setattr(noise_scale, "RATE", 0.004)
    scales, generator = NoiseScales(), torch.Generator().manual_seed(0)
    compute = Compute(torch.device("cpu"), torch.float32, num_workers, noise=scales)
    image, two = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8), gym.spaces.Discrete(2)
    learner = make_learner(Linear(), Spaces(image, two, 1), compute, adam)
    assert math.isnan(scales.metrics()["noise_scale"])
    for _ in range(1500):
        gradient = size * (0.5 + 2.0 * torch.randn(32, 10, generator=generator))  # [samples, 10]
        learner.gradient(linear_loss, gradient.view(32 // each, each, 10), samples=each)
        torch.testing.assert_close(learner.flat.gradient[:10], gradient.mean(0))
    expected = 10 * 2.0**2 / (10 * 0.5**2)
    assert scales.metrics()["noise_scale"] == pytest.approx(expected, rel=0.15)
    learner.close()


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["meta.log=histograms", "meta.tensorboard=false"], "meta.log=norms"),
        (["agent=crossq", "meta.gradient_noise=true"], "meta.gradient_noise=false"),
    ],
)
def test_unsupported_closer_look_is_rejected(
    overrides: list[str], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = [override for override in QUIET if override != "meta.tensorboard=false"]
    assert main([*quiet, *overrides, f"hydra.run.dir={tmp_path / 'run'}"]) == 2
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize("agent", AGENTS)
def test_all_weights_and_biases_of_each_agent_have_a_histogram(agent: str) -> None:
    config = resolve(compose([f"agent={agent}", "env=acrobot", "preset=none", *NEEDED.get(agent, ())])).agent
    kind = "Discrete" if gym.spaces.Discrete in named_agents()[agent].TRAITS.actions else "Box"
    action = gym.spaces.Discrete(3) if kind == "Discrete" else gym.spaces.Box(-1, 1, (2,), np.float32)
    built = config.build(
        spaces=Spaces(gym.spaces.Box(-1, 1, (3,), np.float32), action, 2),
        clock=Clock(1000),
        streams=Streams(0),
        compute=Compute.choose("cpu", "fp32", 1),
    )
    learned = {
        f"{network}/{name}": weight.numel()
        for network, module in built.modules().items()
        for name, weight in module.named_parameters()
    }
    assert {name: values.size for name, values in weights(built).items()} == learned
    assert any("bias" in name for name in learned) or agent == "random"
