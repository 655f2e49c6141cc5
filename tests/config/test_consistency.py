"""Tests of comparing configurations: which changes a resume refuses, and which overrides undo them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from labrl.config.keys import ABSENT, Change, changes, contradictions, traits, typed_override
from labrl.config.schema import TrialConfig
from labrl.config.traits import Traits, annotation, dataclasses_in, hints
from labrl.trial.past import refusal

KEYS = st.sampled_from(["a", "b", "c"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.sampled_from([0.5, 1e-5, 1.0])
    | st.sampled_from("xyz")
)
TREES = st.recursive(
    LEAVES | st.lists(st.integers(0, 2), max_size=2), lambda inner: st.dictionaries(KEYS, inner), max_leaves=8
)
CONFIGS = st.dictionaries(KEYS, TREES)


def apply(config: dict[str, Any], change: Change) -> None:
    """Apply a change to a configuration in place."""
    *parents, leaf = change.key.split(".")
    node = config
    for name in parents:
        node = node[name]
    if change.new is ABSENT:
        del node[leaf]
    else:
        node[leaf] = change.new


@given(CONFIGS, CONFIGS)
def test_applying_all_changes_turns_the_old_config_into_the_new(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    found = changes(old, new)
    assert {change.key for change in found} == {change.key for change in changes(new, old)}
    for change in found:
        apply(old, change)
    assert changes(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        (1e5, 100000, False),
        ([1, 2.0], [1.0, 2], False),
        (True, 1, True),
        (None, 0, True),
        ([{"a": 1}], [{"a": True}], True),
    ],
)
def test_only_int_and_float_compare_equal_across_types(old: Any, new: Any, differ: bool) -> None:
    assert bool(changes({"key": old}, {"key": new})) == differ


def traits_of_all_keys(
    cls: type = TrialConfig, prefix: str = "", above: Traits | None = None
) -> dict[str, Traits]:
    """Return the traits of every key of a trial, taken from its field or the nearest field above."""
    found = {}
    for name, hint in hints(cls).items():
        own = annotation(hint, Traits) or above or Traits()
        found[prefix + name] = own
        for below in dataclasses_in(hint):
            found |= traits_of_all_keys(below, f"{prefix}{name}.", own)
    return found


def test_key_has_the_traits_of_its_field_or_the_nearest_field_above() -> None:
    assert {key: traits(key) for key in traits_of_all_keys()} == traits_of_all_keys()
    assert traits("meta.profile.start") == traits("meta.profile") == traits("meta.profile.no_such_key")
    assert traits("callbacks.mine.n") == traits("wandb") == traits("search.pruner.kind")


@pytest.mark.parametrize(
    ("keys", "fixed"),
    [
        ("env.max_frame meta.max_session meta.device meta.eval_greedy callbacks.mine.n", False),
        ("seed env.num_envs agent.lr agent.lr.horizon transforms.reward meta.precision meta.kernels", True),
        ("env.max_frames meta.new", True),  # unknown keys
    ],
)
def test_keys_that_affect_learning_and_unknown_keys_must_not_change(keys: str, fixed: bool) -> None:
    assert all(bool(contradictions([Change(key, 1, 2)])) == fixed for key in keys.split())


def test_keys_that_must_not_change_affect_the_score_and_only_the_seed_may_differ_within_a_group() -> None:
    fixed = {key: about for key, about in traits_of_all_keys().items() if not about.resume}
    assert all(about.score for about in fixed.values())
    assert {key for key, about in fixed.items() if about.same_group} == {"seed"}
    assert traits("meta.eval_frequency").score
    assert not traits("meta.keep_last").score


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126)).filter(lambda text: "${" not in text)
    | st.sampled_from(
        ["null", "True", "nan", "inf", "a b", "it's", "1e5", "\\", "a\\'", "CartPole-v1", "x,y"]
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(VALUES)
def test_suggested_override_passes_a_shell_and_gives_the_old_value(value: Any) -> None:
    (override,) = shlex.split(typed_override("agent.key", value))
    parsed = OverridesParser.create().parse_override(override)
    assert parsed.key_or_group == "agent.key"
    assert changes({"key": value}, {"key": unquoted(parsed.value())}) == []


def unquoted(value: Any) -> Any:
    return [unquoted(item) for item in value] if isinstance(value, list) else value


def test_mapping_becomes_a_single_override() -> None:
    value = {"kind": "linear", "start": 1e-3, "end": 0.0, "horizon": 100000}
    for key, plain in (
        ("agent.lr", {"kind": "piecewise", "points": [[0, 1], [9, 0.5]]}),
        ("env.kwargs", value),
    ):
        (override,) = shlex.split(typed_override(key, plain))
        assert OverridesParser.create().parse_override(override).value() == plain
    assert typed_override("agent.lr", value) == "agent.lr=linear:0.001:0:100000"


def test_refusal_names_keys_values_and_overrides() -> None:
    found = [Change("agent.gamma", 0.99, 0.9), Change("agent.new", ABSENT, True)]
    error = refusal(found, "+resume=run")
    rows = [line.split() for line in str(error).splitlines()]
    assert (error.code, error.key) == ("changed-past", "agent.gamma")
    assert ["agent.gamma", "0.99", "0.9"] in rows
    assert ["agent.new", "-", "true"] in rows
    for override in ("+resume=run:", "agent.gamma=0.99", "+force=true"):
        assert override in str(error).split()
