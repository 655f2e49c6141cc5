"""The overrides of each trial, and the best configuration as a command and as a YAML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from omegaconf import DictConfig

from labrl.config.compose import compose
from labrl.config.keys import key_of, quoted
from labrl.experiment.search.space import Space

BEST = "experiment/best.yaml"
"""File in the experiment folder, which makes it a --config-dir with the option experiment=best."""


@dataclass(frozen=True)
class Recipe:
    """Composes the configurations of the trials of a search."""

    space: Space
    choices: Mapping[str, str]
    """The option of each group that every trial has, whether typed or not."""
    how: list[str]
    """Overrides for how a trial of a search is run, which do not affect learning."""
    config_dir: str | None = None
    """A folder with a user's own groups."""

    def compose(self, params: Mapping[str, Any], *more: str) -> DictConfig:
        """Return the configuration with these values, and `more` overrides. Raises InputError."""
        return compose([*self.configuration(params), *more], self.config_dir)

    def overrides(self, params: Mapping[str, Any], seed: int, max_session: int | None = None) -> list[str]:
        """Return all overrides of the trial with these values; max_session: in place of the search's own."""
        overrides = [*self.configuration(params), *self.how, f"seed={seed}"]
        return overrides if max_session is None else [*overrides, f"meta.max_session={max_session}"]

    def configuration(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial with these values, without those for how it is run."""
        overrides = self.space.overrides(params)
        typed = set(map(key_of, overrides))
        named = [f"{group}={self.choices[group]}" for group in ("agent", "env") if group not in typed]
        return [*named, *overrides]

    def place(self, folder: Path) -> list[str]:
        """Return the overrides that give a trial its run folder."""
        return [f"hydra.sweep.dir={quoted(str(folder.parent))}", f"hydra.sweep.subdir={quoted(folder.name)}"]

    def command(self, params: Mapping[str, Any]) -> str:
        """Return the shell command of the trial with these values."""
        where = ["--config-dir", self.config_dir] if self.config_dir else []
        return shlex.join(["labrl", *where, *self.configuration(params)])

    def as_yaml(self, params: Mapping[str, Any], home: Path, told: Sequence[str]) -> str:
        """Return a YAML file for the group `experiment`. told: lines of comments."""
        parents: list[str] = []
        groups: dict[str, str] = {}
        keys: dict[str, Any] = {}
        left_out = []
        for override in OverridesParser.create().parse_overrides(self.configuration(params)):
            key, value = override.key_or_group, override.value()
            if override.is_delete() or override.package is not None:
                left_out.append(str(override.input_line))
            elif key == "experiment":
                parents.append(str(value))  # experiment=best replaces it
            elif key in self.choices:
                groups[key] = str(value)
            else:
                _put(keys, key.split("."), _plain(value))
        lines = [
            "# @package _global_",
            f"# labrl --config-dir {shlex.quote(str(home))} experiment=best",
            *(f"# {line}" for line in told),
            f"# {self.command(params)}",
            *(
                f"# to be typed, because a file cannot contain it: {shlex.quote(override)}"
                for override in left_out
            ),
        ]
        defaults = [{f"override /{group}": option} for group, option in groups.items()]
        body = {"defaults": [*parents, "_self_", *defaults], **keys}
        return "\n".join(lines) + "\n" + yaml.safe_dump(body, sort_keys=False, allow_unicode=True)


def _put(node: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value


def _plain(value: Any) -> Any:
    """Return the value of an override as plain data."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, QuotedString):
        return value.text
    return value if value is None or isinstance(value, bool | int | float) else str(value)
