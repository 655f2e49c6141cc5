"""The configuration of a run: what differs from the defaults, and all of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labrl.analysis.groups import told
from labrl.analysis.report.sections import Block, Command, Note, Section, Table
from labrl.analysis.runs import Run

CHANGED = "changed.json"
"""In a run folder: what of its configuration is not the default of its agent and environment."""


@dataclass(frozen=True)
class Changed:
    """One key whose value is not the default."""

    key: str
    default: Any
    """None also where the default has no such key."""
    value: Any


def changed(run: Run) -> list[Changed] | None:
    """What differs from the defaults as they were when the run ended; None where that was not recorded."""
    try:
        entries = json.loads((Path(run.path) / CHANGED).read_text(encoding="utf-8"))
        return [Changed(entry["key"], entry.get("default"), entry.get("value")) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def configuration_section(run: Run) -> Section:
    """How to run it again, what differs from the defaults, and the whole configuration."""
    blocks: list[Block] = []
    command = run.provenance.get("overrides")
    if command is not None:
        words = shlex.join(["labrl", *_once(command)])
        blocks.append(Command(words, "To run it again:"))
    found = changed(run)
    if found is None:
        blocks.append(Note("Which of these values differ from the defaults was not recorded for this run."))
    elif found:
        rows = [[c.key, told(c.value), told(c.default)] for c in found]
        caption = f"Differs from the defaults of {run.agent} on {run.env}"
        blocks.append(Table(["key", "value", "default"], rows, caption=caption))
    else:
        blocks.append(Note(f"Every value is the default of {run.agent} on {run.env}."))
    if run.config:
        whole = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        blocks.append(Command(whole, "the whole configuration", folded=True))
    return Section("configuration", "Configuration", blocks)


def _once(words: Sequence[Any]) -> list[str]:
    """Each word once, where it stood last: of two for one key the last one counts."""
    return list(dict.fromkeys(map(str, reversed(words))))[::-1]
