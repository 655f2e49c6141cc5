"""Plain nested dicts into typed config dataclasses, with every mistake told by its full key.

Pydantic checks the leaves; the walk over dataclasses is our own, because a stdlib dataclass in
pydantic ignores unknown keys, and because the branch of a union must not show up in a key.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Container, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, PlainValidator, StrictBool, StrictStr, TypeAdapter, ValidationError

from labrl.config.component import Component, TargetError, accepted_settings, load_target
from labrl.config.folder import config_folder
from labrl.config.outline import is_own
from labrl.config.types import real_number, whole_number
from labrl.errors import did_you_mean

Path = tuple[str | int, ...]


class InvalidError(ValueError):
    """Every mistake below one node: where, relative to that node, and what is wrong."""

    def __init__(self, mistakes: list[tuple[Path, str]]) -> None:
        super().__init__(str(mistakes))
        self.mistakes = mistakes

    def below(self, *parents: str | int) -> list[tuple[Path, str]]:
        """The mistakes, as seen from further up."""
        return [((*parents, *path), message) for path, message in self.mistakes]

    def without(self, paths: Container[Path]) -> InvalidError:
        """The mistakes but for those at `paths`."""
        return InvalidError([mistake for mistake in self.mistakes if mistake[0] not in paths])

    def told(self, key: str = "") -> str:
        """One line for each mistake, for a node whose full key is `key`."""
        return "\n".join(_line(key, path, message) for path, message in self.mistakes)


def _line(key: str, path: Path, message: str) -> str:
    full = key
    for part in path:
        full += f"[{part}]" if isinstance(part, int) else f".{part}" if full else part
    prefix = full.rpartition(".")[0]
    message = message.replace("<siblings>", f"{prefix}." if prefix else "")
    message = message.replace("<set>", _choice(full)).replace("<key>", full).replace("<parent>", prefix)
    message = _OPTION.sub(lambda found: _option(full, found[1]), message)
    separator = "" if message.startswith(":") else " "
    return f"{full}{separator}{message}" if full else message


def _choice(key: str) -> str:
    """What to type for `key` to have a value: an option where it is a group of labrl, else the value, or an
    option of the part that it belongs to."""
    group, part = key.replace(".", "/"), key.rpartition(".")[0].replace(".", "/")
    if (config_folder() / group).is_dir():
        return f"{group}=<option>"
    return f"{key}=<value>" + (
        f" or {part}=<option>" if "/" in part and (config_folder() / part).is_dir() else ""
    )


_OPTION = re.compile("<option ([^>]*)>")
"""Where a message says of a value that it may have been meant as an option of a group."""


def _option(key: str, value: str) -> str:
    """` Did you mean <group>=<value>?` where `key`, or one above it, is a group of labrl with that option."""
    parts = key.split(".")
    for count in range(len(parts), 0, -1):
        group = "/".join(parts[:count])
        if (config_folder() / group / f"{value}.yaml").is_file():
            return f" Did you mean {group}={value}, with a slash? It is an option of that group."
    return ""


def _or_option(node: Any) -> str:
    return f".<option {node}>" if isinstance(node, str) and node.isidentifier() else ""


def dataclass_of(cls: type, node: Any) -> Any:
    """`node` as an instance of the dataclass `cls`. Raises InvalidError with every mistake."""
    if isinstance(node, cls):
        return node
    if not isinstance(node, Mapping):
        raise InvalidError(
            [((), f"must be a group of keys, got {shown(node)}{_or_option(node) or ': set <set>'}")]
        )
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    mistakes: list[tuple[Path, str]] = []
    values: dict[str, Any] = {}
    for name, value in node.items():
        if name not in fields:
            mistakes.append(((str(name),), _unknown(str(name), list(fields))))
            continue
        try:
            values[name] = _adapter(hints[name]).validate_python(value)
        except ValidationError as error:
            mistakes += _mistakes(error, name, _example(fields[name]))
    for name, field in fields.items():
        if name not in node and field.default is field.default_factory is dataclasses.MISSING:
            mistakes.append(((name,), "must be given: set <set>"))
    if mistakes:
        raise InvalidError(mistakes)
    try:
        return cls(**values)
    except InvalidError:
        raise
    except ValueError as error:
        raise InvalidError([((), f": {error}")]) from None


def hidden(config: Any, node: Mapping[str, Any]) -> list[tuple[Path, str]]:
    """The keys that `config`, made of `node`, has from a class of labrl's and not from `node`, as mistakes.

    Keys below one that can be null or take several shapes are not checked: what stands there is typed in one
    piece, such as `meta.async_unroll={}` or a schedule, and its class has defaults.
    """
    if isinstance(config, Component):
        config = config.config
    if not dataclasses.is_dataclass(config) or not is_own(type(config)):
        return []
    found: list[tuple[Path, str]] = []
    hints = _hints(config.__class__)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if field.name not in node:
            null = " or <key>=null" if type(None) in get_args(hint) else ""
            found.append(((field.name,), f"must be given: set <set>{null}{_example(field)}"))
        elif hint is Component or dataclasses.is_dataclass(hint):
            below = hidden(getattr(config, field.name), node[field.name])
            found += InvalidError(below).below(field.name)
    return found


GIVEN = frozenset({"observation_space"})
"""Arguments that no key gives: a running program does."""


def component_of(node: Any) -> Component:
    """The component that `node` describes. Raises InvalidError with every mistake."""
    if isinstance(node, Component):
        return node
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InvalidError([((), f"must be a part with a _target_, got {shown(node)}{_or_option(node)}")])
    path = node["_target_"]
    if not isinstance(path, str):
        raise InvalidError(
            [(("_target_",), f"must be a dotted path such as my_module.MyClass, got {shown(path)}")]
        )
    try:
        target = load_target(path)
    except TargetError as error:
        raise InvalidError([(("_target_",), f": {error}")]) from error
    settings = {str(name): value for name, value in node.items() if name != "_target_"}
    config_class = getattr(target, "Config", None)
    if config_class is not None and dataclasses.is_dataclass(config_class):
        return Component(path, dataclass_of(config_class, settings))  # type: ignore[arg-type]
    accepted = accepted_settings(target)
    unknown = [] if accepted is None else [name for name in settings if name not in accepted]
    if unknown:
        known = sorted(set(accepted or ()) - GIVEN)
        before = (
            " Where only _target_ is changed, the keys of the part before stay. To take its place whole: "
            f"~<parent> '+<parent>={{_target_: {path}}}'"
        )
        raise InvalidError([((name,), _unknown(name, known, before)) for name in unknown])
    return Component(path, settings)


def shown(value: Any) -> str:
    """`value` as a message shows it: as YAML would, and short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _unknown(name: str, known: list[str], otherwise: str = "") -> str:
    """otherwise: what else to do, where no known key is near."""
    guess = did_you_mean(name, known, prefix="<siblings>")
    here = f" Known here: {', '.join(known)}." if known else " There are no keys here."
    return f": no such key.{guess or here + otherwise}"


def _example(field: dataclasses.Field[Any]) -> str:
    default = field.default
    if default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return " (set <key>=<value>)"
    if default is dataclasses.MISSING or default is None or dataclasses.is_dataclass(default):
        return ""
    return f" (for instance <key>={shown(default)})"


def _mistakes(error: ValidationError, name: str, example: str) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for one in error.errors(include_url=False):
        # `[key]` marks a wrong key of a mapping, not a value below it.
        path: Path = (name, *[part for part in one["loc"] if part != "[key]"])
        inner = one.get("ctx", {}).get("error")
        if isinstance(inner, InvalidError):
            found += inner.below(*path)
        else:
            text = f"{_rule(one)}, got {shown(one['input'])}"
            found.append((path, text + (_meant(one) or (example if len(path) == 1 else ""))))
    return found


def _meant(one: Any) -> str:
    """The spelling that is near to what was given, where only some are allowed."""
    if one["type"] != "literal_error" or not isinstance(one["input"], str):
        return ""
    allowed = re.findall("'([^']+)'", one["ctx"]["expected"])
    guess = did_you_mean(one["input"], allowed, prefix="<key>=")
    return f".{guess}" if guess else ""


def _rule(one: Any) -> str:
    context = one.get("ctx", {})
    match one["type"]:
        case "greater_than":
            return f"must be greater than {context['gt']}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than":
            return f"must be less than {context['lt']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "literal_error":
            return f"must be {context['expected']}".replace("False", "false").replace("True", "true")
        case "value_error":
            return str(context["error"])
        case "bool_type":
            return "must be true or false"
        case "string_type":
            return "must be text"
        case "list_type" | "tuple_type":
            return "must be a list"
        case "dict_type":
            return "must be a group of keys"
        case _:
            return f"is wrong: {one['msg']}"


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        known = hash(hint) is not None and hint in _adapters
    except TypeError:  # an annotation that holds a list cannot be hashed
        return TypeAdapter(_strict(hint))
    if not known:
        _adapters[hint] = TypeAdapter(_strict(hint))
    return _adapters[hint]


def _strict(hint: Any) -> Any:
    """`hint` with scalars that do not convert, and with dataclasses and components walked by us."""
    if hint is int:
        return Annotated[int, BeforeValidator(whole_number)]
    if hint is float:
        return Annotated[float, BeforeValidator(real_number)]
    if hint is bool:
        return StrictBool
    if hint is str:
        return StrictStr
    if hint is Component:
        return Annotated[Any, PlainValidator(component_of)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Annotated[Any, PlainValidator(lambda node: dataclass_of(hint, node))]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_strict(arguments[0]), *hint.__metadata__)]
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin in (list, dict, tuple, set):
        return origin[tuple(_strict(part) if part is not ... else ... for part in arguments)]
    return hint


def _union(members: tuple[Any, ...]) -> Any:
    """A union that tells one mistake: `null`, then dataclasses told apart by `kind`, then the rest."""
    optional = type(None) in members
    shapes = {kind: member for member in members if (kind := _kind(member))}
    others = [member for member in members if member is not type(None) and not _kind(member)]
    if not shapes and len(others) == 1:
        return Union[_strict(others[0]), None]  # noqa: UP007 - built at run time
    adapters = [TypeAdapter(_strict(member)) for member in others]

    def choose(node: Any) -> Any:
        if node is None and optional:
            return None
        if shapes and (isinstance(node, Mapping) or _kind(type(node))):
            return _shape(shapes, node)
        rules: list[str] = []
        for adapter in adapters:
            try:
                return adapter.validate_python(node)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                inner = first.get("ctx", {}).get("error")
                if isinstance(inner, InvalidError) and isinstance(node, Mapping):
                    raise inner from None
                rules.append(_rule(first).removeprefix("must be "))
        if shapes:
            rules.append(f"a schedule ({', '.join(shapes)})" if "linear" in shapes else "a group with a kind")
        raise ValueError(f"must be {' or '.join(rules)}")

    return Annotated[Any, PlainValidator(choose)]


def _kind(cls: Any) -> str | None:
    """The value of the field `kind` that tells the dataclass `cls` from others in a union."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return None
    hint = _hints(cls).get("kind")
    return get_args(hint)[0] if get_origin(hint) is Literal else None


def _shape(shapes: dict[str, Any], node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    kind = node.get("kind")
    if kind not in shapes:
        guess = did_you_mean(str(kind), shapes, prefix="<key>=")
        raise InvalidError([(("kind",), f"must be one of {', '.join(shapes)}, got {shown(kind)}.{guess}")])
    return dataclass_of(shapes[kind], node)
