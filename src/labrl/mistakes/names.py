"""Names of keys and options in labrl's files, and the corresponding names in other libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from labrl.config import config_folder
from labrl.config.keys import walk
from labrl.envs.games import env_of, environments
from labrl.errors import InputError
from labrl.mistakes.spelling import nearest, suggested

VERBS = ("resume", "rerun", "fork", "enjoy", "force", "pin", "trust")
"""Arguments that are written with a plus, such as `+resume=latest`, and are not keys."""


@cache
def options_of(group: str) -> tuple[str, ...]:
    """Return the options of a group; for `env`, only those that need no further key."""
    if group == "env":
        return tuple(name for name, _, _ in environments())
    return tuple(sorted(file.stem for file in (config_folder() / group).glob("*.yaml")))


def owners_of(key: str) -> str:
    """Return the options whose files have `key`, such as `agent=ppo, agent=a2c`; '' if there are none."""
    parent, _, leaf = key.rpartition(".")
    group = parent.replace(".", "/")
    found = []
    for option in options_of(group) if parent else ():
        file = config_folder() / group / f"{option}.yaml"
        content = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
        if leaf in (content.get(group) or content):
            found.append(f"{group}={option}")
    return ", ".join(found)


def setting_of(key: str, value: object = None) -> str:
    """Return what to type to set `key`: `<group>=<option>` if it is a group, whose option may be `value`."""
    group = config_folder() / key.replace(".", "/")
    known = isinstance(value, str) and value.isidentifier() and (group / f"{value}.yaml").is_file()
    return f"{key.replace('.', '/')}={value if known else '<option>'}" if group.is_dir() else f"{key}=<value>"


def all_keys(cfg: DictConfig | Mapping[str, Any]) -> list[str]:
    """Return every full key of a configuration."""
    plain = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else cfg
    return [key for key, _ in walk(plain) if key and "[" not in key]


@dataclass(frozen=True)
class OtherName:
    """A key of labrl that has another name in other libraries, as described in names.yaml."""

    key: str
    """Key of labrl; empty if no key corresponds to the other name."""
    meaning: str
    """Short description of the key, as a noun phrase; without a key, the reason why there is none."""
    template: str
    """Text of the override to type, in which {value} stands for the given value."""

    def typed(self, value: str) -> str:
        """Return what to type instead of the other name with `value`."""
        if self.key in ("agent", "env"):
            return option_meant(self.key, value) or f"{self.key}={value or '<option>'}"
        return self.template.replace("{value}", value or "<value>")


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(
        (Path(__file__).parent / "names.yaml").read_text(encoding="utf-8")
    )
    return content


@cache
def other_names() -> dict[str, list[OtherName]]:
    """Return a dict from names in other libraries to labrl's keys, most likely first."""
    found: dict[str, list[OtherName]] = {}
    for entry in _content()["keys"]:
        key = entry.get("key", "")
        meant = OtherName(key, entry.get("meaning") or entry["none"], entry.get("type", f"{key}={{value}}"))
        for name in entry["names"]:
            found.setdefault(name, []).append(meant)
    return found


def other_commands() -> dict[str, str]:
    """Return a dict from commands of other libraries, such as train, to what to type instead."""
    commands: dict[str, str] = _content()["commands"]
    return commands


def other_option(group: str, name: str) -> str:
    """Return what to type for an option of a group as named in other libraries, or '' if it is unknown."""
    options: dict[str, str] = _content()["options"].get(group, {})
    return options.get(name.lower().replace("-", "_"), "") or (env_of(name) if group == "env" else "")


def option_meant(group: str, name: str, options: Sequence[str] = ()) -> str:
    """Return group=option for an option that is named as in another library, or nearly as one of `options`
    (by default, those of the group); '' if there is none."""
    near = nearest(name.replace("-", "_"), options or options_of(group))
    return other_option(group, name) or (f"{group}={near[0]}" if near else "")


def unknown_key(key: str, value: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown `key=value`. known: all keys of the composed configuration."""
    keys = sorted(known, key=lambda name: -name.count("."))
    parent, _, leaf = key.rpartition(".")
    full = [key] if parent else [f"agent.{key}", f"env.{key}"]
    meant = [one for one in other_names().get(leaf.lower(), ()) if one.key != key]
    here = [one for one in meant if one.key in keys or not one.key] or meant
    if re.search(r"^callbacks\.|\.(kwargs|options)\.", key):  # the user chooses these keys
        fix = f"To add it, write +{key}={value or '<value>'}"
    elif here and not here[0].key:
        fix = f"None corresponds: {here[0].meaning}"
    elif here:
        owners = {one.key: "" if one.key in keys else owners_of(one.key) for one in here}
        fix = "Use " + "; or ".join(
            f"{one.key} ({one.meaning}{'; exists with ' * bool(owners[one.key])}{owners[one.key]}): "
            f"{one.typed(value)}"
            for one in here
        )
    elif owned := next(((name, found) for name in full if (found := owners_of(name))), None):
        fix = f"It exists{'' if parent else f' as {owned[0]}'} with {owned[1]}"
    else:
        beside = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == parent}
        if not parent:
            beside |= {verb: f"+{verb}={value or 'latest'}" for verb in VERBS}
            beside |= {group: setting_of(group) for group in ("experiment", "preset")}  # without keys
        near = [name for name in reversed(keys) if name.endswith(f".{leaf}")][:3]
        near = near or [beside[name] for name in nearest(leaf, beside, 3)]
        near = near or nearest(key, () if parent in keys else keys, 3)
        node = "hydra" if key.startswith("hydra.") else "job"
        fix = f"{suggested(near)} To see every key, type labrl --cfg {node}"
    return InputError.about(key, "no such key", fix, code="unknown-key")
