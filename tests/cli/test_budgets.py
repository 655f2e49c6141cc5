"""Tests of budgets in frames, updates and seconds, and of frequencies given as a fraction of the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

import labrl
from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.errors import WRONG_INPUT
from labrl.run.tables import read_rows

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=1"]
SMALL = [*QUIET, "agent.horizon=16", "agent.batch_size=64", "agent.epochs=2", "env.num_envs=8"]
SMALL += ["agent.network.torso.mlp.hidden=[8]"]
UPDATES = 4
"""Number of updates made from one rollout of 128 frames."""


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.extended
def test_run_resumed_with_more_updates_equals_uninterrupted_run(capsys: pytest.CaptureFixture[str]) -> None:
    uninterrupted = labrl.train([*SMALL, f"meta.max_opt_step={3 * UPDATES}", "hydra.run.dir=uninterrupted"])
    assert (uninterrupted.sessions[0].opt_step, uninterrupted.sessions[0].frame) == (3 * UPDATES, 3 * 128)
    # The second rollout is used fully.
    first = labrl.train([*SMALL, f"meta.max_opt_step={2 * UPDATES - 1}", "hydra.run.dir=runs/resumed"])
    assert (first.sessions[0].opt_step, first.sessions[0].frame) == (2 * UPDATES, 2 * 128)
    assert f"meta.max_opt_step={2 * UPDATES - 1}" in Path("runs/resumed/session_0/session.log").read_text()
    assert main(["+resume=runs/resumed"]) == WRONG_INPUT
    assert "meta.max_opt_step" in capsys.readouterr().err
    assert main(["+resume=runs/resumed", f"meta.max_opt_step={3 * UPDATES}"]) == 0
    pair = [read_rows(Path(run) / "session_0" / "train.csv")[-1] for run in ("uninterrupted", "runs/resumed")]
    for row in pair:
        del row["wall"], row["fps"]
    assert pair[0] == pair[1]


def test_run_finishes_when_max_wall_is_reached() -> None:
    result = labrl.train([*QUIET, "agent=random", "meta.max_wall=1e-6", "hydra.run.dir=runs/one"])
    assert result.exit_code == 0
    assert result.sessions[0].status == "finished"
    assert result.sessions[0].frame == 8


@pytest.mark.extended
def test_log_frequency_as_a_fraction_of_the_budget() -> None:
    labrl.train(
        [*QUIET, "agent=random", "env.max_frame=800", "meta.log_frequency=1/5", "hydra.run.dir=runs/one"]
    )
    rows = read_rows(Path("runs/one/session_0/train.csv"))
    assert [row["frame"] for row in rows] == [160, 320, 480, 640, 800]


def test_fraction_of_a_small_budget_is_at_least_one_frame() -> None:
    config = resolve(compose(["agent=random", "env.max_frame=8", "meta.eval_frequency=1/1000"]))
    assert config.eval_frames == 1
