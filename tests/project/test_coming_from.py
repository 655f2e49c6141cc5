"""Tests of the pages for users of other libraries: the keys, commands and links on them are valid."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from labrl.config.compose import compose
from labrl.errors import InputError
from labrl.mistakes.names import other_names

pytestmark = pytest.mark.extended

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("how-to/coming-from-slm-lab.md", "how-to/coming-from-alf.md")
TRIALS = (
    ["env=pong"],
    ["agent=dqn", "env=pong", "agent/memory=prioritized"],
    ["agent=dqn", "agent/target=polyak"],
    ["agent=recurrent_ppo"],
    ["agent=recurrent_dqn"],
    ["transforms/observation=normalize", "transforms/reward=normalize", "agent/self_imitation=replay"],
    ["agent=sac", "env=pendulum"],
    ["agent=td3", "env=pendulum"],
    ["agent=reinforce"],
    ["agent=a2c"],
)
OTHER_SECTIONS = {"Spec files", "Clock", "Modes", "Files", "Measures", "Schedulers"}
"""Sections whose tables do not list keys of the other library."""
KEY = re.compile(r"(?:meta|agent|env|transforms)\.[a-z_]+(?:\.[a-z_]+)*")


def spans(page: str) -> list[str]:
    """Return all texts in backticks on a page."""
    return re.findall(r"`([^`]+)`", (DOCS / page).read_text())


@functools.cache
def composed() -> list[DictConfig]:
    return [compose(overrides) for overrides in TRIALS]


def has(node: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node:
            return False
        node = node._get_node(name) if isinstance(node._get_node(name), DictConfig) else None
    return True


@pytest.mark.parametrize("page", PAGES)
def test_every_key_on_the_page_exists(page: str) -> None:
    keys = {key for span in spans(page) for key in KEY.findall(span)}
    assert len(keys) > 10
    assert not [key for key in sorted(keys) if not any(has(config, key) for config in composed())]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_the_page_composes(page: str) -> None:
    for command in spans(page):
        if command.startswith("labrl ") and "..." not in command and "<" not in command:
            overrides = [
                override for override in command.split()[1:] if not override.startswith(("+", "-", "hydra/"))
            ]
            # The first trial stands for all trials of an experiment.
            compose([override.partition(",")[0] for override in overrides])


def named_on(page: str) -> dict[str, list[str]]:
    """Return the other library's keys in the tables of a page, each with labrl's names in its rows."""
    found: dict[str, list[str]] = {}
    for section in (DOCS / page).read_text().split("\n## ")[1:]:
        if section.partition("\n")[0].strip("`") in OTHER_SECTIONS:
            continue
        for theirs, ours in re.findall(r"^\| (.+?) \| ?(.*?) ?\|", section, re.MULTILINE):
            spans = [span for text in re.findall(r"`([^`]+)`", ours) for span in braces(text)]
            for name in re.findall(r"`([a-z][a-z0-9_]*)(?:: [^`]*)?`", theirs):
                found.setdefault(name, []).extend(span.partition("=<")[0] for span in spans)
    return found


def braces(text: str) -> list[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`."""
    inner = re.search(r"\{(.*)\}", text)
    return [text.replace(inner[0], name) for name in inner[1].split(",")] if inner else [text]


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_the_other_library_is_answered_with_a_name_on_the_page(page: str) -> None:
    rows = named_on(page)
    assert len(rows) > 50
    with pytest.raises(InputError) as caught:
        compose([f"{name}=1" for name in rows])
    mistakes = {mistake.key: mistake.message for mistake in caught.value.mistakes}
    assert mistakes.keys() == rows.keys()
    for name, ours in rows.items():
        assert name in other_names() or ours, f"{name} is neither on the page nor known"
        bare = mistakes[name].replace("/", ".")
        keys = [one.partition("=")[0].replace("/", ".") for one in ours]
        assert not keys or any(re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", bare) for key in keys), (
            f"{mistakes[name]} names none of {ours}"
        )
