"""Tests that every configuration key is documented, read by some code, and has its default in YAML alone."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import labrl
from labrl import schedules
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
