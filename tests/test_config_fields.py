"""Every key is a field with a meaning that some code reads, and YAML alone gives its default."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import runpy
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

import labrl
from labrl import schedules
from labrl.component import load_target
from labrl.config import config_folder
from labrl.config.keys import dataclasses_in, hints
from labrl.config.schema import TrialConfig

REFERENCE = Path(__file__).parents[1] / "docs" / "generate_reference.py"


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(labrl.__path__, "labrl."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def with_parts(cls: type) -> Iterator[type]:
    """A dataclass and those that its fields hold, but for the shapes of schedules, which are a notation."""
    if cls.__module__ != schedules.__name__:
        yield cls
        for hint in hints(cls).values():
            for part in dataclasses_in(hint):
                yield from with_parts(part)


@cache
def configs() -> dict[str, type]:
    """Every dataclass of labrl whose fields are keys, by name."""
    kinds = {kind for module in modules() for _, kind in inspect.getmembers(module, inspect.isclass)}
    roots = [getattr(kind, "Config", None) for kind in kinds if kind.__module__.startswith("labrl.")]
    found = {
        part for root in [TrialConfig, *roots] if dataclasses.is_dataclass(root) for part in with_parts(root)
    }  # type: ignore[arg-type]
    return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in found}


def test_no_field_has_a_default() -> None:
    missing = dataclasses.MISSING
    fields = [(name, field) for name, cls in configs().items() for field in dataclasses.fields(cls)]
    given = [
        (name, field.name)
        for name, field in fields
        if (field.default, field.default_factory) != (missing, missing)
    ]
    assert not given, "configs/ gives their values"


def test_every_field_has_a_docstring() -> None:
    field_docstrings = runpy.run_path(str(REFERENCE))["field_docstrings"]
    silent = {name: hints(cls).keys() - field_docstrings(cls).keys() for name, cls in configs().items()}
    assert not [(name, fields) for name, fields in silent.items() if fields], "nobody says what these mean"


@cache
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
    for path in config_folder().rglob("*.yaml"):  # n_trials: ${meta.max_trial}
        names |= {key.rpartition(".")[2] for key in re.findall(r"\$\{([\w.]+)", path.read_text())}
    return names


def test_every_field_is_read() -> None:
    """A key without effect is refused; one with a single value leaves room for others."""
    unread = [
        (name, field)
        for name, cls in configs().items()
        for field, hint in hints(cls).items()
        if field not in read() and not (get_origin(hint) is Literal and len(get_args(hint)) == 1)
    ]
    assert not unread, "no code reads them"


def package_of(file: Path) -> str:
    """Return the key under which the keys of a file stand; '' at the top."""
    header = re.match(r"# @package (\S+)", file.read_text())
    folders = file.relative_to(config_folder()).parent.parts
    return header[1].removeprefix("_global_") if header else ".".join(folders)


@cache
def content(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text()) or {}


def built_on(file: Path) -> Iterator[tuple[Path, str]]:
    """The options that an option is built on, and where their keys stand, the nearest first."""
    here = package_of(file)
    for default in content(file).get("defaults", []):
        ((name, option),) = default.items() if isinstance(default, dict) else [(default, "")]
        group, _, package = name.partition("@")
        if option and package:
            other, place = config_folder() / group.lstrip("/") / f"{option}.yaml", f"{here}.{package}"
        else:
            other, place = file.parent / f"{group}.yaml", package or here
        if other.exists():
            yield other, place
            yield from built_on(other)


@dataclasses.dataclass(frozen=True)
class Node:
    """A group of keys in a YAML file."""

    file: Path
    place: str
    """Its full key; '' at the top."""
    target: str | None
    """Its `_target_`, or that of the option that is built on the file."""
    keys: dict[str, Any]


def nodes_in(file: Path, place: str, found: Any, target: str | None) -> Iterator[Node]:
    if isinstance(found, dict):
        keys = {str(key): value for key, value in found.items() if key not in ("defaults", "hydra")}
        own = keys.pop("_target_", None)
        yield Node(file, place, target or own, keys)
        for key, value in keys.items():
            yield from nodes_in(file, f"{place}.{key}".lstrip("."), value, None)


@cache
def nodes() -> list[Node]:
    """Every group of keys in configs/ but Hydra's; one that an option is built on is there for both."""
    found: list[Node] = []
    for file in sorted(config_folder().rglob("*.yaml")):
        if file.relative_to(config_folder()).parts[0] != "hydra":
            here = package_of(file)
            chain = [(file, here), *built_on(file)]
            targets = [
                content(one)["_target_"] for one, at in chain if at == here and "_target_" in content(one)
            ]
            for one, at in chain:
                found += nodes_in(one, at, content(one), next(iter(targets), None) if at == here else None)
    return found


@cache
def classes_at(place: str) -> list[type]:
    """The dataclasses that keys at a place can belong to; none where labrl does not know the keys."""
    if not place:
        return [TrialConfig]
    above, _, name = place.rpartition(".")
    hints_here = [hints(cls)[name] for cls in classes_at(above) if name in hints(cls)]
    targets = {node.target for node in nodes() if node.place == place and node.target}
    return [*configs_of(*targets), *(cls for hint in hints_here for cls in dataclasses_in(hint))]


def configs_of(*targets: str) -> list[type]:
    loaded = [load_target(target) for target in targets if target.startswith("labrl.")]
    return [target.Config for target in loaded if hasattr(target, "Config")]


def classes_of(node: Node) -> list[type]:
    """The dataclasses that the keys of a node can belong to."""
    if node.target:
        return configs_of(node.target)
    found = classes_at(node.place)
    return [cls for cls in found if node.keys.get("kind") in get_args(hints(cls).get("kind"))] or found


@cache
def in_yaml() -> dict[type, set[str]]:
    """The fields of each dataclass that some YAML file gives."""
    places = {node.place for node in nodes()}
    found: dict[type, set[str]] = defaultdict(set)
    for node in nodes():
        for cls in (base for own in classes_of(node) for base in own.__mro__[:-1]):
            groups = {name for name in hints(cls) if f"{node.place}.{name}".lstrip(".") in places}
            found[cls] |= hints(cls).keys() & (node.keys.keys() | groups)
    return found


def test_yaml_gives_every_field_or_leaves_all_of_them_to_be_typed() -> None:
    """Where a part is null in YAML, such as `meta.profile`, all of its fields are typed."""
    lacking = {
        name: hints(cls).keys() - in_yaml()[cls]
        for name, cls in configs().items()
        if in_yaml()[cls] not in (hints(cls).keys(), set())
    }
    assert not lacking, "no YAML file has these"


RULE = config_folder() / "presets.yaml"
"""The file that says which presets apply; it is no part of a configuration."""
FILES = sorted({node.file for node in nodes()} - {RULE})


def test_every_key_of_a_file_is_a_field() -> None:
    for node in (node for node in nodes() if node.file in FILES):
        known = {name for cls in classes_of(node) for name in hints(cls)}
        unknown = node.keys.keys() - known if known else set()
        assert not unknown, f"{node.file}: {node.place} has no such keys"


def leaves(place: str, found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, dict) and found:
        for key, value in found.items():
            if key != "defaults":
                yield from leaves(f"{place}.{key}", value)
    else:
        yield place, found


def test_an_option_does_not_repeat_a_value_of_the_option_that_it_is_built_on() -> None:
    repeated = []
    for file in FILES:
        chain = reversed([*built_on(file)])
        before = dict(pair for one, place in chain for pair in leaves(place, content(one)))
        own = dict(leaves(package_of(file), content(file)))
        repeated += [(file, key) for key, value in own.items() if key in before and before[key] == value]
    assert not repeated
