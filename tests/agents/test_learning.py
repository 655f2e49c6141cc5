"""Tests that PPO learns: a small task, and the published tasks under `make learn` because they take long."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import labrl
from labrl.run.session import SessionResult

pytestmark = pytest.mark.extended

QUIET = ["meta.progress=false", "meta.tensorboard=false"]


class Match(gym.Env):
    """Environment that shows the right answer, which pays 1, in each of ten steps; random play returns 5."""

    observation_space = gym.spaces.Discrete(2)

    def __init__(self, continuous: bool) -> None:
        self.continuous = continuous
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action: np.ndarray) -> tuple[int, float, bool, bool, dict]:
        answer = int(action[0] > 0) if self.continuous else int(action)
        reward = float(answer == self.shown)
        self.steps += 1
        return self._show(), reward, self.steps == 10, False, {}

    def _show(self) -> int:
        self.shown = int(self.np_random.integers(2))
        return self.shown


@pytest.mark.parametrize(
    ("continuous", "shared"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.matrix),
        pytest.param(True, True, marks=pytest.mark.matrix),
    ],
)
def test_ppo_learns_a_task_with_a_known_best_return(continuous: bool, shared: bool, tmp_path: Path) -> None:
    overrides = [
        "env=gymnasium",
        "env.id=null",
        "env.name=match",
        "+env.make._target_=test_learning.Match",
        "env.num_envs=4",
    ]
    overrides += [
        f"+env.make.continuous={continuous}",
        "env.max_frame=8000",
        "agent.horizon=64",
        "agent.lr=3e-3",
    ]
    overrides += [
        f"agent.network.shared={shared}",
        "agent.batch_size=64",
        "seed=1",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    result = labrl.train([*QUIET, *overrides], config_dir=Path(__file__).parent)
    assert result.return_mean is not None
    assert result.return_mean > 9


def final(env: str, seed: int, folder: Path) -> SessionResult:
    result = labrl.train([*QUIET, f"env={env}", f"seed={seed}", f"hydra.run.dir={folder}"])
    assert result.exit_code == 0
    return result.sessions[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("env", "frames", "minimum"),
    [
        ("cartpole", 1e5, 475),
        ("acrobot", 3e5, -90),
        ("pendulum", 3e5, -200),
        ("lunar_lander", 1e6, 200),
    ],
)
def test_ppo_reaches_the_published_score(
    env: str, frames: float, minimum: float, seed: int, tmp_path: Path
) -> None:
    """Train with the presets; the score is the mean return of the last 100 training episodes."""
    session = final(env, seed, tmp_path / "run")
    assert session.frame <= frames + 32
    assert session.return_mean is not None
    assert session.return_mean >= minimum
