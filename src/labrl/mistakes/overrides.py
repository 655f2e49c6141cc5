"""Explanations of overrides that Hydra refused to compose, with what to type instead."""

from __future__ import annotations

import copy
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, ValueType
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import BooleanNode, DictConfig, EnumNode, IntegerNode, ListConfig, OmegaConf, StringNode
from omegaconf.errors import OmegaConfBaseException

from labrl.errors import InputError, LabrlError, first_line
from labrl.mistakes.names import (
    SOME,
    all_keys,
    env_of,
    option_named,
    other_option,
    own_file,
    owners_of,
    some,
    unknown_key,
)
from labrl.mistakes.spelling import nearest, suggested

Check = Callable[[DictConfig], object]
"""Raises InputError with a mistake for every wrong value of a configuration."""


def wrong_overrides(
    overrides: Sequence[str], loader: ConfigLoader, check: Check, multirun: bool = False
) -> tuple[list[LabrlError], list[Override], DictConfig]:
    """Return the mistakes in `overrides`, the correct overrides, and the configuration that these compose.

    check: checks the values of a configuration; multirun: whether overrides may have several values. The
    correct overrides then contain the first value of each key, and for groups the options of the first trial
    with a mistake.
    """
    mistakes, several, trials = _trials(overrides, loader, multirun)
    for trial in trials:
        found, fine, cfg = _wrong_in_trial(trial, loader, check)
        if found:
            break
    return mistakes + [_several_values(one, cfg, loader, check) for one in several] + found, fine, cfg


def _trials(
    overrides: Sequence[str], loader: ConfigLoader, multirun: bool
) -> tuple[list[LabrlError], list[Override], Iterator[tuple[Override, ...]]]:
    """Return the unreadable overrides as mistakes, those with several values without -m, and all others for
    each trial.

    Trials have the first of several values of a key, and every option of a group.
    """
    mistakes: list[LabrlError] = []
    several: list[Override] = []
    parsed: list[list[Override]] = []
    parser = OverridesParser.create(loader)
    for override in overrides:
        try:
            one = parser.parse_override(override)
            assert one.key_or_group
        except (HydraException, AssertionError):
            mistakes.append(_bad_syntax(override, parser))
            continue
        if not one.is_sweep_override():
            parsed.append([one])
        elif multirun:
            value = one.value()
            if isinstance(value, IntervalSweep):
                values = [str(value.start)]
            else:
                values = list(one.sweep_string_iterator())
            each = [parser.parse_override(f"{one.get_key_element()}={text}") for text in values]
            parsed.append(each if _is_choice(one, loader) else each[:1])
        else:
            several.append(one)
    return mistakes, several, itertools.product(*parsed)


def _several_values(one: Override, cfg: DictConfig, loader: ConfigLoader, check: Check) -> InputError:
    """Explain several values of one trial. Only a key that accepts a list is shown how to write one."""
    override = str(one.input_line)
    key, _, values = override.partition("=")
    as_list = ""
    if one.value_type == ValueType.SIMPLE_CHOICE_SWEEP and not _is_choice(one, loader):
        whole = OverridesParser.create().parse_override(f"{key}=[{values}]")
        if _wrong_value(whole, cfg, check) == []:
            as_list = f", or {whole.input_line} for a list"
    message = f"write labrl -m '{override}' for an experiment with several values{as_list}"
    return InputError(f"{override}: {message}", code="usage", key=one.key_or_group)


def _wrong_value(one: Override, cfg: DictConfig, check: Check) -> list[LabrlError] | None:
    """Return the mistakes in the value of an override that adds or replaces a key of `cfg`.

    Returns None if the override cannot be applied, or not be checked, as with the keys of Hydra.
    """
    key, changed = one.key_or_group, copy.deepcopy(cfg)
    parser = OverridesParser.create()
    added = f"+{str(one.input_line).lstrip('+')}"
    words = [added] if one.is_add() else [f"~{key}", added]
    if key.startswith("hydra."):
        return None
    try:
        ConfigLoaderImpl._apply_overrides_to_config([parser.parse_override(word) for word in words], changed)
        check(changed)
    except LabrlError as error:
        return [
            wrong for wrong in error.mistakes if re.match(rf"{re.escape(key)}(?![^.\[])", wrong.key or "")
        ]
    except Exception:
        return None
    return []


def _bad_syntax(override: str, parser: OverridesParser) -> InputError:
    key, equals, value = override.partition("=")
    cleaned = f"{key}={value.strip('=,')}"
    advice = (
        "write key=value; lists as [1,2], groups of keys as {a: 1, b: 2}, and values with spaces or special "
        "characters in quotes, as in 'key=\"a value\"'"
    )
    odd = [letter for letter in override if unicodedata.category(letter) in ("Cf", "Pi", "Pf")]
    if odd:
        name = f"{unicodedata.name(odd[0], '')} (U+{ord(odd[0]):04X})".strip()
        advice = f"it contains {name}, perhaps from copied text; type it again"
    elif re.fullmatch(r"choice\(.*\bnull\b.*\)", value):
        advice = f"choice(...) cannot contain null; write '{key}={value[7:-1]}'"
    elif not equals:
        advice = f"write {key}=<value>"
    elif value.startswith("~/"):
        advice = f"write {key}=$HOME{value[1:]}, because shells expand ~ only at the beginning of a word"
    elif re.search(r"[\s;][\w./]+=", value):
        advice = "separate overrides by spaces, without quotes around all of them"
    elif key:
        # Quotes help text with letters beyond ASCII, but not an incomplete list or call.
        plain = not re.search(r"[\[\]{}()'\",;=]", value)
        for meant, typed in [(cleaned, cleaned), (f'{key}="{value}"', f"'{key}=\"{value}\"'")]:
            if meant != override and (plain or meant == cleaned) and _is_readable(meant, parser):
                advice = f"write {typed}"
                break
    return InputError(
        f"{override}: cannot be read: {advice}", code="syntax", key=key.lstrip("+~") or override
    )


def _is_readable(override: str, parser: OverridesParser) -> bool:
    try:
        parser.parse_override(override)
    except HydraException:
        return False
    return True


def _is_choice(one: Override, loader: ConfigLoader) -> bool:
    """Return whether an override selects an option of a group."""
    return "/" in one.key_or_group or bool(_options(one.key_or_group, loader))


def _options(group: str, loader: ConfigLoader) -> list[str]:
    """Return the options of a group, with those in folders, such as slm_lab/cartpole, at the end."""
    options = loader.get_group_options(group)
    # The folders in these are the groups of their parts.
    if group not in ("agent", "search", "meta", "hydra"):
        for folder in loader.get_group_options(group, ObjectType.GROUP):
            options += [f"{folder}/{name}" for name in loader.get_group_options(f"{group}/{folder}")]
    return options


def _wrong_in_trial(
    overrides: Sequence[Override], loader: ConfigLoader, check: Check
) -> tuple[list[LabrlError], list[Override], DictConfig]:
    """Return the mistakes in the overrides of one trial, the correct ones, and what these compose."""

    def load(choices: Sequence[Override]) -> DictConfig:
        typed = [str(one.input_line) for one in choices]
        return loader.load_configuration("config", typed, run_mode=RunMode.RUN)

    mistakes: list[LabrlError] = []
    # Groups before their parts, and all selections of options before the keys that these contain.
    keys = [one for one in overrides if not _is_choice(one, loader)]
    choices = [one for one in overrides if _is_choice(one, loader)]
    choices.sort(key=lambda one: (one.is_delete(), one.key_or_group.count("/")))
    fine = choices.copy()
    try:
        cfg = load(choices)
    except Exception:
        fine, cfg = [], load([])
        for one in choices:
            try:
                cfg = load([*fine, one])
                fine.append(one)
            except Exception as error:
                mistakes.append(_wrong_choice(one, error, cfg, loader))
    for one in keys:
        changed = copy.deepcopy(cfg)  # a failing override may have changed its configuration
        try:
            ConfigLoaderImpl._apply_overrides_to_config([one], changed)
            fine.append(one)
            cfg = changed
        except Exception as error:
            mistakes.append(_wrong_key(one, error, cfg, loader, check))
    return mistakes, fine, cfg


def _wrong_choice(one: Override, error: Exception, cfg: DictConfig, loader: ConfigLoader) -> InputError:
    """Explain a wrong selection of an option, in addition to those that compose `cfg`."""
    group, override = one.key_or_group, str(one.input_line)
    if isinstance(error, LabrlError):
        return InputError.of(error.mistakes[:1])
    options = _options(group, loader)
    if not options:
        near = suggested(nearest(group, _groups(loader), 3))
        return InputError(
            f"{group}: no such group.{near} labrl --help lists the groups.", code="unknown-key", key=group
        )
    if one.is_delete():
        none = f", {group}=none to leave it out" if "none" in options else ""
        return InputError(
            f"{override}: cannot be removed; set {group}=<option>{none}", code="missing", key=group
        )
    if isinstance(error, MissingConfigException) and str(error.missing_cfg_file).startswith(f"{group}/"):
        option = str(error.missing_cfg_file).removeprefix(f"{group}/")
        return _unknown_option(group, option, list(dict.fromkeys([*(error.options or []), *options])))
    chosen = one.value()
    if not all(isinstance(option, str) for option in (chosen if isinstance(chosen, list) else [chosen])):
        return _unknown_option(group, override.partition("=")[2], options)
    key = group.replace("/", ".")
    if one.package is not None:
        part = f"'{one.package}={{_target_: <class>}}', with its keys beside _target_"
        message = f"no option of {group} is selected at {one.package}. Set the whole part there: {part}"
    elif group in cfg.hydra.runtime.choices:
        if not one.is_add():
            is_loop = isinstance(error, RecursionError)
            why = "the defaults list of its file contains a cycle" if is_loop else first_line(error)
            return InputError(f"{override}: {why}", code="syntax", key=group)
        message = f"the group exists; write {override.lstrip('+')}, without the plus"
    elif owners := owners_of(key, all_keys(cfg)):
        whole = key.partition(".")[0]
        has = f"{whole}={cfg.hydra.runtime.choices[whole]}"
        message = f"{has} has no such part; it exists with {some(owners)}"
    else:
        message = f"no option of this group is selected yet; write +{override.lstrip('+')}"
    return InputError(f"{override}: {message}", code="unknown-key", key=group)


def _unknown_option(group: str, option: str, options: Sequence[str]) -> InputError:
    near = [f"{group}={name}" for name in nearest(option.replace("-", "_"), options, 3)]
    lists = f"Known: {', '.join(options)}." if len(options) <= SOME else "labrl --help lists the options."
    if group == "env":
        near = [meant] if (meant := env_of(option)) else near
        lists = "labrl-envs lists all; for any other Gymnasium id, write env=gymnasium env.id=<id>."
    elif (group, option) == ("hydra/launcher", "joblib"):
        near = ["hydra/launcher=local"]
        lists = "It runs trials in parallel on this machine, and also has hydra.launcher.n_jobs."
    if not env_of(option) and not group.startswith("hydra/"):
        lists += own_file(group, option)
    if meant := other_option(group, option) or ("" if near else option_named(option)):
        near = [meant]
    return InputError(
        f"{group}={option}: no such option.{suggested(near)} {lists}", code="unknown-option", key=group
    )


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for name in loader.get_group_options(parent, ObjectType.GROUP):
        group = f"{parent}/{name}" if parent else name
        yield group
        yield from _groups(loader, group)


def _wrong_key(
    one: Override, error: Exception, cfg: DictConfig, loader: ConfigLoader, check: Check
) -> InputError:
    """Explain a wrong override of a key in `cfg`."""
    key, override, known = one.key_or_group, str(one.input_line), all_keys(cfg)
    value = override.partition("=")[2]
    cause = error.__cause__
    full = (cause.full_key if isinstance(cause, OmegaConfBaseException) else None) or key
    if key in known and full.startswith(f"{key}."):
        inner = OmegaConf.select(OmegaConf.create({key: one.value()}), full.replace(key, f"[{key}]", 1))
        mistake = unknown_key(full, "" if OmegaConf.is_config(inner) else str(inner), known)
        advice = f" Groups of keys are merged; to replace the whole group, write ~{key} '+{override}'."
        return InputError(mistake.message + advice, code=mistake.code, key=full)
    if re.sub(r"\[\d+\]", "", key) not in known:
        parents = (key.rsplit(".", count)[0] for count in range(1, key.count(".") + 1))
        above = next((name for name in parents if name in known), None)
        if above is not None and not owners_of(key, known):
            node = OmegaConf.select(cfg, above, throw_on_resolution_failure=False)
            if not OmegaConf.is_config(node):
                value, group = "null" if node is None else node, above.replace(".", "/")
                others = [f"{group}={name}" for name in _options(group, loader)]
                message = f"{above}={value} has no keys below it"
                advice = f"write {some(others)}" if others else f"write {above}=<value>"
                return InputError(f"{override}: {message}; {advice}", code="unknown-key", key=key)
            if (
                not len(node) and above != key.rpartition(".")[0]
            ):  # such as callbacks, whose keys are the user's
                return InputError(
                    f"{key}: no such key. To add it, write +{override}", code="unknown-key", key=key
                )
        return unknown_key(key, value, known)
    if one.is_add():
        if isinstance(one.value(), str) and OmegaConf.is_dict(OmegaConf.select(cfg, key)):
            message = f"{key} is a group of keys.{own_file(key.replace('.', '/'), value)}"
            return InputError(f"{override}: {message}", code="unknown-option", key=key)
        message = f"the key exists; write {override.lstrip('+')}, without the plus"
        return InputError(f"{override}: {message}", code="unknown-key", key=key)
    if one.is_delete():
        return InputError(
            f"{override}: the key has another value; write {key}=<value>", code="contradiction", key=key
        )
    if value == "null":
        return InputError(f"{override}: cannot be null; set a value, or leave it out", code="type", key=key)
    wrong = _wrong_value(one, cfg, check)
    if wrong:
        return InputError.of(wrong[:1])
    if isinstance(cause, OmegaConfBaseException) and (kind := _wrong_kind(key, value, cause.child_node)):
        return kind
    advice = f"; to replace it by a value of another type, write ~{key} '+{override}'" if wrong == [] else ""
    return InputError(f"{override}: {first_line(cause or error)}{advice}", code="type", key=key)


def _wrong_kind(key: str, value: str, node: object) -> InputError | None:
    """Return the mistake for a value of a wrong kind, or None if the kind of the key is not known.

    Only the keys of Hydra have kinds before the configuration is validated. node: what the key has now.
    """
    match node:
        case EnumNode():
            names = [one.name for one in node.enum_type]
            allowed, typed = f"one of {', '.join(names)}", f"{key}={names[0]}"
            return InputError(
                f"{key} must be {allowed}, got {value}. Write {typed}.", code="unknown-option", key=key
            )
        case BooleanNode():
            allowed, typed = "true or false", f"{key}=true"
        case IntegerNode():
            allowed, typed = "a whole number", f"{key}=<number>"
        case StringNode():
            allowed, typed = "text", f"{key}=<text>"
        case ListConfig():
            allowed, typed = "a list", f"'{key}=[{value}]'"
        case DictConfig():
            allowed = "a group of keys"
            typed = f"{key}.{next(map(str, node))}=<value>" if len(node) else f"+{key}.<name>=<value>"
        case _:
            return None
    return InputError(f"{key} must be {allowed}, got {value}. Write {typed}.", code="type", key=key)
