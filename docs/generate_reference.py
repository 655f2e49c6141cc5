"""Write docs/reference/: every configuration key with its type, default and meaning.

    python docs/generate_reference.py            # write the pages
    python docs/generate_reference.py --check    # fail where they are not up to date

Types and meanings come from the config dataclasses and the docstrings below their fields, defaults from the YAML
files in configs/.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import hydra
from omegaconf import OmegaConf

from labrl import schedules
from labrl.config import types as scalars
from labrl.config.compose import compose, prepare
from labrl.config.component import Component, load_target
from labrl.config.folder import config_folder
from labrl.config.schema import TrialConfig

PAGES = {
    "agent": ("Agents", ["agent"]),
    "network": ("Networks and optimizers", ["agent/network", "agent/optimizer"]),
    "memory": ("Replay buffers and offline data", ["agent/memory", "agent/offline"]),
    "parts": (
        "Parts of agents",
        ["agent/exploration", "agent/value", "agent/target", "agent/noise", "agent/self_imitation"],
    ),
    "env": ("Environments", ["env"]),
    "meta": ("How a trial is run", ["meta"]),
    "search": ("Searches", ["search", "search/pruner"]),
    "wandb": ("Weights & Biases", ["wandb"]),
}
"""File name to the page's title and the groups on it."""


@dataclass(frozen=True)
class Row:
    """One key."""

    key: str
    type: str
    default: str
    meaning: str


def options_of(group: str) -> list[str]:
    """The option files of `group`, by name."""
    return sorted(file.stem for file in (config_folder() / group).glob("*.yaml"))


@cache
def node_of(group: str, option: str) -> Any:
    """What the file of an option says, with the files that it builds on, as plain data."""
    from labrl.config.compose import _hydra

    prepare()
    with _hydra(None):
        node: Any = OmegaConf.to_container(hydra.compose(f"{group}/{option}"), resolve=False)
    for name in group.split("/"):
        node = node.get(name, {}) if isinstance(node, dict) else node
    return node


@cache
def documented(cls: type) -> dict[str, str]:
    """Field to the docstring below it, the class's own before those of its parents."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        if not dataclasses.is_dataclass(owner):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


@cache
def named_types() -> list[tuple[Any, str]]:
    """The scalar types of labrl.config.types with the docstrings below them."""
    body = ast.parse(inspect.getsource(scalars)).body
    found = []
    for assigned, text in zip(body, body[1:], strict=False):
        if isinstance(assigned, ast.Assign) and isinstance(text, ast.Expr):
            (target,) = assigned.targets
            assert isinstance(target, ast.Name) and isinstance(text.value, ast.Constant)
            found.append((getattr(scalars, target.id), " ".join(str(text.value.value).split())))
    return found


def type_of(hint: Any) -> str:
    """`hint` in words."""
    for known, text in named_types():
        if known == hint:
            return text
    if hint == schedules.Schedule:
        return "number or schedule"
    if hint is type(None):
        return "null"
    if hint is Component:
        return "a part with a `_target_`"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_of(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{shown(one)}`" for one in arguments)
    if origin in (Union, types.UnionType):
        kinds = [one for one in arguments if not dataclasses.is_dataclass(one)]
        return " or ".join([*map(type_of, kinds), *(["a group of keys"] if len(kinds) < len(arguments) else [])])
    if origin is list:
        return f"list of {type_of(arguments[0])}"
    if origin is dict:
        return "group of keys"
    names = {int: "integer", float: "number", bool: "`true` or `false`", str: "text"}
    return names.get(hint, "a group of keys")


def shown(value: Any) -> str:
    """`value` as YAML has it, in one line."""
    if isinstance(value, float) and value == int(value) and abs(value) >= 1e4:
        return f"{value:.0e}".replace("e+0", "e")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shown(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if not value or value is True else str(value)


def rows(cls: type, nodes: Mapping[str, Mapping[str, Any]], key: str) -> Iterator[Row]:
    """The keys below `key` of the dataclass `cls`. nodes: option to what its file says there."""
    hints = get_type_hints(cls, include_extras=True)
    meanings = documented(cls)
    for field in dataclasses.fields(cls):
        hint, full = hints[field.name], f"{key}.{field.name}"
        inner = {option: node[field.name] for option, node in nodes.items() if field.name in node}
        kinds = [one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)]
        if is_group(full):
            yield Row(full, f"an option of `{full.replace('.', '/')}`", "", meanings[field.name])
        elif hint is Component or Component in get_args(hint):
            yield from component_rows(inner, full, meanings[field.name])
        elif len(kinds) == 1 and kinds[0] is hint:
            yield from rows(kinds[0], inner, full)
        else:
            yield Row(full, type_of(hint), default_of(inner), meanings[field.name])


def component_rows(nodes: Mapping[str, Any], key: str, meaning: str) -> Iterator[Row]:
    """A part that is no group's option, and the keys of the one that stands there."""
    targets = {option: node["_target_"] for option, node in nodes.items() if isinstance(node, dict)}
    yield Row(key, "a part with a `_target_`", default_of({**dict.fromkeys(nodes), **targets}), meaning)
    for target in dict.fromkeys(targets.values()):
        config = getattr(load_target(target), "Config", None)
        inner = {option: nodes[option] for option, one in targets.items() if one == target}
        if config is not None:
            yield from rows(config, inner, key)


def is_group(key: str) -> bool:
    """Whether the value of `key` is chosen as the option of a group."""
    return (config_folder() / key.replace(".", "/")).is_dir()


def default_of(values: Mapping[str, Any]) -> str:
    """The default, and that of each option which has another one."""
    texts = {option: f"`{shown(value)}`" for option, value in values.items()}
    by_text: dict[str, list[str]] = {}
    for option, text in texts.items():
        by_text.setdefault(text, []).append(option)
    if len(by_text) < 2:
        return "".join(by_text)
    return "; ".join(f"{text} ({', '.join(options)})" for text, options in by_text.items())
