"""Tests of configuration types: valid values are accepted, others are refused with their full key."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.errors import InputError, answer_to
from labrl.schedules import LinearSchedule
from labrl.types import (
    NonNegativeInt,
    NonNegativeSchedule,
    PositiveFloat,
    PositiveInt,
    Probability,
    Schedule,
)


@dataclass(kw_only=True)
class Inner:
    size: PositiveInt = 8


@dataclass(kw_only=True)
class PartConfig:
    needed: PositiveInt
    count: NonNegativeInt = 0
    rate: PositiveFloat = 1.0
    chance: Probability = 0.5
    real: float = 0.0
    mode: Literal["fast", "slow"] = "fast"
    on: bool = True
    sizes: list[PositiveInt] = field(default_factory=list)
    lr: Schedule = 0.1
    clip: Schedule | None = None
    bound: NonNegativeSchedule | None = None
    inner: Inner = field(default_factory=Inner)
    inners: list[Inner] = field(default_factory=list)
    either: PositiveFloat | Inner = 1.0
    part: Component | None = None
    parts: dict[str, Component | None] = field(default_factory=dict)


class Part:
    Config = PartConfig

    def __init__(self, config: PartConfig, runtime: str) -> None:
        self.config, self.runtime = config, runtime


def plain_part(runtime: str, width: int = 3) -> tuple[str, int]:
    return runtime, width


PART = f"{__name__}.Part"
PLAIN = f"{__name__}.plain_part"


def parsed(**settings: Any) -> PartConfig:
    return dataclass_of(Component, {"_target_": PART, "needed": 1, **settings}, "agent").config


def refused(**settings: Any) -> InputError:
    with pytest.raises(InputError) as error:
        parsed(**settings)
    return error.value


@pytest.mark.parametrize(
    ("wrong", "code", "key"),
    [
        ({"count": True}, "type", "count"),
        ({"count": "3"}, "type", "count"),
        ({"count": -1}, "range", "count"),
        ({"count": 2**63}, "range", "count"),
        ({"real": -1e300}, "range", "real"),
        ({"rate": float("nan")}, "type", "rate"),
        ({"chance": 1.1}, "range", "chance"),
        ({"real": False}, "type", "real"),
        ({"mode": "fastt"}, "unknown-option", "mode"),
        ({"on": 1}, "type", "on"),
        ({"sizes": [1, 0]}, "range", "sizes[1]"),
        ({"lr": "fast"}, "type", "lr"),
        ({"lr": {"kind": "linear", "start": 1, "end": 0}}, "missing", "lr.horizon"),
        ({"lr": {"kind": "linea", "start": 1, "end": 0, "horizon": 1}}, "unknown-option", "lr"),
        ({"lr": {"kind": "linear", "start": 1, "ende": 0, "horizon": 1}}, "unknown-key", "lr.ende"),
        ({"lr": {"kind": "piecewise", "points": [[5, 1.0], [5, 2.0]]}}, "contradiction", "lr"),
        ({"lr": {"kind": "linear", "start": 1, "end": 0, "horizon": 1, "warmup": 2}}, "contradiction", "lr"),
        ({"inners": [{"size": 1}, {"sise": 1}]}, "unknown-key", "inners[1].sise"),
        ({"either": {"sise": 1}}, "unknown-key", "either.sise"),
        ({"either": -1}, "range", "either"),
        ({"part": {"width": 3}}, "type", "part"),
        ({"part": {"_target_": "labrl.nothing.Here"}}, "target", "part._target_"),
        ({"part": {"_target_": PART, "needed": 1, "parts": {"a": 1}}}, "type", "part.parts.a"),
        ({"parts": {"needed": {"_target_": PLAIN, "widht": 1}}}, "unknown-key", "parts.needed.widht"),
    ],
)
def test_wrong_type_or_range_is_refused_with_the_full_key(wrong: dict[str, Any], code: str, key: str) -> None:
    error = refused(**wrong)
    assert (error.code, error.key) == (code, f"agent.{key}")


def test_all_mistakes_are_reported_at_once() -> None:
    error = refused(count=-1, rate=0, parts={"a": {"_target_": PART, "needed": 1, "rat": 2}})
    assert [(mistake.code, mistake.key) for mistake in error.mistakes] == [
        ("range", "agent.count"),
        ("range", "agent.rate"),
        ("unknown-key", "agent.parts.a.rat"),
    ]
    assert "agent.parts.a.rate" in error.mistakes[2].message  # the nearest key


def test_scientific_notation_is_accepted_for_integers() -> None:
    count = parsed(count=1e7).count
    assert (count, type(count)) == (10_000_000, int)


def test_schedule_may_be_a_number_a_mapping_or_a_string() -> None:
    config = parsed(lr={"kind": "linear", "start": 1, "end": 0, "horizon": 1e6}, clip=1)
    assert config.lr == LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=1_000_000, warmup=0)
    assert config.clip == 1.0
    assert parsed(clip=None).clip is None
    assert parsed(lr="linear:1:0:1e6").lr == config.lr


@dataclass(kw_only=True)
class FailingConfig:
    size: int

    def __post_init__(self) -> None:
        if self.size == 1:
            raise ValueError("size=1 is too little")
        [][self.size]


class Failing:
    Config = FailingConfig


@pytest.mark.parametrize(("size", "code", "key"), [(1, "contradiction", "agent"), (3, "target", None)])
def test_exception_in_a_user_config_is_answered(size: int, code: str, key: str | None) -> None:
    with pytest.raises((InputError, IndexError)) as error:
        dataclass_of(Component, {"_target_": f"{__name__}.Failing", "size": size}, "agent")
    answer = answer_to(error.value)
    assert answer is not None
    assert (answer.code, answer.key) == (code, key)


def test_component_with_config_is_built_from_its_config() -> None:
    component = dataclass_of(Component, {"_target_": PART, "needed": 2})
    part = component.build(runtime="now")
    assert isinstance(part, Part)
    assert part.config.needed == 2
    assert part.runtime == "now"


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (f"{__name__}.Prat", "Part"),
        ("no_such_package.Thing", "no_such_package"),
        ("labrl.types.SMALLEST", "SMALLEST"),  # not callable
        (3, "3"),
    ],
)
def test_target_that_does_not_exist_is_refused(target: Any, named: str) -> None:
    with pytest.raises(InputError) as error:
        dataclass_of(Component, {"_target_": target}, "agent")
    assert (error.value.code, error.value.key) == ("target", "agent._target_")
    assert named in str(error.value)


def test_pickled_component_is_equal_and_keeps_its_full_key() -> None:
    node = {"_target_": PART, "needed": 2, "parts": {"a": {"_target_": PART, "needed": 1}}}
    component = dataclass_of(Component, {**node, "part": {"_target_": PLAIN}}, "agent")
    copy = pickle.loads(pickle.dumps(component))
    assert copy == component
    assert (copy.config.part.key, copy.config.parts["a"].key) == ("agent.part", "agent.parts.a")


@pytest.mark.parametrize("value", [-1, {"kind": "linear", "start": 1, "end": -1, "horizon": 10}])
def test_non_negative_schedule_refuses_negative_values(value: Any) -> None:
    error = refused(bound=value)
    assert (error.code, error.key) == ("range", "agent.bound")
    assert parsed(bound=None).bound is None
    assert parsed(bound={**value, "end": 0} if isinstance(value, dict) else 1).bound is not None
