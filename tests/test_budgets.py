"""A session ends with the first of its budgets and goes on with a larger one; frequencies may be shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

import labrl
from labrl.cli import main
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.storage.tables import read_rows

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=1"]
SMALL = [*QUIET, "agent.horizon=16", "agent.batch_size=64", "agent.epochs=2", "env.num_envs=8"]
UPDATES = 4
"""Updates of one rollout of 128 frames."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 9))
def test_the_budget_that_is_spent_first_ends_the_session(frames: int, updates: int, per_tick: int) -> None:
    clock = Clock(frames, updates)
    while not clock.finished:
        clock.opt_step += per_tick
        clock.tick(3)
    before = (clock.frame - 3, clock.opt_step - per_tick)
    assert before[0] < frames
    assert before[1] < updates
    assert clock.frame >= frames or clock.opt_step >= updates


def test_time_ends_a_session_at_a_tick_and_never_between_two() -> None:
    clock = Clock(10, max_wall=1e-9)
    clock.start()
    assert clock.wall > 1e-9
    assert not clock.finished
    clock.tick(1)
    assert clock.finished
    assert clock.due(1000)


def test_updates_end_a_run_and_more_of_them_go_on_as_if_it_had_never_ended() -> None:
    once = labrl.train([*SMALL, f"meta.max_opt_step={3 * UPDATES}", "hydra.run.dir=once"])
    assert (once.sessions[0].opt_step, once.sessions[0].frame) == (3 * UPDATES, 3 * 128)
    first = labrl.train([*SMALL, f"meta.max_opt_step={2 * UPDATES}", "hydra.run.dir=runs/twice"])
    assert first.sessions[0].frame == 2 * 128
    assert main(["+resume=runs/twice", f"meta.max_opt_step={3 * UPDATES}"]) == 0
    pair = [read_rows(Path(run) / "session_0" / "train.csv")[-1] for run in ("once", "runs/twice")]
    for row in pair:
        del row["wall"], row["fps"]
    assert pair[0] == pair[1]


def test_the_updates_of_the_last_rollout_are_all_made_and_that_is_said() -> None:
    result = labrl.train([*SMALL, f"meta.max_opt_step={UPDATES - 1}", "hydra.run.dir=runs/one"])
    assert (result.sessions[0].opt_step, result.sessions[0].frame) == (UPDATES, 128)
    log = Path("runs/one/session_0/session.log").read_text()
    assert f"meta.max_opt_step={UPDATES - 1}" in log


def test_a_run_that_updates_ended_says_which_budget_to_raise(capsys: pytest.CaptureFixture[str]) -> None:
    labrl.train([*SMALL, f"meta.max_opt_step={UPDATES}", "hydra.run.dir=runs/one"])
    assert main(["+resume=runs/one"]) == 2
    said = capsys.readouterr().err
    assert "meta.max_opt_step" in said
    assert str(UPDATES) in said


def test_seconds_end_a_run() -> None:
    result = labrl.train([*QUIET, "agent=random", "meta.max_wall=1e-6", "hydra.run.dir=runs/one"])
    assert result.exit_code == 0
    assert result.sessions[0].status == "finished"
    assert result.sessions[0].frame == 8


def test_a_frequency_may_be_a_share_of_the_budget() -> None:
    labrl.train(
        [*QUIET, "agent=random", "env.max_frame=800", "meta.log_frequency=1/5", "hydra.run.dir=runs/one"]
    )
    rows = read_rows(Path("runs/one/session_0/train.csv"))
    assert [row["frame"] for row in rows] == [160, 320, 480, 640, 800]


def test_a_share_of_a_small_budget_is_a_frame_at_least() -> None:
    config = resolve(compose(["agent=random", "env.max_frame=8", "meta.eval_frequency=1/1000"]))
    assert config.eval_frames == 1


@pytest.mark.parametrize("value", ["0", "-1", "3/2", "0/5", "1/0", "often", "0.5", "true", "null"])
def test_other_frequencies_are_refused(value: str) -> None:
    with refused(None, "meta.log_frequency", "1/20"):
        resolve(compose([f"meta.log_frequency={value}"]))


@pytest.mark.parametrize("value", ["early", "early:", "early:0", "early:often", "0"])
def test_a_refused_row_frequency_is_answered_with_both_forms(value: str) -> None:
    with refused(None, "meta.log_frequency", "early:10000"):
        resolve(compose([f"meta.log_frequency={value}"]))


@pytest.mark.parametrize("override", ["meta.max_opt_step=0", "meta.max_wall=0", "meta.max_wall=soon"])
def test_other_budgets_are_refused(override: str) -> None:
    with refused("type" if override.endswith("soon") else "range", override.split("=")[0]):
        resolve(compose([override]))
