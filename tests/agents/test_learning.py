"""Tests that PPO reaches the published scores, which takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

import labrl
from labrl.run.session import SessionResult

QUIET = ["meta.progress=false", "meta.tensorboard=false"]


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
