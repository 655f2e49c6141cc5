"""Plain nested dicts into typed config dataclasses, with every mistake by its full key.

Pydantic walks over the dataclasses and checks the values. `_strict` adapts its schemas to YAML, and
`_mistakes` turns its errors into those of labrl.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator, core_schema

from labrl.config.component import Component, TargetError, accepted_settings, load_target
from labrl.config.folder import config_folder
from labrl.config.types import real_number, whole_number
from labrl.errors import Code, InputError, LabrlError, Mistake, did_you_mean

T = TypeVar("T")
Path = tuple[str | int, ...]

GIVEN = frozenset({"observation_space"})
"""Arguments that a running program gives, and no key."""


def dataclass_of(cls: type[T], node: Any, key: str = "") -> T:
    """Return `node`, which stands at the full key `key`, as an instance of the dataclass `cls`.

    Raises InputError with a mistake for each wrong, unknown or missing key below `key`.
    """
    try:
        validator: SchemaValidator = _validator(cls)  # type: ignore[arg-type]
        return cast("T", validator.validate_python(node, context=dict(_component_keys(node, key))))
    except ValidationError as error:
        raise InputError.of(_mistakes(error, cls, node, key)) from None


def _component_keys(node: Any, key: str) -> Iterator[tuple[int, str]]:
    """The `id` of each group with a `_target_` in `node`, and its full key."""
    if isinstance(node, Mapping) and "_target_" in node:
        yield id(node), key
    for name, inner in _items(node):
        yield from _component_keys(inner, _joined(key, (name,)))


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
            return {**schema, "config": {**schema.get("config", {}), "extra_fields_behavior": "forbid"}}
    return schema


def _component_of(node: Any, info: core_schema.ValidationInfo[dict[int, str]]) -> Component:
    """Make the component that `node` describes. A ValidationError becomes part of the one of the whole."""
    if isinstance(node, Component):
        return node
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise PydanticCustomError("type", "must be a group of keys with a _target_")
    path, settings = node["_target_"], {name: value for name, value in node.items() if name != "_target_"}
    try:
        target = load_target(path)
        config = _options(target)
        if config is not None:
            settings = _validator(config).validate_python(settings, context=info.context)
    except TargetError as error:
        raise _errors({"_target_": path}, PydanticCustomError("target", str(error))) from None
    except (LabrlError, ValidationError):
        raise
    except Exception as error:
        if path.startswith("labrl."):
            raise
        why = f"its Config fails: {type(error).__name__}: {error}"
        raise _errors({"_target_": path}, PydanticCustomError("target", why)) from error
    if config is None and (accepted := accepted_settings(target)) is not None:
        unknown = {name: value for name, value in settings.items() if name not in accepted}
        if unknown:
            raise _errors(unknown, "unexpected_keyword_argument")
    return Component(path, settings, (info.context or {}).get(id(node), ""))


def _errors(values: Mapping[Any, Any], kind: str | PydanticCustomError) -> ValidationError:
    """An error of one kind for each of `values`, by its key."""
    lines: list[InitErrorDetails] = [{"type": kind, "loc": (key,), "input": values[key]} for key in values]
    return ValidationError.from_exception_data("Component", lines)


def _options(target: Any) -> type | None:
    """The dataclass `Config` of a target, or None where it takes its settings as keyword arguments."""
    config = getattr(target, "Config", None)
    return config if isinstance(config, type) and dataclasses.is_dataclass(config) else None


# --- pydantic's errors as mistakes ---

_RULES: Mapping[str, tuple[Code, str]] = {
    "greater_than": ("range", " must be greater than {gt:g}"),
    "greater_than_equal": ("range", " must be at least {ge:g}"),
    "less_than": ("range", " must be less than {lt:g}"),
    "less_than_equal": ("range", " must be at most {le:g}"),
    "too_short": ("range", " must be a list of at least {min_length}"),
    "bool_type": ("type", " must be true or false"),
    "string_type": ("type", " must be text"),
    "list_type": ("type", " must be a list"),
    "tuple_type": ("type", " must be a list"),
    "dict_type": ("type", " must be a group of keys"),
    "dataclass_type": ("type", " must be a group of keys"),
    "model_attributes_type": ("type", " must be a group of keys with a kind"),
}
"""Code and rule for an error of pydantic by its type."""


def _mistakes(error: ValidationError, cls: type, node: Any, key: str) -> list[Mistake]:
    """Return one mistake for each wrong place in `node`."""
    found: dict[Path, list[tuple[Code, str, str]]] = {}
    for one in error.errors(include_url=False):
        path, *rule = _rule(one, cls, node, key)
        found.setdefault(path, []).append(tuple(rule))  # type: ignore[arg-type]
    mistakes = []
    for path, rules in found.items():
        # Of a union, pydantic gives the errors of every member. The member that was meant got further, or had
        # the right type.
        if any(path == other[: len(path)] != other for other in found):
            continue
        rules = [rule for rule in rules if rule[0] != "type"] or rules
        code, _, hint = rules[0]
        text = " or ".join([rules[0][1], *(rule.removeprefix(" must be ") for _, rule, _ in rules[1:])])
        full = _joined(key, path)
        got = f", got {shown(_at(node, path))}.{hint}" if hint else ""
        mistakes.append(Mistake(code, full or None, f"{full}{text}{got}".lstrip(": ")))
    return sorted(mistakes, key=lambda mistake: mistake.code == "missing")  # it may be one that is misspelt


def _rule(one: Any, cls: type, node: Any, key: str) -> tuple[Path, Code, str, str]:
    """Return what an error of pydantic blames, its code, what is allowed there, and what to type."""
    kind, context, given = one["type"], one.get("ctx", {}), one["input"]
    path = _path(one, node)
    full = _joined(key, path)
    write = f" Write {full.partition('[')[0]}=<value>."
    match kind:
        case "unexpected_keyword_argument":
            return path, "unknown-key", _unknown(cls, node, path, key), ""
        case "missing" | "union_tag_not_found":
            hint = _known(cls, node, path[:-1]).get(str(path[-1]))
            null = f" or {full}=null" if type(None) in get_args(hint) else ""
            return path, "missing", f" must be given: set {_choice(full)}{null}", ""
        case "union_tag_invalid" | "literal_error":
            text = context.get("expected_tags") or context["expected"]
            text = text.replace(" or ", ", ").replace("False", "false").replace("True", "true")
            names = [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|([^\s,]+)", text)]
            meant = did_you_mean(str(context.get("tag", given)), names, f"{full}=")
            return path, "unknown-option", f" must be one of {text}", meant or f" Write {full}={names[0]}."
        case "value_error" if isinstance(given, Mapping):
            return _contradiction(path, str(context["error"]), given)
        case "value_error":
            return path, "range", f" {context['error']}", write
        case "greater_than_equal" | "less_than_equal" if "[" not in full:
            code, rule = _RULES[kind]
            (bound,) = context.values()
            return path, code, rule.format(**context), f" Write {full}={bound:g}."
        case known if known in _RULES:
            code, rule = _RULES[known]
            meant = _option(full, given) or (
                f" Write {_choice(full)}." if kind == "dataclass_type" else write
            )
            return path, code, rule.format(**context), meant
        case "target":
            return path, "target", f": {one['msg']}", ""
        case code if code in get_args(Code):
            return path, code, f" {one['msg']}", _option(full, given) or write
    return path, "type", f" is wrong: {one['msg']}", ""


def _contradiction(path: Path, message: str, given: Mapping[str, Any]) -> tuple[Path, Code, str, str]:
    """Blame the key with which the message of a dataclass begins, or the whole group."""
    (word,) = re.findall(r"^\w*(?:\.\w+)*", message)
    first, *below = word.split(".")
    if first not in given:
        return path, "contradiction", f": {message}", ""
    return (*path, first, *below), "contradiction", message.removeprefix(word), ""


def _unknown(cls: type, node: Any, path: Path, key: str) -> str:
    """Say that a key is unknown, and which one was meant or which there are."""
    parent, group, known = _joined(key, path[:-1]), _at(node, path[:-1]), _known(cls, node, path[:-1])
    if guess := did_you_mean(str(path[-1]), known, f"{parent}." if parent else ""):
        return f": no such key.{guess}"
    here = f" Known here: {', '.join(known)}." if known else " There are no keys here."
    if "_target_" in group and _options(load_target(group["_target_"])) is None:
        here += (
            " Where only _target_ is changed, the keys of the part before stay. To replace it: "
            f"~{parent} '+{parent}={{_target_: {group['_target_']}}}'"
        )
    return f": no such key.{here}"


# --- keys and values ---

_ABSENT = object()


def _joined(key: str, path: Path) -> str:
    """The full key of what stands at `path` below `key`."""
    for part in path:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _items(node: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)


def _at(node: Any, path: Path) -> Any:
    for part in path:
        node = dict(_items(node)).get(part, _ABSENT)
    return node


def _path(one: Any, node: Any) -> Path:
    """Where an error is. A part of `loc` that leads nowhere in `node` is no key, but a member of a union."""
    path: Path = ()
    for part in one["loc"]:
        if _at(node, (*path, part)) is not _ABSENT:
            path = (*path, part)
    if one["type"] == "missing":
        return (*path, one["loc"][-1])
    if one["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return (*path, one["ctx"]["discriminator"].strip("'"))
    return path


def _known(cls: type, node: Any, path: Path) -> Mapping[str, Any]:
    """The keys, with their types, of the group at `path` in `node`, which becomes a `cls`."""
    hint: Any = cls
    keys: Mapping[str, Any] = {}
    for part in (None, *path):
        if part is not None:
            hint, node = keys.get(str(part), hint), _at(node, (part,))
        if isinstance(node, Mapping) and "_target_" in node:
            target = load_target(node["_target_"])
            hint = _options(target)
            keys = dict.fromkeys(sorted(set(accepted_settings(target) or ()) - GIVEN))
        if hint is not None:
            shapes = [_hints(one) for one in _dataclasses(hint)]
            kind = node.get("kind") if isinstance(node, Mapping) else None
            fitting = [shape for shape in shapes if kind in get_args(shape.get("kind"))]
            keys = {name: hint for shape in fitting or shapes for name, hint in shape.items()}
    return keys


def _dataclasses(hint: Any) -> Iterator[type]:
    """The dataclasses in a type: itself, or the members of a union, of a list, ..."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def _hints(cls: type) -> dict[str, Any]:
    """The types of the fields that can be given."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


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


def shown(value: Any) -> str:
    """`value` as a message shows it: as YAML would, and short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
