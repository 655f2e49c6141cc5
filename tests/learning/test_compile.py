"""Tests of torch.compile: compiled networks learn the same, and a missing compiler is reported."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any

import numpy as np
import pytest

from labrl.agents.agent import Observation
from labrl.cli import main
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.envs.make import make_env
from labrl.learning.compute import Compute
from labrl.seeding import Streams
from labrl.spaces import Spaces

pytestmark = pytest.mark.extended

COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def test_missing_compiler_is_rejected_before_files_are_written(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    run = tmp_path / "run"
    assert main(["meta.compile=true", "meta.device=cpu", f"hydra.run.dir={run}"]) == 2
    error = capsys.readouterr().err
    assert "no-such-compiler" in error
    assert "meta.compile=false" in error
    assert not run.exists()


def learned(overrides: list[str], compiled: bool, steps: int) -> dict[str, float]:
    """Return an agent's metrics after `steps` vector steps.

    The environments get random actions instead of the agent's, so all runs see the same observations.
    """
    config = resolve(compose([*overrides, "seed=0"]))
    env = make_env(config.env, 0, 1)
    spaces, clock = Spaces(env.observation_space, env.action_space, env.num_envs), Clock(10**6)
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), compiled=compiled)
    agent = config.agent.build(spaces=spaces, clock=clock, streams=Streams(0), compute=compute)
    observation = env.reset()
    actions = np.random.default_rng(0)
    for _ in range(steps):
        agent.act(Observation(observation))
        step = env.step(actions.integers(2, size=env.num_envs))
        agent.observe(step)
        clock.opt_step += agent.learn()
        clock.tick(env.num_envs)
        observation = step.observation
    agent.close()
    env.close()
    assert clock.opt_step, "the agent made no update"
    return agent.metrics()


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler: apt-get install g++")
@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo", "env=cartpole", "agent.horizon=16", "agent.batch_size=64"],
        [
            "agent=dqn",
            "env=cartpole",
            "agent.learning_starts=20",
            "agent.batch_size=8",
            "agent.updates_per_frame=1",
        ],
    ],
)
def test_compiled_networks_learn_the_same(overrides: list[str]) -> None:
    plain, compiled = (learned(overrides, compiled, steps=40) for compiled in (False, True))
    assert compiled == pytest.approx(plain, rel=1e-4, abs=1e-5, nan_ok=True)
