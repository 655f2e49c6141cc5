"""Tests of torch.compile: compiled networks learn the same, and a missing compiler is reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from exact_cases import QUIET, rows

import labrl
from labrl.cli import main

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


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler: apt-get install g++")
@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo", "agent.horizon=16", "agent.batch_size=32", "env.max_frame=64"],
        ["agent=dqn", "agent.learning_starts=20", "agent.batch_size=8", "env.max_frame=80"],
    ],
)
def test_compiled_networks_learn_the_same(overrides: list[str], tmp_path: Path) -> None:
    """Compare short runs, in which rounding changes no action."""
    found = []
    for compiled in ("true", "false"):
        folder, kept = tmp_path / compiled, ["env=cartpole", "env.num_envs=4", "meta.log_frequency=1e6"]
        more = [*QUIET, *kept, "meta.device=cpu", f"meta.compile={compiled}", f"hydra.run.dir={folder}"]
        assert labrl.train([*overrides, *more]).sessions[0].opt_step > 0
        (row,) = rows(folder / "session_0" / "train.csv")
        found.append({name: float(cell or "nan") for name, cell in row.items() if name != "end"})
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-5, nan_ok=True)
