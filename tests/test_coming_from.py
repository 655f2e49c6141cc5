"""Tests of the pages for users of other libraries: the keys, commands and links on them are valid."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from labrl.config.compose import compose

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("how-to/coming-from-slm-lab.md", "how-to/coming-from-alf.md")
TRIALS = (
    ["env=pong"],
    ["agent=dqn", "env=pong", "agent/memory=prioritized"],
    ["agent=dqn", "agent/target=polyak"],
    ["agent=recurrent_ppo"],
    ["agent=recurrent_dqn"],
)
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


@pytest.mark.parametrize("page", PAGES)
def test_every_link_on_the_page_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text()):
        assert ((DOCS / page).parent / target.partition("#")[0]).is_file(), target
