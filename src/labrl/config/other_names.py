"""What names from other libraries, and keys at the wrong place, are called in labrl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from labrl.config.environments import listed
from labrl.config.folder import config_folder
from labrl.errors import Mistake, nearest, suggested

VERBS = ("resume", "rerun", "enjoy", "force", "pin")
"""Words that are typed with a plus and are no keys."""

SOME = 8
"""Options or owners of a key that a message lists at most."""


@dataclass(frozen=True)
class OtherName:
    """A key of labrl's that has another name in other libraries."""

    key: str
    meaning: str
    """The beginning of a sentence that the key ends."""
    type: str
    """What to type; empty where it is the key with the value that was given."""

    def typed(self, value: str) -> str:
        """What to type instead of the other name with `value`."""
        if self.key in ("agent", "env"):
            return choice_of(self.key, value)
        return self.type or f"{self.key}={value or '<value>'}"


@cache
def _content() -> dict[str, Any]:
    content = yaml.safe_load((Path(__file__).parent / "other_names.yaml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@cache
def other_names() -> dict[str, list[OtherName]]:
    """What is meant by each name that users bring from other libraries, the likeliest first."""
    found: dict[str, list[OtherName]] = {}
    for entry in _content()["keys"]:
        meant = OtherName(entry["key"], entry["meaning"], entry.get("type", ""))
        for name in entry["names"]:
            found.setdefault(name, []).append(meant)
    return found


def other_words() -> dict[str, str]:
    """What to type for the words that are commands elsewhere, such as train."""
    words = _content()["words"]
    assert isinstance(words, dict)
    return words


def unknown_key(key: str, value: str, known: Iterable[str]) -> Mistake:
    """The mistake `key=value`, where `known` are all keys of the chosen configuration."""
    keys = sorted(known, key=lambda name: name.count("."))
    parent, _, leaf = key.rpartition(".")
    elsewhere = [name for name in keys if name.rpartition(".")[2] == leaf]
    said: dict[str, str] = {}
    for one in other_names().get(leaf.lower(), []):
        if one.key in keys:
            said[one.meaning] = f"{one.key} ({one.typed(value)})"
            break
        if owners := owners_of(one.key, keys):
            said[one.meaning] = f"{one.key}, which is there with {some(owners)}"
    if not said and (parent or not elsewhere):
        places = [key] if parent else [f"{node}.{leaf}" for node in ("agent", "env")]
        if owners := [owner for place in places for owner in owners_of(place, keys)]:
            said["to have it, choose"] = some(owners)
    if said:
        answer = "; ".join(" ".join(pair) for pair in said.items())
        return Mistake("unknown-key", key, f"{key}: no such key; {answer}")
    beside = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == parent}
    if not parent:
        beside |= {verb: f"+{verb}={value or 'latest'}" for verb in VERBS}
    near = elsewhere or [beside[name] for name in nearest(leaf, beside, 3)]
    if near or parent not in keys:
        hint = suggested((near or nearest(key, keys, 3))[:3])
    elif beside:
        hint = f" Known there: {some(list(beside.values()))}."
    else:
        hint = f" To add it there write +{key}={value or '<value>'}."
    node = "hydra" if key.startswith("hydra.") else "job"
    return Mistake("unknown-key", key, f"{key}: no such key.{hint} labrl --cfg {node} prints every key.")


def some(names: Sequence[str]) -> str:
    """The names, or the first of them."""
    return ", ".join(names[:SOME]) + (" and others" if len(names) > SOME else "")


def owners_of(key: str, known: Sequence[str]) -> list[str]:
    """What to choose, such as agent=ppo or agent/target=polyak, for there to be such a key."""
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        group, inner = "/".join(parts[:length]), ".".join(parts[length:])
        if length == 1 or ".".join(parts[:length]) in known:
            files = sorted((config_folder() / group).glob("*.yaml"))
            if found := [_owner(group, file.stem) for file in files if holds(group, file.stem, inner)]:
                return found
    return []


def _owner(group: str, option: str) -> str:
    return "env=<any Atari game>" if (group, option) == ("env", "atari") else f"{group}={option}"


@cache
def holds(group: str, option: str, key: str) -> bool:
    """Whether the file of an option of labrl's, or one that it builds on, has a key."""
    file = config_folder() / group / f"{option}.yaml"
    if not file.is_file():
        return False
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    part, _, inner = key.partition(".")
    for entry in content.pop("defaults", []):
        if isinstance(entry, str):
            if entry != "_self_" and holds(group, entry, key):
                return True
        elif any(
            name.split()[-1] == part and (not inner or holds(f"{group}/{part}", str(chosen), inner))
            for name, chosen in entry.items()
        ):
            return True
    return key in _keys(content.get(group, content))


def all_keys(cfg: DictConfig | Mapping[str, Any]) -> list[str]:
    """Every full key of a configuration."""
    plain = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else cfg
    assert isinstance(plain, Mapping)
    return list(_keys(plain))


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def option_named(word: str) -> str:
    """group=option for the name of an option, or '' where there is none."""
    groups = ["agent", "env", "meta", "wandb", "experiment", "agent/network", "agent/memory"]
    for group in groups:
        if word.lower() in names_in(group):
            return f"{group}={word.lower()}"
    by_id = env_of(word)
    return by_id if by_id and not by_id.endswith("<id>") else ""


def choice_of(group: str, value: str) -> str:
    """group=option for an option as other libraries spell it."""
    known = names_in(group)
    if group == "env" and (found := env_of(value)):
        return found
    name = value.lower().replace("-", "_")
    return f"{group}={name if name in known else (nearest(name, known) or [value or '<option>'])[0]}"


@cache
def names_in(group: str) -> tuple[str, ...]:
    if group == "env":
        return tuple(name for name, _, _ in listed())
    return tuple(file.stem for file in sorted((config_folder() / group).glob("*.yaml")))


def env_of(env_id: str) -> str:
    """env=ms_pacman for ALE/MsPacman-v5 or MsPacmanNoFrameskip-v4; '' for what is no id of Gymnasium's."""
    if not re.search(r"-v\d+$", env_id) and not env_id.startswith("ALE/"):
        return ""
    stem = re.sub(r"(NoFrameskip|Deterministic|-ram)*(-v\d+)?$", "", env_id.rpartition("/")[2])
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    stems = {name: one for one, _, identity in listed() for name in (one, identity.rpartition("-v")[0])}
    own = stems.get(name) or stems.get(stem)
    return f"env={own}" if own else f"env=gymnasium env.id={env_id}"
