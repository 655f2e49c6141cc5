"""Every key of every configuration is read by some code: a key without effect is refused here."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, get_args

import pytest
import yaml

import labrl
from labrl.config.folder import config_folder
from labrl.schedules import ShapedSchedule

SOURCE = resources.files("labrl")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(labrl.__path__, "labrl."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


@functools.cache
def dataclasses_of_labrl() -> dict[str, type]:
    kinds = (kind for module in modules() for _, kind in inspect.getmembers(module, inspect.isclass))
    return {kind.__name__: kind for kind in kinds if dataclasses.is_dataclass(kind)}


def configs() -> dict[str, type]:
    """Those whose fields are keys, by name."""
    return {name: kind for name, kind in dataclasses_of_labrl().items() if name.endswith("Config")}


@functools.cache
def read() -> set[str]:
    """Every name that some code reads as an attribute, or asks for by its name."""
    names: set[str] = set()
    for module in modules():
        if module.__file__ is None or not module.__file__.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            if isinstance(node, ast.Subscript | ast.Call):
                asked = [node.slice] if isinstance(node, ast.Subscript) else node.args
                names |= {str(one.value) for one in asked if isinstance(one, ast.Constant)}
    for path in files(config_folder()):  # n_trials: ${meta.max_trial}
        names |= {key.rpartition(".")[2] for key in re.findall(r"\$\{([\w.]+)", path.read_text())}
    return names


def has_a_choice(field: dataclasses.Field[Any]) -> bool:
    """Whether there is more than one value; a key with one says so, and leaves room for others."""
    return not re.fullmatch(r"Literal\[[^,]*\]", str(field.type))


@pytest.mark.parametrize("name", sorted(configs()))
def test_every_field_of_a_configuration_is_read(name: str) -> None:
    fields = filter(has_a_choice, dataclasses.fields(configs()[name]))
    unread = [field.name for field in fields if field.name not in read()]
    assert not unread, f"{name}: no code reads {', '.join(unread)}"


def groups() -> list[str]:
    return sorted(path.name for path in config_folder().iterdir() if path.is_dir())


def files(folder: Any) -> Iterator[Any]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from files(path)
        elif path.name.endswith(".yaml"):
            yield path


def keys(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key != "defaults":
                yield str(key)
                yield from keys(value) if key not in FREE else ()
    elif isinstance(node, list):
        for value in node:
            yield from keys(value)


SCHEDULES = {field.name for kind in get_args(ShapedSchedule) for field in dataclasses.fields(kind)} | {
    "points"
}

FREE = {"kwargs", "params", "make", "space"}
"""Below these lie the settings of others: an environment's own, the keys that a search varies."""

NAMES = {"observation", "reward"}
"""Names of transforms, which a user is free to choose."""


@pytest.mark.parametrize("group", [group for group in groups() if group != "hydra"])
def test_every_key_of_every_file_belongs_to_a_configuration(group: str) -> None:
    known = {field.name for kind in dataclasses_of_labrl().values() for field in dataclasses.fields(kind)}
    known |= {"_target_", *FREE, *NAMES, *SCHEDULES, *groups()}
    for path in files(config_folder() / group):
        unknown = [key for key in keys(yaml.safe_load(path.read_text())) if key not in known]
        assert not unknown, f"{path}: nothing knows {unknown}"
