"""A changed configuration is told from one that would have had the same past, and how to pin the rest."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from labrl.config.compose import compose, to_plain
from labrl.config.consistency import (
    ABSENT,
    HARMLESS,
    HARMLESS_GROUPS,
    Change,
    changes,
    contradictions,
    override,
    refusal,
)
from labrl.config.schema import MetaConfig

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


def put(config: dict[str, Any], change: Change) -> None:
    *parents, leaf = change.key.split(".")
    node = config
    for name in parents:
        node = node[name]
    if change.new is ABSENT:
        del node[leaf]
    else:
        node[leaf] = change.new


@given(CONFIGS)
def test_a_configuration_does_not_differ_from_itself(config: dict[str, Any]) -> None:
    assert changes(config, config) == []


@given(CONFIGS, CONFIGS)
def test_the_changes_lead_from_the_old_to_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    found = changes(old, new)
    assert {change.key for change in found} == {change.key for change in changes(new, old)}
    for change in found:
        put(old, change)
    assert changes(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        (1e5, 100000, False),
        ([1, 2.0], [1.0, 2], False),
        (True, 1, True),
        (0, False, True),
        (None, 0, True),
        ("1", 1, True),
        ([1], [1, 1], True),
        ({"a": 1}, 1, True),
        ([{"a": 1}], [{"a": True}], True),
    ],
)
def test_numbers_are_compared_as_such_and_nothing_else_is(old: Any, new: Any, differ: bool) -> None:
    assert bool(changes({"key": old}, {"key": new})) == differ


@pytest.mark.parametrize("key", sorted(HARMLESS))
def test_every_harmless_key_exists(key: str) -> None:
    node: Any = to_plain(compose([]))
    for name in key.split("."):
        assert name in node, f"{key} is no key any more"
        node = node[name]


def test_every_key_of_meta_has_been_decided_upon() -> None:
    """A key that is added to `meta` must be put here or there by somebody who has thought about it."""
    harmless = [*HARMLESS, *HARMLESS_GROUPS]
    decided = {key.removeprefix("meta.") for key in harmless if key.startswith("meta.")}
    refused = {"async_unroll", "compile", "distributed", "episode_window", "precision"}
    assert decided | refused == set(MetaConfig.__dataclass_fields__)
    assert not decided & refused


@given(st.sampled_from(sorted(HARMLESS)), LEAVES, LEAVES)
def test_harmless_keys_contradict_nothing_whatever_their_values(key: str, old: Any, new: Any) -> None:
    assert contradictions([Change(key, old, new)]) == []


@pytest.mark.parametrize(
    "key", ["seed", "env.num_envs", "agent.lr", "agent.lr.horizon", "transforms.reward", "env.max_frames"]
)
def test_all_other_keys_contradict_the_past(key: str) -> None:
    assert contradictions([Change(key, 1, 2)])


def test_callbacks_may_come_and_go() -> None:
    found = changes({"callbacks": {"mine": {"_target_": "a.B", "n": 1}}}, {"callbacks": {"other": None}})
    assert len(found) == 2
    assert contradictions(found) == []


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
def test_the_way_out_can_be_typed_into_a_shell_and_means_the_old_value(value: Any) -> None:
    (word,) = shlex.split(override("agent.key", value))
    parsed = OverridesParser.create().parse_override(word)
    assert parsed.key_or_group == "agent.key"
    assert changes({"key": value}, {"key": unquoted(parsed.value())}) == []


def unquoted(value: Any) -> Any:
    return [unquoted(item) for item in value] if isinstance(value, list) else value


def test_a_group_of_keys_is_pinned_as_one() -> None:
    value = {"kind": "linear", "start": 1e-3, "end": 0.0, "horizon": 100000}
    (word,) = shlex.split(override("agent.lr", value))
    assert OverridesParser.create().parse_override(word).value() == value


def test_the_table_names_keys_values_what_they_follow_and_what_to_type() -> None:
    found = [Change("agent.lr.horizon", 100000.0, 200000.0), Change("agent.new", ABSENT, True)]
    told = refusal(found, {"agent": {"lr": {"horizon": "${env.max_frame}"}, "new": True}})
    assert told.splitlines()[1:] == [
        "  key               then    now",
        "  agent.lr.horizon  100000  200000  follows env.max_frame",
        "  agent.new         -       true",
        "To keep them as they were: agent.lr.horizon=100000",
        "A key that is not on both sides comes from another choice or from another version of labrl.",
        "To go on all the same, which the run folder will record: +force=true",
    ]
