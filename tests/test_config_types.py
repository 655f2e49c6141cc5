"""Values are taken as they are meant or refused, and every mistake is told by its full key."""

from __future__ import annotations

import fractions
import pickle
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from labrl.config.component import Component
from labrl.config.types import (
    Fraction,
    NonNegativeInt,
    NonNegativeSchedule,
    PositiveFloat,
    PositiveInt,
    PositiveRatio,
    Probability,
    Schedule,
)
from labrl.errors import InputError
from labrl.schedules import LinearSchedule


@dataclass(kw_only=True)
class Inner:
    size: PositiveInt = 8


@dataclass(kw_only=True)
class PartConfig:
    needed: PositiveInt
    count: NonNegativeInt = 0
    rate: PositiveFloat = 1.0
    chance: Probability = 0.5
    share: Fraction = 1.0
    plain: int = 0
    ratio: PositiveRatio = fractions.Fraction(1)
    real: float = 0.0
    mode: Literal["fast", "slow"] = "fast"
    on: bool = True
    name: str = "x"
    sizes: list[PositiveInt] = field(default_factory=list)
    lr: Schedule = 0.1
    clip: Schedule | None = None
    bound: NonNegativeSchedule | None = None
    inner: Inner = field(default_factory=Inner)
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
    return Component.parse({"_target_": PART, "needed": 1, **settings}, "agent").config


def refused(**settings: Any) -> str:
    with pytest.raises(InputError) as error:
        parsed(**settings)
    return str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": True},
        {"count": "3"},
        {"count": 2.5},
        {"count": -1},
        {"count": None},
        {"count": float("inf")},
        {"count": 2**63},
        {"plain": -1e30},
        {"rate": 1e39},
        {"rate": 1e-39},
        {"real": -1e300},
        {"real": 10**400},
        {"ratio": float("nan")},
        {"ratio": -(10**400)},
        {"lr": {"kind": "linear", "start": 1e39, "end": 0, "horizon": 1}},
        {"rate": 0},
        {"rate": True},
        {"rate": "1e-3"},
        {"rate": float("nan")},
        {"chance": 1.1},
        {"chance": -0.1},
        {"share": 0},
        {"plain": "1"},
        {"plain": True},
        {"real": "1"},
        {"real": False},
        {"mode": "fastt"},
        {"on": 1},
        {"on": "true"},
        {"name": 3},
        {"sizes": 3},
        {"sizes": [1, 0]},
        {"lr": True},
        {"lr": "fast"},
        {"lr": None},
        {"lr": {"kind": "linear", "start": 1}},
        {"lr": {"kind": "linea", "start": 1, "end": 0, "horizon": 1}},
        {"lr": {"kind": "linear", "start": 1, "end": 0, "horizon": 0}},
        {"lr": {"kind": "piecewise", "points": [[5, 1.0], [5, 2.0]]}},
        {"inner": {"size": 0}},
        {"inner": 3},
        {"part": {"width": 3}},
        {"part": {"_target_": "labrl.nothing.Here"}},
        {"parts": {"a": 1}},
    ],
)
def test_wrong_type_or_range_is_refused_with_the_full_key_and_the_value(wrong: dict[str, Any]) -> None:
    assert refused(**wrong).startswith(f"agent.{next(iter(wrong))}")


def test_message_says_what_is_allowed_and_what_was_given() -> None:
    assert refused(count=-1) == "agent.count must be at least 0, got -1 (for instance agent.count=0)"
    assert "'fast' or 'slow', got 'fastt'" in refused(mode="fastt")
    assert "agent.sizes[1] must be at least 1, got 0" in refused(sizes=[4, 0])
    assert "a schedule (linear, cosine, exponential, step, piecewise)" in refused(lr="fast")
    assert "Did you mean agent.lr.kind=linear?" in refused(lr={"kind": "linea"})
    assert refused(inner={"size": 0}).startswith("agent.inner.size must be at least 1, got 0")


def test_all_mistakes_are_told_at_once() -> None:
    lines = refused(count=-1, rate=0, parts={"a": {"_target_": PART, "needed": 1, "rat": 2}}).splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == [
        "agent.count",
        "agent.rate",
        "agent.parts.a.rat",
    ]
    assert lines[2].endswith("Did you mean agent.parts.a.rate?")


def test_unknown_key_names_the_nearest_or_all() -> None:
    assert refused(raet=1) == "agent.raet: no such key. Did you mean agent.rate?"
    assert "Known here: needed, count" in refused(zzzzzz=1)


def test_missing_key_is_named() -> None:
    with pytest.raises(InputError, match=r"^agent\.needed must be given"):
        Component.parse({"_target_": PART}, "agent")


def test_scientific_notation_counts_as_a_whole_number() -> None:
    config = parsed(count=1e7, plain=2.0)
    assert config.count == 10_000_000
    assert isinstance(config.count, int)
    assert isinstance(config.plain, int)


def test_schedules_are_numbers_or_mappings_with_a_kind() -> None:
    config = parsed(lr={"kind": "linear", "start": 1, "end": 0, "horizon": 1e6}, clip=1)
    assert config.lr == LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=1_000_000, warmup=0)
    assert config.clip == 1.0
    assert parsed(clip=None).clip is None


def test_component_with_config_is_built_from_it() -> None:
    component = Component.parse({"_target_": PART, "needed": 2})
    part = component.build(runtime="now")
    assert isinstance(part, Part)
    assert part.config.needed == 2
    assert part.runtime == "now"


def test_component_without_config_is_built_from_keyword_arguments() -> None:
    assert Component.parse({"_target_": PLAIN, "width": 5}).build(runtime="now") == ("now", 5)


def test_component_without_config_checks_keys_against_the_signature() -> None:
    with pytest.raises(InputError, match=r"^env\.widht: no such key\. Did you mean env\.width\?"):
        Component.parse({"_target_": PLAIN, "widht": 5}, "env")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (f"{__name__}.Prat", "Did you mean Part"),
        ("no_such_package.Thing", "there is no module no_such_package"),
        ("labrl", "must be a dotted path"),
        ("labrl.config.types.__all__", "neither a class nor a function"),
        (3, "must be a dotted path"),
    ],
)
def test_target_that_does_not_exist_is_explained(target: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        Component.parse({"_target_": target}, "agent")
    assert str(error.value).startswith("agent._target_")


def test_component_survives_the_way_to_another_process() -> None:
    component = Component.parse({"_target_": PART, "needed": 2, "part": {"_target_": PLAIN}})
    assert pickle.loads(pickle.dumps(component)) == component


@pytest.mark.parametrize("value", [-1, {"kind": "linear", "start": 1, "end": -1, "horizon": 10}])
def test_coefficient_that_would_turn_negative_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"agent\.bound must be at least 0 at every frame, got"):
        parsed(bound=value)
    assert parsed(bound=None).bound is None
    assert parsed(bound={**value, "end": 0} if isinstance(value, dict) else 1).bound is not None
