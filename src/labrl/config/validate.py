"""Convert nested dicts to typed config dataclasses, and report every mistake with its full key.

Pydantic traverses the dataclasses and checks the values. `_strict` adapts its schemas to YAML, and
`_mistakes` converts its errors to labrl's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

from labrl.component import Component, TargetError, accepted_settings, load_target
from labrl.config.keys import walk, written
from labrl.errors import Code, InputError, described
from labrl.mistakes.names import setting_of, unknown_key
from labrl.mistakes.spelling import did_you_mean
from labrl.processes.secrets import restore
from labrl.types import real_number, whole_number

T = TypeVar("T")


_Info = core_schema.ValidationInfo[dict[Any, Any]]
"""The state of a validation that Pydantic passes to validators, with the full key of each group in the
configuration by Python's `id`, and the names that each component accepts by its full key."""


def dataclass_of(cls: type[T], node: Any, key: str = "") -> T:
    """Return `node`, whose full key is `key`, as an instance of the dataclass `cls`. Masked secrets of a
    recorded configuration are filled in.

    Raises InputError with a mistake for each wrong, unknown or missing key below `key`, and for each secret
    that is not known.
    """
    node = restore(node, key)
    places = dict(walk(node, key))
    context: dict[Any, Any] = {
        id(inner): full for full, inner in places.items() if isinstance(inner, Mapping)
    }
    try:
        validator: SchemaValidator = _validator(cls)  # type: ignore[arg-type]
        return cast("T", validator.validate_python(node, context=context))
    except ValidationError as error:
        raise InputError.of(_mistakes(error, places, key, context)) from None


# --- pydantic's schemas, made strict ---


@cache
def _validator(cls: type) -> SchemaValidator:
    """Return a strict validator. Raises PydanticUserError or NameError if pydantic cannot read a type."""
    return SchemaValidator(_strict(TypeAdapter(cls).core_schema))


def _strict(schema: Any) -> Any:
    """Return a pydantic schema that converts no scalars and forbids unknown keys in dataclasses."""
    if isinstance(schema, list):
        return [_strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    kept = ("default", "expected", "metadata")  # values, which may look like schemas
    schema = {name: inner if name in kept else _strict(inner) for name, inner in schema.items()}
    match schema.get("type"):
        case "int":
            return core_schema.no_info_before_validator_function(whole_number, schema)
        case "float":
            return core_schema.no_info_before_validator_function(real_number, schema)
        case "bool" | "str":
            return {**schema, "strict": True}
        case "dataclass" if schema["cls"] is Component:
            return core_schema.with_info_plain_validator_function(_component_of, ref=schema.get("ref"))
        case "dataclass":
            schema["config"] = {**schema.get("config", {}), "extra_fields_behavior": "forbid"}
    return schema


def _component_of(node: Any, info: _Info) -> Component:
    """Make the component described by `node`. Pydantic merges a ValidationError into the outer one."""
    if isinstance(node, Component):
        return node
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise PydanticCustomError("type", "must be a group of keys with a _target_")
    key, path = info.context[id(node)], node["_target_"]
    settings = {name: value for name, value in node.items() if name != "_target_"}
    try:
        target = load_target(path)
        config = getattr(target, "Config", None)
        if isinstance(config, type) and dataclasses.is_dataclass(config):
            info.context[key] = [one.name for one in dataclasses.fields(config)]
            return Component(path, _validator(config).validate_python(settings, context=info.context), key)
    except TargetError as error:
        why = f"{error}{did_you_mean(error.missing, error.known)}"
        raise InputError.about(f"{key}._target_", why, code="target") from None
    except (NameError, TypeError) as error:  # in an annotation of its Config
        raise InputError.about(f"{key}._target_", described(error), code="target") from error
    accepted = accepted_settings(target)
    known = [f"{key}.{name}" for name in accepted or settings]
    if unknown := [name for name in settings if f"{key}.{name}" not in known]:
        raise InputError.of(unknown_key(f"{key}.{name}", written(settings[name]), known) for name in unknown)
    return Component(path, settings, key)


# --- pydantic's errors as mistakes ---


_NAMES = ("literal_error", "union_tag_invalid")
"""Kinds of pydantic's errors for a value that is not one of a set of names."""


def _mistakes(
    error: ValidationError, places: Mapping[str, Any], key: str, context: Mapping[Any, Any]
) -> list[InputError]:
    """Return one error for each wrong key.

    places: the values below `key` by their full keys; context: see `_Info`.
    """
    found: dict[str, InputError] = {}
    for one in error.errors(include_url=False):
        full = key
        for part in one["loc"]:  # a part that is not a key names a member of a union
            below = _below(full, part)
            full = below if below in places or (one["type"] == "missing" and part == one["loc"][-1]) else full
        parent = full.rpartition(".")[0]
        own = [f"{parent}.{name}" for name in context.get(parent, ())]
        # Keys beside an unknown key may be unknown too.
        known = [*own, *(other for other in places if not other.startswith(f"{parent}."))]
        mistake = _mistake(one, full, places.get(full), known)
        # For a union, pydantic reports the errors of every member. The intended one is that whose type was
        # right, or in which validation got furthest.
        if (earlier := found.get(full)) is None or earlier.code == "type":
            found[full] = mistake
    furthest = [
        mistake
        for full, mistake in found.items()
        if not any(other.startswith((f"{full}.", f"{full}[")) for other in found)
    ]
    # Missing keys come last, because an unknown key may be a misspelling of a missing one.
    return sorted(furthest, key=lambda mistake: mistake.code == "missing")


def _mistake(one: Any, key: str, given: Any, known: Iterable[str]) -> InputError:
    """Convert a pydantic error at `key`, which has the value `given`, to an InputError."""
    kind, message = one["type"], one["msg"].removeprefix("Value error, ")
    setting = setting_of(key.partition("[")[0], given)
    if kind == "unexpected_keyword_argument":
        return unknown_key(key, written(given), known)
    if kind == "missing":
        return InputError.missing(key, fix=setting)
    code: Code = "range" if kind.startswith(("greater", "less", "too_", "value_error")) else "type"
    code = kind if kind in get_args(Code) else "unknown-option" if kind in _NAMES else code
    names = re.findall(r"'([^']*)'", message) if kind in _NAMES else []
    hint = did_you_mean(str(given), names, f"{key}=")
    if not hint and isinstance(given, str) and "/" in setting:
        hint = setting
    allowed, is_rule = re.subn(r"^(Input should|must) ", "", message)
    if isinstance(given, Mapping) or not is_rule:  # several keys of the group contradict each other
        return InputError.about(key, message, hint, code="contradiction" if kind == "value_error" else code)
    shown = repr(given) if isinstance(given, str) else written(given)
    return InputError.value(key, f"{shown:.80}", allowed, fix=hint, code=code)


def _below(key: str, part: str | int) -> str:
    """Return the full key of `part`, a name or a list index, below `key`."""
    return f"{key}[{part}]" if isinstance(part, int) else f"{key}.{part}" if key else part
