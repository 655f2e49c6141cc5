"""Tests of budgets in frames, updates and seconds, and of frequencies given as a fraction of the budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import labrl
from labrl.cli import main
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.run.tables import read_rows

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=1"]
SMALL = [*QUIET, "agent.horizon=16", "agent.batch_size=64", "agent.epochs=2", "env.num_envs=8"]
SMALL += ["agent.network.torso.mlp.hidden=[8]"]
UPDATES = 4
"""Number of updates made from one rollout of 128 frames."""


pytestmark = pytest.mark.usefixtures("own_folder")


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 9))
def test_clock_finishes_with_the_budget_reached_first(frames: int, updates: int, per_tick: int) -> None:
    clock = Clock(frames, updates)
    while not clock.finished:
        clock.opt_step += per_tick
        clock.tick(3)
    before = (clock.frame - 3, clock.opt_step - per_tick)
    assert before[0] < frames
    assert before[1] < updates
    assert clock.frame >= frames or clock.opt_step >= updates


def test_clock_checks_the_wall_time_at_ticks_only() -> None:
    clock = Clock(10, max_wall=1e-9)
    clock.start()
    assert clock.wall > 1e-9
    assert not clock.finished
    clock.tick(1)
    assert clock.finished
    assert not clock.due(1000)


@pytest.mark.extended
def test_run_resumed_with_more_updates_equals_uninterrupted_run() -> None:
    uninterrupted = labrl.train([*SMALL, f"meta.max_opt_step={3 * UPDATES}", "hydra.run.dir=uninterrupted"])
    assert (uninterrupted.sessions[0].opt_step, uninterrupted.sessions[0].frame) == (3 * UPDATES, 3 * 128)
    first = labrl.train([*SMALL, f"meta.max_opt_step={2 * UPDATES}", "hydra.run.dir=runs/resumed"])
    assert first.sessions[0].frame == 2 * 128
    assert main(["+resume=runs/resumed", f"meta.max_opt_step={3 * UPDATES}"]) == 0
    pair = [read_rows(Path(run) / "session_0" / "train.csv")[-1] for run in ("uninterrupted", "runs/resumed")]
    for row in pair:
        del row["wall"], row["fps"]
    assert pair[0] == pair[1]


def test_last_rollout_is_used_fully_and_the_log_says_so() -> None:
    result = labrl.train([*SMALL, f"meta.max_opt_step={UPDATES - 1}", "hydra.run.dir=runs/one"])
    assert (result.sessions[0].opt_step, result.sessions[0].frame) == (UPDATES, 128)
    log = Path("runs/one/session_0/session.log").read_text()
    assert f"meta.max_opt_step={UPDATES - 1}" in log


def test_resume_of_run_that_spent_its_updates_names_max_opt_step(capsys: pytest.CaptureFixture[str]) -> None:
    labrl.train([*SMALL, f"meta.max_opt_step={UPDATES}", "hydra.run.dir=runs/one"])
    assert main(["+resume=runs/one"]) == 2
    error = capsys.readouterr().err
    assert "meta.max_opt_step" in error
    assert str(UPDATES) in error


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
