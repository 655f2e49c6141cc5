"""Convert nested dicts to typed config dataclasses, and report every mistake with its full key.

Pydantic traverses the dataclasses and checks the values. `_strict` adapts its schemas to YAML, and
`_mistakes` converts its errors to labrl's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar, cast, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator, core_schema

from labrl.component import Component, TargetError, accepted_settings, load_target
from labrl.config.keys import walk, written
from labrl.config.traits import hints
from labrl.errors import Code, InputError, LabrlError
from labrl.mistakes.names import (
    option_meant,
    setting_of,
    unknown_key,
    value_meant,
)
from labrl.mistakes.spelling import did_you_mean, suggested
from labrl.processes.secrets import restore
from labrl.types import real_number, whole_number

T = TypeVar("T")


@dataclass
class _Groups:
    """The groups of keys in the validated configuration, identified by Python's `id`."""

    keys: dict[int, str]
    """Full key of each group."""
    known: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Allowed names in each group, with their types."""


_Info = core_schema.ValidationInfo[_Groups]


def dataclass_of(cls: type[T], node: Any, key: str = "") -> T:
    """Return `node`, whose full key is `key`, as an instance of the dataclass `cls`. Masked secrets of a
    recorded configuration are filled in.

    Raises InputError with a mistake for each wrong, unknown or missing key below `key`, and for each secret
    that is not known.
    """
    node = restore(node, key)
    groups = _Groups({id(inner): full for full, inner in walk(node, key) if isinstance(inner, Mapping)})
    try:
        validator: SchemaValidator = _validator(cls)  # type: ignore[arg-type]
        return cast("T", validator.validate_python(node, context=groups))
    except ValidationError as error:
        raise InputError.of(_mistakes(error, node, key, groups)) from None


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
            note, ref = partial(_note, schema["cls"]), schema.pop("ref", None)
            schema["config"] = {**schema.get("config", {}), "extra_fields_behavior": "forbid"}
            return core_schema.with_info_before_validator_function(note, schema, ref=ref)
    return schema


def _note(cls: type, node: Any, info: _Info) -> Any:
    """Record the allowed names in `node`, which will become a `cls`. Return `node`."""
    info.context.known.setdefault(id(node), {}).update(hints(cls))
    return node


def _component_of(node: Any, info: _Info) -> Component:
    """Make the component described by `node`. Pydantic merges a ValidationError into the outer one."""
    if isinstance(node, Component):
        return node
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise PydanticCustomError("type", "must be a group of keys with a _target_")
    path, settings = node["_target_"], {name: value for name, value in node.items() if name != "_target_"}
    try:
        target = load_target(path)
        config = getattr(target, "Config", None)
        if isinstance(config, type) and dataclasses.is_dataclass(config):
            _note(config, node, info)
            options = _validator(config).validate_python(settings, context=info.context)
            return Component(path, options, info.context.keys[id(node)])
    except TargetError as error:
        why = f"{error}{did_you_mean(error.missing, error.known)}"
        raise PydanticCustomError("target", "{why}", {"why": why}) from None
    except (LabrlError, ValidationError):
        raise
    except Exception as error:
        if path.startswith("labrl."):
            raise
        why = f"its Config fails: {type(error).__name__}: {error}"
        raise PydanticCustomError("target", "{why}", {"why": why}) from error
    if (accepted := accepted_settings(target)) is not None:
        info.context.known[id(node)] = dict.fromkeys(sorted(accepted - {"observation_space"}))
        unknown: list[InitErrorDetails] = [
            {"type": "unexpected_keyword_argument", "loc": (name,), "input": value}
            for name, value in settings.items()
            if name not in accepted
        ]
        if unknown:
            raise ValidationError.from_exception_data("Component", unknown)
    return Component(path, settings, info.context.keys[id(node)])


# --- pydantic's errors as mistakes ---


def _mistakes(error: ValidationError, node: Any, key: str, groups: _Groups) -> list[InputError]:
    """Return one error for each wrong key in `node`."""
    places = dict(walk(node, key))
    found: dict[str, list[InputError]] = {}
    for one in error.errors(include_url=False):
        full = key
        for part in one["loc"]:  # a part that is not a key names a member of a union
            below = _below(full, part)
            full = below if below in places or (one["type"] == "missing" and part == one["loc"][-1]) else full
        mistake = _mistake(one, full, places, groups)
        found.setdefault(mistake.key or "", []).append(mistake)
    # For a union, pydantic reports the errors of every member. The intended member is the one in which
    # validation got furthest, or whose type was right.
    mistakes = [
        next((one for one in those if one.code != "type"), those[0])
        for full, those in found.items()
        if not any(other.startswith((f"{full}.", f"{full}[")) for other in found)
    ]
    # Missing keys come last, because an unknown key may be a misspelling of a missing one.
    return sorted(mistakes, key=lambda mistake: mistake.code == "missing")


def _mistake(one: Any, key: str, places: Mapping[str, Any], groups: _Groups) -> InputError:
    """Convert a pydantic error at `key` to an InputError."""
    kind, context, given = one["type"], one.get("ctx", {}), one["input"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = _below(key, context["discriminator"].strip("'"))
    parent = key.rpartition(".")[0]
    shown = repr(places.get(key)) if isinstance(places.get(key), str) else written(places.get(key))
    hint = option_meant(key, given)
    if not hint and "<option>" in (setting := setting_of(key.partition("[")[0])):
        hint = setting
    code: Code = "range" if kind.startswith(("greater", "less", "too_")) else "type"
    allowed = re.sub(r"^\w+ should", "must", one["msg"])
    allowed = allowed.replace("a valid boolean", "a boolean, true or false")
    allowed = re.sub(r"a (valid )?dictionary( or an instance of \w+)?", "a group of keys", allowed)
    match kind:
        case "unexpected_keyword_argument":
            # Keys beside an unknown key may be unknown too; those that belong there are in `known`.
            others = [full for full in places if full and full.rpartition(".")[0] != parent]
            here = [_below(parent, own) for own in groups.known.get(id(places.get(parent)), {})]
            return unknown_key(key, shown.strip("'"), dict.fromkeys([*others, *here]))
        case "missing" | "union_tag_not_found":
            return InputError.missing(key, fix=setting_of(key))
        case "union_tag_invalid" | "literal_error":
            text = context.get("expected_tags") or context["expected"]
            text = text.replace(" or ", ", ").replace("False", "false").replace("True", "true")
            names = [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|([^\s,]+)", text)]
            tag = str(context.get("tag", given))
            other = value_meant(key, tag)
            hint = suggested([other]) if other else did_you_mean(tag, names, f"{key}=")
            code, allowed = "unknown-option", f"must be one of {text}"
        case "value_error" if isinstance(given, Mapping):  # the message starts with the wrong key, if any
            message = str(context["error"])
            word = re.match(r"\w*(?:\.\w+)*", message)[0]  # type: ignore[index]  # matches '' too
            if word.partition(".")[0] not in given:
                text = f"{key}: {message}".lstrip(": ")
                return InputError(text, code="contradiction", key=key or None)
            return InputError(_below(key, message), code="contradiction", key=_below(key, word))
        case "value_error":
            code, allowed = "range", str(context["error"])
        case "target":
            return InputError.about(_below(key, "_target_"), allowed, code="target")
        case own if own in get_args(Code):
            code = own
    return InputError.value(key, f"{shown:.80}", allowed.removeprefix("must "), fix=hint, code=code)


def _below(key: str, part: str | int) -> str:
    """Return the full key of `part`, a name or a list index, below `key`."""
    return f"{key}[{part}]" if isinstance(part, int) else f"{key}.{part}" if key else part
