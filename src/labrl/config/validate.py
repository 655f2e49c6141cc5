"""Plain nested dicts into typed config dataclasses, with every mistake by its full key.

Pydantic walks over the dataclasses and checks the values. `_strict` adapts its schemas to YAML, and
`_mistakes` turns its errors into those of labrl.
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

from labrl.config.component import Component, TargetError, accepted_settings, load_target
from labrl.config.folder import config_folder
from labrl.config.keys import hints, walk
from labrl.config.types import real_number, whole_number
from labrl.errors import Code, InputError, LabrlError, Mistake
from labrl.mistakes.spelling import did_you_mean

T = TypeVar("T")


@dataclass
class _Groups:
    """The groups of keys in what is validated, by their `id`."""

    keys: dict[int, str]
    """The full key of each."""
    known: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The names that can be given in it, with their types."""


_Info = core_schema.ValidationInfo[_Groups]


def dataclass_of(cls: type[T], node: Any, key: str = "") -> T:
    """Return `node`, which stands at the full key `key`, as an instance of the dataclass `cls`.

    Raises InputError with a mistake for each wrong, unknown or missing key below `key`.
    """
    groups = _Groups({id(inner): full for full, inner in walk(node, key) if isinstance(inner, Mapping)})
    try:
        validator: SchemaValidator = _validator(cls)  # type: ignore[arg-type]
        return cast("T", validator.validate_python(node, context=groups))
    except ValidationError as error:
        raise InputError.of(_mistakes(error, node, key, groups)) from None


# --- pydantic's schemas, made strict ---


@cache
def _validator(cls: type) -> SchemaValidator:
    """Raises PydanticUserError or NameError where pydantic cannot read a type of a user's own."""
    return SchemaValidator(_strict(TypeAdapter(cls).core_schema))


def _strict(schema: Any) -> Any:
    """Change a schema of pydantic so that no scalar converts and every dataclass refuses unknown keys."""
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
    """Remember the names of the fields that `node`, which becomes a `cls`, can have."""
    names = {one.name for one in dataclasses.fields(cls) if one.init}
    own = {name: hint for name, hint in hints(cls).items() if name in names}
    info.context.known[id(node)] = {**info.context.known.get(id(node), {}), **own}
    return node


def _component_of(node: Any, info: _Info) -> Component:
    """Make the component that `node` describes. A ValidationError becomes part of the one of the whole."""
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
        raise _errors({"_target_": path}, PydanticCustomError("target", str(error))) from None
    except (LabrlError, ValidationError):
        raise
    except Exception as error:
        if path.startswith("labrl."):
            raise
        why = f"its Config fails: {type(error).__name__}: {error}"
        raise _errors({"_target_": path}, PydanticCustomError("target", why)) from error
    if (accepted := accepted_settings(target)) is not None:
        info.context.known[id(node)] = dict.fromkeys(sorted(accepted - {"observation_space"}))
        if unknown := {name: value for name, value in settings.items() if name not in accepted}:
            raise _errors(unknown, "unexpected_keyword_argument")
    return Component(path, settings, info.context.keys[id(node)])


def _errors(values: Mapping[Any, Any], kind: str | PydanticCustomError) -> ValidationError:
    """An error of one kind for each of `values`, by its key."""
    lines: list[InitErrorDetails] = [{"type": kind, "loc": (key,), "input": values[key]} for key in values]
    return ValidationError.from_exception_data("Component", lines)


# --- pydantic's errors as mistakes ---


def _mistakes(error: ValidationError, node: Any, key: str, groups: _Groups) -> list[Mistake]:
    """Return one mistake for each wrong place in `node`."""
    places = dict(walk(node, key))
    found: dict[str, list[tuple[Code, str, str]]] = {}
    for one in error.errors(include_url=False):
        full = key
        for part in one["loc"]:  # one that leads nowhere is no key, but a member of a union
            below = _below(full, part)
            full = below if below in places or (one["type"] == "missing" and part == one["loc"][-1]) else full
        if one["type"] in ("union_tag_invalid", "union_tag_not_found"):
            full = _below(full, one["ctx"]["discriminator"].strip("'"))
        full, *rule = _rule(one, full, places, groups)
        found.setdefault(full, []).append(tuple(rule))  # type: ignore[arg-type]
    mistakes = []
    for full, rules in found.items():
        # Of a union, pydantic gives the errors of every member. The member that was meant got further, or had
        # the right type.
        if any(other.startswith((f"{full}.", f"{full}[")) for other in found):
            continue
        rules = [rule for rule in rules if rule[0] != "type"] or rules
        code, _, hint = rules[0]
        text = " or ".join([rules[0][1], *(rule.removeprefix(" must be ") for _, rule, _ in rules[1:])])
        got = f", got {_shown(places.get(full))}.{hint}" if hint else ""
        mistakes.append(Mistake(code, full or None, f"{full}{text}{got}".lstrip(": ")))
    return sorted(mistakes, key=lambda mistake: mistake.code == "missing")  # it may be one that is misspelt


_GROUP = " must be a group of keys"
_TYPES = {
    "bool_type": " must be true or false",
    "string_type": " must be text",
    "dict_type": _GROUP,
    "dataclass_type": _GROUP,
    "model_attributes_type": f"{_GROUP} with a kind",
}
"""What is allowed, where pydantic names it in words of Python."""


def _rule(one: Any, key: str, places: Mapping[str, Any], groups: _Groups) -> tuple[str, Code, str, str]:
    """Return the key that an error of pydantic blames, its code, what is allowed there, and what to type."""
    kind, context, given = one["type"], one.get("ctx", {}), one["input"]
    parent, _, name = key.rpartition(".")
    known = groups.known.get(id(places.get(parent)), {})
    hint = _option(key, given) or f" Write {key.partition('[')[0]}=<value>."
    match kind:
        case "unexpected_keyword_argument":
            return key, "unknown-key", _unknown(parent, name, places[parent], known), ""
        case "missing" | "union_tag_not_found":
            null = f" or {key}=null" if type(None) in get_args(known.get(name)) else ""
            return key, "missing", f" must be given: set {_choice(key)}{null}", ""
        case "union_tag_invalid" | "literal_error":
            text = context.get("expected_tags") or context["expected"]
            text = text.replace(" or ", ", ").replace("False", "false").replace("True", "true")
            names = [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|([^\s,]+)", text)]
            meant = did_you_mean(str(context.get("tag", given)), names, f"{key}=")
            return key, "unknown-option", f" must be one of {text}", meant or f" Write {key}={names[0]}."
        case "value_error" if isinstance(given, Mapping):  # begins with the key to blame, if there is one
            message = str(context["error"])
            (word,) = re.findall(r"^\w*(?:\.\w+)*", message)
            if word.partition(".")[0] not in given:
                return key, "contradiction", f": {message}", ""
            return _below(key, word), "contradiction", message.removeprefix(word), ""
        case "value_error":
            return key, "range", f" {context['error']}", hint
        case "target":
            return key, "target", f": {one['msg']}", ""
        case known_code if known_code in get_args(Code):
            return key, known_code, f" {one['msg']}", hint
        case "greater_than_equal" | "less_than_equal" if "[" not in key:
            hint = f" Write {key}={next(iter(context.values())):g}."
        case "dataclass_type" if not _option(key, given):
            hint = f" Write {_choice(key)}."
    code: Code = "range" if kind.startswith(("greater", "less", "too_")) else "type"
    message = re.sub(r"^\w+ should", " must", re.sub(r"(\d)\.0\b", r"\1", one["msg"]))
    return key, code, _TYPES.get(kind, message), hint


def _unknown(parent: str, name: str, group: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Say that a key is unknown, and which one was meant or which there are."""
    if guess := did_you_mean(name, known, f"{parent}." if parent else ""):
        return f": no such key.{guess}"
    here = f" Known here: {', '.join(known)}." if known else " There are no keys here."
    if target := group.get("_target_"):
        here += (
            " Where only _target_ is changed, the keys of the part before stay. To replace it: "
            f"~{parent} '+{parent}={{_target_: {target}}}'"
        )
    return f": no such key.{here}"


def _below(key: str, part: str | int) -> str:
    """The full key of `part` below `key`, a name or the place in a list."""
    return f"{key}[{part}]" if isinstance(part, int) else f"{key}.{part}" if key else part


def _choice(key: str) -> str:
    """What to type for `key` to have a value: an option where it, or the part that it is of, is a group."""
    group, part = key.replace(".", "/"), key.rpartition(".")[0].replace(".", "/")
    if (config_folder() / group).is_dir():
        return f"{group}=<option>"
    above = f" or {part}=<option>" if "/" in part and (config_folder() / part).is_dir() else ""
    return f"{key}=<value>{above}"


def _option(key: str, value: Any) -> str:
    """` Did you mean <group>=<value>?` where `key`, or one above it, is a group of labrl with that option."""
    parts = key.split(".") if isinstance(value, str) and value.isidentifier() else []
    for count in range(len(parts), 0, -1):
        group = "/".join(parts[:count])
        if (config_folder() / group / f"{value}.yaml").is_file():
            return f" Did you mean {group}={value}, with a slash? It is an option of that group."
    return ""


def _shown(value: Any) -> str:
    """`value` as a message shows it: as YAML would, and short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
