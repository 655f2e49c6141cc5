"""Names of keys and options in labrl's files, and the corresponding names in other libraries."""

from __future__ import annotations

import re
import shlex
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

SOME = 8
"""Maximum number of options, or of owners of a key, that a message lists."""


# --- the groups of labrl ---


@cache
def options_of(group: str) -> tuple[str, ...]:
    """Return the options of a group; for `env`, only those that need no further key."""
    if group == "env":
        return tuple(name for name, _, _ in environments())
    return tuple(sorted(file.stem for file in (config_folder() / group).glob("*.yaml")))


@cache
def _keys_in(group: str, option: str) -> frozenset[str]:
    """Return the keys in the file of an option, including the files that it extends."""
    file = config_folder() / group / f"{option}.yaml"
    content: Any = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
    found: set[str] = set()
    for entry in content.pop("defaults", []):
        if isinstance(entry, str):
            found |= _keys_in(group, entry)
            continue
        for name, chosen in entry.items():
            part = name.split()[-1]
            found |= {part, *(f"{part}.{key}" for key in _keys_in(f"{group}/{part}", str(chosen)))}
    return frozenset(found | set(all_keys(content.get(group, content))))


def owners_of(key: str, known: Sequence[str] = ()) -> list[str]:
    """Return the options that would make `key` exist, such as agent=ppo or agent/target=polyak.

    known: keys of the composed configuration; a group below `agent` counts only if its key is among them.
    """
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        group, inner = "/".join(parts[:length]), ".".join(parts[length:])
        if length == 1 or ".".join(parts[:length]) in known:
            files = sorted((config_folder() / group).glob("*.yaml"))
            if found := [f"{group}={file.stem}" for file in files if inner in _keys_in(group, file.stem)]:
                return ["env=<any Atari game>" if one == "env=atari" else one for one in found]
    return []


def agent_target(agent: str) -> str:
    """Return the `_target_` of one of labrl's agents."""
    content = yaml.safe_load((config_folder() / "agent" / f"{agent}.yaml").read_text(encoding="utf-8"))
    above = [one for one in content.get("defaults", ()) if isinstance(one, str) and one != "_self_"]
    return str(content["_target_"]) if "_target_" in content else agent_target(above[0])


def setting_of(key: str) -> str:
    """Return what to type to set `key`, including `<group>=<option>` if the key or its parent is a group."""
    group, part = key.replace(".", "/"), key.rpartition(".")[0].replace(".", "/")
    if (config_folder() / group).is_dir():
        return f"{group}=<option>"
    above = f" or {part}=<option>" if "/" in part and (config_folder() / part).is_dir() else ""
    return f"{key}=<value>{above}"


def option_meant(key: str, value: Any) -> str:
    """Return ` Did you mean <group>=<value>?` if `key` or a key above it is a group with such an option."""
    parts = key.split(".") if isinstance(value, str) and value.isidentifier() else []
    for count in range(len(parts), 0, -1):
        group = "/".join(parts[:count])
        if (config_folder() / group / f"{value}.yaml").is_file():
            return f" Did you mean {group}={value}, with a slash? It is an option of that group."
    return ""


def own_file(group: str, option: str) -> str:
    """Return ` For your own <file>, add --config-dir=<folder>.` for an option that labrl does not have."""
    return f" For your own <folder>/{group}/{option}.yaml, add --config-dir=<folder>."


def is_of_user(key: str) -> bool:
    """Return whether a key is below a group in which the user chooses the keys."""
    return re.search(r"^callbacks\.|\.(kwargs|options)\.", key) is not None


def all_keys(cfg: DictConfig | Mapping[str, Any]) -> list[str]:
    """Return every full key of a configuration."""
    plain = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else cfg
    return [key for key, _ in walk(plain) if key and "[" not in key]


def some(names: Sequence[str]) -> str:
    """Return the names separated by commas, or only the first SOME of them if there are more."""
    return ", ".join(names[:SOME]) + (" and others" if len(names) > SOME else "")


# --- other libraries ---


@dataclass(frozen=True)
class OtherName:
    """A key of labrl that has another name in other libraries, as described in names.yaml."""

    key: str
    """Key of labrl; empty if no key corresponds to the other name."""
    meaning: str
    """Short description of the key, as a noun phrase; without a key, the reason why there is none."""
    types: Mapping[str, str]
    """Template of what to type for each library; for '' if the meaning is the same in all libraries."""
    disable: str
    values: Mapping[str, str]
    example: str

    def typed(self, value: str) -> str:
        """Return what to type instead of the other name with `value`, in the first library's meaning."""
        return next(iter(self.typed_by_library(value).values()), "")

    def typed_by_library(self, value: str) -> dict[str, str]:
        """Return what to type for each library; for '' if the meaning is the same in all libraries."""
        if self.key in ("agent", "env"):
            return {"": option_named(value) or choice_of(self.key, value)}
        if self.disable and value.lower() in ("false", "no", "none", "null", "0"):
            return {"": self.disable}
        return {library: self._filled(text, value) for library, text in self.types.items()}

    def _filled(self, text: str, value: str) -> str:
        """Fill the placeholders of a template."""
        plain = value.strip("'\"").lower()
        value = self.values.get(plain) or self.values.get(plain.rpartition(".")[2]) or value or self.example
        # The Zoo's syntax of a schedule.
        value = re.sub(r"^lin_(?=[\d.])(.*)", r"linear:\1:0", value) or "<value>"
        number = (_numbers(value) or _numbers(self.example) or ["<number>"])[0]
        layers = _numbers((re.findall(r"\[.*?\]", value) or [value])[0]) or _numbers(self.example)
        is_number = number != "<number>"
        fillings = {
            "{value}": value,
            "{number}": number,
            "{double}": str(2 * float(number)) if is_number else "<2 * number>",
            "{rest}": f"{1 - float(number):.6g}" if is_number else "<1 - number>",
            "{list}": f"[{','.join(layers)}]",
            "{pairs}": " ".join(
                f"+{self.key}.{name}={inner}"
                for name, inner in re.findall(r"(\w+)['\"]?[:=]\s*([^,{}()]+)", value)
            )
            or f"+{self.key}.<name>=<value>",
        }
        if text == "{key}={value}":
            return f"{self.key}={value}" if value.startswith("<") else shlex.quote(f"{self.key}={value}")
        for name, filling in fillings.items():
            text = text.replace(name, filling)
        return text


def _numbers(text: str) -> list[str]:
    """Return the numbers in a text, as strings in their original spelling."""
    return re.findall(r"(?<![\w.])-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text)


@cache
def _content() -> dict[str, Any]:
    content = yaml.safe_load((Path(__file__).parent / "names.yaml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@cache
def other_names() -> dict[str, list[OtherName]]:
    """Return a dict from names in other libraries to labrl's keys, most likely first."""
    found: dict[str, list[OtherName]] = {}
    for entry in _content()["keys"]:
        types = entry.get("type", "{key}={value}" if "key" in entry else {})
        meant = OtherName(
            entry.get("key", ""),
            entry.get("meaning") or entry["none"],
            {"": types} if isinstance(types, str) else types,
            entry.get("disable", ""),
            entry.get("values", {}),
            str(entry.get("example", "")),
        )
        for name in entry["names"]:
            found.setdefault(name, []).append(meant)
    return found


def other_option(group: str, option: str) -> str:
    """Return what to type for an option of a group as named in other libraries, or '' if it is unknown."""
    options: dict[str, str] = _content()["options"].get(group, {})
    return options.get(option.lower().replace("-", "_"), "")


def value_meant(key: str, value: str) -> str:
    """Return what to type for a value of `key` as named in other libraries, or '' if it is unknown."""
    meant = (one for one in other_names().get(key.rpartition(".")[2], []) if one.key == key)
    return next((one.typed(value) for one in meant if value.lower() in one.values), "")


def other_commands() -> dict[str, str]:
    """Return a dict from commands of other libraries, such as train, to what to type instead."""
    commands = _content()["commands"]
    assert isinstance(commands, dict)
    return commands


def unknown_key(key: str, value: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown `key=value`. known: all keys of the composed configuration."""
    if is_of_user(key):
        fix = f"To add it, write +{key}={value or '<value>'}"
        return InputError.about(key, "no such key", fix, code="unknown-key")
    keys = sorted(known, key=lambda name: name.count("."))
    parent, _, leaf = key.rpartition(".")
    # In a part, such as search.pruner, only its own keys are meant.
    near_by = f"{key.partition('.')[0]}." if "." in parent and parent in keys else ""
    elsewhere = [name for name in keys if name.rpartition(".")[2] == leaf and name.startswith(near_by)]
    suggestions: dict[str, str] = {}
    for one in other_names().get(leaf.lower(), []):
        if not one.key:
            why = f"no such key, and none corresponds: {one.meaning}"
            return InputError.about(key, why, code="unknown-key")
        typed = [
            f"{text} as in {library}" if library else text
            for library, text in one.typed_by_library(value).items()
        ]
        parents = [*keys, one.key.rpartition(".")[0]]
        text = f"): {', or '.join(typed)}"
        if one.key in keys:  # first, before what exists with other options
            place = one.key.rpartition(".")[0]
            if nearest(parent.rpartition(".")[2], [place.rpartition(".")[2]]):  # the part that was typed
                suggestions = {why: fix for why, fix in suggestions.items() if fix.startswith(f"{place}.")}
            suggestions = {one.meaning: "", **suggestions} | {one.meaning: f"{one.key} ({one.meaning}{text}"}
            break
        if one.key != key and (owners := owners_of(one.key, parents)):
            suggestions[one.meaning] = f"{one.key} ({one.meaning}; exists with {some(owners)}{text}"
    if suggestions:
        fix = f"Use {'; or '.join(suggestions.values())}"
        return InputError.about(key, "no such key", fix, code="unknown-key")
    if parent or not elsewhere:
        places = [key] if parent else [f"{node}.{leaf}" for node in ("agent", "env")]
        for place in places:
            if owners := owners_of(place, keys):
                what = "It" if place == key else place
                fix = f"{what} exists with {some(owners)}"
                return InputError.about(key, "no such key here", fix, code="unknown-key")
    beside = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == parent}
    if not parent:
        beside |= {verb: f"+{verb}={value or 'latest'}" for verb in VERBS}
    near = elsewhere or [beside[name] for name in nearest(leaf, beside, 3)]
    if near or parent not in keys:
        hint = suggested((near or nearest(key, keys, 3))[:3])
    elif beside:
        hint = f" Known keys there: {some(list(beside.values()))}."
    else:
        hint = f" To add it, write +{key}={value or '<value>'}."
    node = "hydra" if key.startswith("hydra.") else "job"
    fix = f"{hint} To see every key, type labrl --cfg {node}"
    return InputError.about(key, "no such key", fix, code="unknown-key")


def option_named(name: str) -> str:
    """Return group=option for the name of an option, or '' if there is none."""
    groups = ["agent", "env", "meta", "wandb", "experiment", "agent/network", "agent/memory"]
    if group := next((one for one in groups if name.lower() in options_of(one)), ""):
        return f"{group}={name.lower()}"
    for agent in options_of("agent"):  # the name of a spec in SLM Lab, such as ppo_cartpole
        if (env := name.lower().removeprefix(f"{agent}_")) != name.lower() and env in options_of("env"):
            return f"agent={agent} env={env}"
    return other_option("agent", name) or env_of(name)


def choice_of(group: str, value: str) -> str:
    """Return group=option for an option that is spelled as in another library."""
    if group == "env" and (found := env_of(value)):
        return found
    if found := other_option(group, value):
        return found
    name, known = value.lower().replace("-", "_"), options_of(group)
    return f"{group}={name if name in known else (nearest(name, known) or [value or '<option>'])[0]}"
