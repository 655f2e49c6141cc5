"""Tests that every configuration key is documented, read by some code, and has its default in YAML alone."""

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
from labrl.config.schema import TrialConfig
from labrl.config.traits import dataclasses_in, hints

REFERENCE = Path(__file__).parents[2] / "docs" / "generate_reference.py"


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(labrl.__path__, "labrl."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def with_nested(cls: type) -> Iterator[type]:
    """Yield a dataclass and those nested in its fields, except schedules, which have their own notation."""
    if cls.__module__ != schedules.__name__:
        yield cls
        for hint in hints(cls).values():
            for part in dataclasses_in(hint):
                yield from with_nested(part)


@cache
def configs() -> dict[str, type]:
    """Return every dataclass of labrl whose fields are configuration keys, by qualified name."""
    kinds = {kind for module in modules() for _, kind in inspect.getmembers(module, inspect.isclass)}
    roots = [getattr(kind, "Config", None) for kind in kinds if kind.__module__.startswith("labrl.")]
    found = {
        part for root in [TrialConfig, *roots] if dataclasses.is_dataclass(root) for part in with_nested(root)
    }  # type: ignore[arg-type]
    return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in found}


def test_no_field_has_a_default() -> None:
    missing = dataclasses.MISSING
    fields = [(name, field) for name, cls in configs().items() for field in dataclasses.fields(cls)]
    defaults = [
        (name, field.name)
        for name, field in fields
        if (field.default, field.default_factory) != (missing, missing)
    ]
    assert not defaults, "default values belong in configs/, not in the dataclass"


def test_every_field_has_a_docstring() -> None:
    field_docstrings = runpy.run_path(str(REFERENCE))["field_docstrings"]
    undocumented = {name: hints(cls).keys() - field_docstrings(cls).keys() for name, cls in configs().items()}
    assert not [(name, fields) for name, fields in undocumented.items() if fields], (
        "fields without a docstring"
    )


@cache
def names_read() -> set[str]:
    """Return every name that some code reads as an attribute or looks up by a string."""
    names: set[str] = set()
    for module in modules():
        if module.__file__ is None or not module.__file__.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            if isinstance(node, ast.Subscript | ast.Call):
                looked_up = [node.slice] if isinstance(node, ast.Subscript) else node.args
                names |= {str(one.value) for one in looked_up if isinstance(one, ast.Constant)}
    for path in config_folder().rglob("*.yaml"):  # n_trials: ${meta.max_trial}
        names |= {key.rpartition(".")[2] for key in re.findall(r"\$\{([\w.]+)", path.read_text())}
    return names


def test_every_field_is_read() -> None:
    """Some code reads every field, so that every key has an effect.

    A Literal with a single option is exempt: it has no effect until a second option is added.
    """
    unread = [
        (name, field)
        for name, cls in configs().items()
        for field, hint in hints(cls).items()
        if field not in names_read() and not (get_origin(hint) is Literal and len(get_args(hint)) == 1)
    ]
    assert not unread, "no code reads these fields"


def package_of(file: Path) -> str:
    """Return the package of a YAML file: the key under which its keys are placed, '' for the top level."""
    header = re.match(r"# @package (\S+)", file.read_text())
    folders = file.relative_to(config_folder()).parent.parts
    return header[1].removeprefix("_global_") if header else ".".join(folders)


@cache
def content(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text()) or {}


def base_options(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that a YAML file inherits from, nearest first, each with the package of its keys."""
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
            yield from base_options(other)


@dataclasses.dataclass(frozen=True)
class Node:
    """A mapping in a YAML file."""

    file: Path
    place: str
    """Full key of the mapping; '' at the top level."""
    target: str | None
    """The mapping's `_target_`, or that of the option that inherits from this file."""
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
    """Return every mapping in configs/ except Hydra's.

    The mappings of an inherited file appear again for each option that inherits from it.
    """
    found: list[Node] = []
    for file in sorted(config_folder().rglob("*.yaml")):
        if file.relative_to(config_folder()).parts[0] != "hydra":
            here = package_of(file)
            chain = [(file, here), *base_options(file)]
            targets = [
                content(one)["_target_"] for one, at in chain if at == here and "_target_" in content(one)
            ]
            sections = file.parent.name == "preset" and "@package" not in file.read_text()
            for section in content(file).values() if sections else ():
                found += nodes_in(file, "", section, None)
            for one, at in chain if not sections else ():
                found += nodes_in(one, at, content(one), next(iter(targets), None) if at == here else None)
    return found


@cache
def classes_at(place: str) -> list[type]:
    """Return the dataclasses that may define the keys at a place; none if labrl does not define them."""
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
    """Return the dataclasses that may define the keys of a node."""
    if node.target:
        return configs_of(node.target)
    found = classes_at(node.place)
    return [cls for cls in found if node.keys.get("kind") in get_args(hints(cls).get("kind"))] or found


@cache
def fields_in_yaml() -> dict[type, set[str]]:
    """Return for each dataclass the fields that some YAML file sets."""
    places = {node.place for node in nodes()}
    found: dict[type, set[str]] = defaultdict(set)
    for node in nodes():
        for cls in (base for own in classes_of(node) for base in own.__mro__[:-1]):
            groups = {name for name in hints(cls) if f"{node.place}.{name}".lstrip(".") in places}
            found[cls] |= hints(cls).keys() & (node.keys.keys() | groups)
    return found


def test_yaml_sets_all_fields_of_a_dataclass_or_none() -> None:
    """The fields of a component that is null in YAML, such as `meta.profile`, are all set by the user."""
    unset = {
        name: hints(cls).keys() - fields_in_yaml()[cls]
        for name, cls in configs().items()
        if fields_in_yaml()[cls] not in (hints(cls).keys(), set())
    }
    assert not unset, "no YAML file sets these fields"


FILES = sorted({node.file for node in nodes()})


def test_every_yaml_key_is_a_field() -> None:
    for node in (node for node in nodes() if node.file in FILES):
        known = {name for cls in classes_of(node) for name in hints(cls)}
        unknown = node.keys.keys() - known if known else set()
        assert not unknown, f"{node.file}: keys of '{node.place}' that are not fields"


def leaves(place: str, found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, dict) and found:
        for key, value in found.items():
            if key != "defaults":
                yield from leaves(f"{place}.{key}", value)
    else:
        yield place, found


def test_option_does_not_repeat_values_of_its_base_options() -> None:
    repeated = []
    for file in FILES:
        chain = reversed([*base_options(file)])
        before = dict(pair for one, place in chain for pair in leaves(place, content(one)))
        own = dict(leaves(package_of(file), content(file)))
        repeated += [(file, key) for key, value in own.items() if key in before and before[key] == value]
    assert not repeated
