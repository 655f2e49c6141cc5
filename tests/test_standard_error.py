"""Tests that experiments write nothing to standard error that labrl has not written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import start_labrl

pytestmark = pytest.mark.extended

OWN = """
import gymnasium
gymnasium.register("Own-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
"""

QUICK = [
    "agent=random",
    "env.num_envs=2",
    "env.max_frame=32",
    "seed=1",
    "wandb=disabled",
    "meta.report=false",
]

KINDS = {
    "atari": ["env=pong"],
    "atari by its id": ["env=gymnasium", "env.id=ALE/Pong-v5", "env.import_module=ale_py"],
    "mujoco": ["env=hopper", "env.max_frame=256", "meta.report=true"],  # with videos
    "own": ["env=gymnasium", "env.id=Own-v0", "env.import_module=own_env", "env.vectorization=async"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_experiment_of_each_kind_prints_nothing_that_labrl_did_not_write(tmp_path: Path, kind: str) -> None:
    """An experiment of two trials, with one session and with two."""
    (tmp_path / "own_env.py").write_text(OWN)
    with open(tmp_path / "stderr", "wb") as errors:
        command = start_labrl(
            *("-m", *QUICK, *KINDS[kind], "meta.max_session=1,2", "hydra.sweep.dir=e"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            stderr=errors.fileno(),
        )
        output, _ = command.communicate(timeout=300)
    assert command.returncode == 0, output
    written = (tmp_path / "stderr").read_text().splitlines()
    assert [line for line in written if "labrl: " not in line] == []


def test_emulators_of_gymnasium_are_freed_before_the_interpreter_exits(tmp_path: Path) -> None:
    """Regression test: the bindings of the ALE listed leaked objects."""
    run = [sys.executable, "-m", "labrl", *KINDS["atari by its id"], *QUICK]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
