"""Tests of schedules: their values at each frame, and how they are typed, composed, recorded and refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from exact_cases import rows
from hypothesis import given
from hypothesis import strategies as st
from one_process import ONE_PROCESS

from labrl.cli import main
from labrl.config.compose import compose, resolve, to_plain
from labrl.config.keys import written
from labrl.errors import InputError
from labrl.schedules import (
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    Schedule,
    StepSchedule,
    expanded,
    largest,
    smallest,
    value_at,
)

LINEAR = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=100, warmup=0)
COSINE = CosineSchedule(kind="cosine", start=1.0, end=0.0, horizon=100, warmup=0)
EXPONENTIAL = ExponentialSchedule(kind="exponential", start=1.0, end=0.01, horizon=100, warmup=0)
STEP = StepSchedule(kind="step", start=1.0, factor=0.1, steps=2, horizon=100, warmup=0)
PIECEWISE = PiecewiseSchedule(kind="piecewise", points=[(10, 1.0), (20, 3.0), (40, 0.0)])


@pytest.mark.parametrize(
    ("schedule", "frame", "expected"),
    [
        (0.25, 10**9, 0.25),
        (LINEAR, 0, 1.0),
        (LINEAR, 25, 0.75),
        (LINEAR, 100, 0.0),
        (COSINE, 25, 0.5 * (1 + math.sqrt(0.5))),
        (EXPONENTIAL, 50, 0.1),
        (STEP, 49, 1.0),
        (STEP, 50, 0.1),
        (PIECEWISE, 0, 1.0),
        (PIECEWISE, 15, 2.0),
        (PIECEWISE, 30, 1.5),
        (PIECEWISE, 99, 0.0),
    ],
)
def test_schedule_values_match_those_computed_by_hand(schedule: object, frame: int, expected: float) -> None:
    assert value_at(schedule, frame) == pytest.approx(expected)  # type: ignore[arg-type]


def test_warmup_rises_from_zero_before_the_decay_begins() -> None:
    schedule = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=110, warmup=10)
    assert [value_at(schedule, frame) for frame in (0, 5, 10, 60, 110)] == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize("schedule", [LINEAR, COSINE, EXPONENTIAL, STEP, PIECEWISE])
@given(frame=st.integers(min_value=100, max_value=10**10))
def test_schedule_is_constant_after_its_horizon(schedule: object, frame: int) -> None:
    assert value_at(schedule, frame) == value_at(schedule, 100)  # type: ignore[arg-type]


def test_schedule_that_overflows_or_underflows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start \* factor \*\* steps"):
        StepSchedule(kind="step", start=1e-3, factor=1e200, steps=3, horizon=2000, warmup=0)
    with pytest.raises(ValueError, match="end / start"):
        ExponentialSchedule(kind="exponential", start=1e-300, end=1e300, horizon=1000, warmup=0)


def test_step_schedule_changes_exactly_at_its_frame() -> None:
    halved = StepSchedule(kind="step", start=1.0, factor=0.5, steps=100, horizon=1_000_000, warmup=0)
    for step in range(1, 101):
        assert value_at(halved, 10_000 * step) == 0.5**step
        assert value_at(halved, 10_000 * step - 1) == 0.5 ** (step - 1)


@pytest.mark.parametrize(
    "schedule",
    [
        0.5,
        LinearSchedule(kind="linear", start=1, end=-1, horizon=10, warmup=0),
        LinearSchedule(kind="linear", start=1, end=2, horizon=10, warmup=2),
        LinearSchedule(kind="linear", start=-1, end=-2, horizon=10, warmup=5),
        CosineSchedule(kind="cosine", start=2, end=1, horizon=10, warmup=0),
        StepSchedule(kind="step", start=1, factor=-2, steps=3, horizon=9, warmup=0),
        StepSchedule(kind="step", start=1, factor=2, steps=3, horizon=9, warmup=0),
        PiecewiseSchedule(kind="piecewise", points=[(0, 1.0), (5, -3.0), (9, 0.0)]),
    ],
    ids=str,
)
def test_smallest_and_largest_are_the_minimum_and_maximum_of_the_schedule(schedule: Schedule) -> None:
    values = [value_at(schedule, frame) for frame in range(12)]
    assert (smallest(schedule), largest(schedule)) == pytest.approx((min(values), max(values)))


FULL = "{kind: cosine, start: 1e-3, end: 0, horizon: 1e5}"
COSINE_LR = {"kind": "cosine", "start": 1e-3, "end": 0, "horizon": 1e5, "warmup": 0}
TINY = ["meta=dev", "env.max_frame=512", "agent.horizon=32", "wandb=disabled", "meta.report=false"]
PIECES = "{kind: piecewise, points: [[0, 1e-3], [1000, 0]]}"


def composed(*overrides: str, config_dir: Path | None = None) -> Any:
    """Return the value of agent.lr that `labrl <overrides>` records with a budget of 100000 frames."""
    plain = to_plain(compose(["env.max_frame=100000", *overrides], config_dir))
    resolve(plain)
    return plain["agent"]["lr"]


@pytest.mark.parametrize("before", ["3e-4", "linear:3e-4:0", PIECES])
@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_schedule_override_replaces_a_number_or_another_schedule(before: str, sign: str) -> None:
    sign = "++" if sign == "+" and before == "3e-4" else sign
    assert composed("preset=none", f"agent.lr={before}", f"{sign}agent.lr={FULL}") == COSINE_LR
    assert set(composed(f"agent.lr={before}", f"agent.lr={PIECES}")) == {"kind", "points"}
    assert composed(f"agent.lr={before}", "agent.lr=1e-4") == 1e-4


def test_schedule_override_replaces_that_of_a_preset_or_experiment_file(tmp_path: Path) -> None:
    changed = composed("env=pendulum", "agent.lr.start=5e-4", "agent.lr.warmup=100")
    assert (changed["kind"], changed["start"], changed["warmup"]) == ("linear", 5e-4, 100)
    assert composed("env=pendulum", f"agent.lr={FULL}") == COSINE_LR
    (tmp_path / "experiment").mkdir()
    for name, lr in {"pieces": PIECES, "short": "linear:1e-3:0", "partial": "{start: 5e-4}"}.items():
        file = tmp_path / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\nagent:\n  lr: {lr}\n")
    overrides = ("env=pendulum", "experiment=pieces")
    assert set(composed(*overrides, config_dir=tmp_path)) == {"kind", "points"}
    assert composed(*overrides, f"agent.lr={FULL}", config_dir=tmp_path) == COSINE_LR
    short = composed("env=pendulum", "experiment=short", "agent.lr.end=1e-4", config_dir=tmp_path)
    assert short == {"kind": "linear", "start": 1e-3, "end": 1e-4, "horizon": 100000, "warmup": 0}
    partial = composed("env=pendulum", "experiment=partial", config_dir=tmp_path)
    assert (partial["kind"], partial["start"], partial["horizon"]) == ("linear", 5e-4, 100000)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("cosine:.5:1.:20:10", {"kind": "cosine", "start": 0.5, "end": 1, "horizon": 20, "warmup": 10}),
        (
            "exponential:1E-3:1e-5",
            {"kind": "exponential", "start": 1e-3, "end": 1e-5, "horizon": 100000, "warmup": 0},
        ),
        (
            "'linear:1:0:${labrl.budget:0.3}:50'",
            {"kind": "linear", "start": 1, "end": 0, "horizon": 30000, "warmup": 50},
        ),
    ],
)
def test_short_form_is_recorded_with_all_keys(text: str, full: dict[str, Any]) -> None:
    assert expanded(written(full)) == full
    assert composed("env.num_envs=8", f"agent.lr={text}") == full
    assert composed("env.num_envs=8", f"agent.lr={text}", "agent.lr.start=0.25") == {**full, "start": 0.25}


def test_adapted_rate_is_recorded_with_all_keys() -> None:
    usual = {"factor": 1.5, "min": 1e-6, "max": 1e-2}
    full = {"kind": "kl", "rate": 3e-4, "target": 0.01, **usual}
    assert composed("agent.lr={kind: kl, rate: 3e-4, target: 0.01}") == full
    assert composed("agent.lr={kind: kl, rate: 1e-4, target: 1}", f"agent.lr={written(full)}") == full


@pytest.mark.extended
def test_resume_may_change_an_adapted_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, "preset=none", "agent.lr={kind: kl, rate: 1e-3, target: 0.01}", "seed=1"]) == 0
    longer = ["+resume=latest", "env.max_frame=768"]
    assert main([*longer, "agent.lr.target=0.1"]) == 2
    assert main([*longer, "agent.lr.rate=1e-5"]) == 0
    (run,) = Path("runs").iterdir()
    assert yaml.safe_load((run / "config.yaml").read_text())["agent"]["lr"]["rate"] == 1e-5
    last = rows(run / "session_0" / "train.csv")[-1]
    assert last["frame"] == "768"
    assert 1e-6 <= float(last["lr"]) <= 1e-5 * 1.5**8


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (["agent.lr=linear:1e-3"], "type", "agent.lr"),
        (["agent.lr=linear:1e-3:0:0"], "range", "agent.lr.horizon"),
        (["agent.lr=exponential:1e-3:0"], "range", "agent.lr.end"),
        (["agent.lr=linear:1e-3:-1"], "range", "agent.lr"),
        (["agent.lr={kind: cosine}"], "missing", "agent.lr.start"),
        (["env=pendulum", "agent.lr={kind: step, values: [1]}"], "unknown-key", "agent.lr.values"),
        (["agent.lr={kind: kl, rate: 1, target: 0.01}"], "contradiction", "agent.lr"),
        (["agent=a2c", "agent.lr={kind: kl, rate: 3e-4, target: 0.01}"], "unknown-option", "agent.lr"),
        (["agent.clip_range={kind: kl, rate: 3e-4, target: 1}"], "unknown-option", "agent.clip_range"),
    ],
)
def test_wrong_schedule_is_refused_with_its_key(overrides: list[str], code: str, key: str) -> None:
    with pytest.raises(InputError) as error:
        composed(*overrides)
    assert (error.value.code, error.value.key) == (code, key)


def test_network_part_with_a_kind_is_merged_but_a_pruner_is_replaced() -> None:
    recurrent = to_plain(compose(["agent=recurrent_ppo", "agent/network=lstm"]))["agent"]["network"]["torso"]
    assert (recurrent["kind"], "hidden_size" in recurrent) == ("lstm", True)
    pruner = "{kind: median, n_startup_trials: 3, n_warmup_steps: 1}"
    typed = resolve(compose([f"search.pruner={pruner}"])).search.pruner
    assert vars(typed) == {"kind": "median", "n_startup_trials": 3, "n_warmup_steps": 1}


@pytest.mark.extended
def test_grid_can_sweep_over_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    swept = f"agent.lr=linear:3e-4:0,1e-3,{PIECES}"
    assert main(["-m", *TINY, swept, f"agent.clip_range={FULL}", ONE_PROCESS]) == 0
    (experiment,) = Path("runs").iterdir()
    configs = [yaml.safe_load(path.read_text()) for path in sorted(experiment.glob("*/config.yaml"))]
    assert [config["agent"]["clip_range"] for config in configs] == [COSINE_LR] * 3
    linear, number, pieces = (config["agent"]["lr"] for config in configs)
    assert linear == {"kind": "linear", "start": 3e-4, "end": 0, "horizon": 512, "warmup": 0}
    assert number == 1e-3
    assert set(pieces) == {"kind", "points"}


@pytest.mark.extended
def test_resume_compares_a_short_form_by_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, "preset=none", "agent.lr=linear:3e-4:0"]) == 0
    (run,) = Path("runs").iterdir()
    own = {"kind": "linear", "start": 3e-4, "end": 0, "horizon": 512, "warmup": 0}
    assert main(["+resume=latest", "meta.max_session=2", "agent.lr=linear:3e-4:0:512"]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["agent"]["lr"] == own
    assert main(["+resume=latest", "env.max_frame=1024"]) == 2  # It would stay 0.
    assert main(["+resume=latest", "env.max_frame=1024", f"agent.lr={PIECES}"]) == 0
    recorded = yaml.safe_load((run / "config.yaml").read_text())["agent"]["lr"]
    assert recorded["parts"] == [[0, own], [512, {"kind": "piecewise", "points": [[0, 1e-3], [1000, 0]]}]]
