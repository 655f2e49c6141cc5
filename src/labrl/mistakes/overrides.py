"""Explanations of overrides that Hydra refused to compose, with what to type instead."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, ValueType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.keys import split_override, values_of
from labrl.envs.games import env_of
from labrl.errors import InputError, LabrlError, first_line
from labrl.mistakes.names import (
    SOME,
    all_keys,
    is_of_user,
    option_named,
    other_option,
    own_file,
    owners_of,
    some,
    unknown_key,
)
from labrl.mistakes.spelling import nearest, suggested

NAMES = (str, list, ChoiceSweep, Glob)
"""Types of the values of overrides that can name options of a group."""

UPDATES = ("gradient_steps", "train_freq")
"""Keys of Stable-Baselines3 that together are the number of updates per step of all environments."""


def explain_refusal(error: Exception, overrides: Sequence[str], multirun: bool) -> LabrlError:
    """Return the error for overrides that Hydra refused with `error`. Hydra must be initialized.

    The error has a mistake for each override that cannot be read, or otherwise for each key that does not
    exist. If there are neither, it explains the override that Hydra names. multirun: whether overrides may
    have several values.
    """
    if isinstance(error, LabrlError):
        return error
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(loader)
    parsed: list[Override] = []
    wrong: list[LabrlError] = []
    for override in overrides:
        if _is_readable(override, parser):
            parsed += parser.parse_overrides([override])  # with the loader, which knows what a pattern means
        else:
            wrong.append(_bad_syntax(override, parser))
    if wrong:
        return InputError.of(wrong)
    several = [] if multirun else [one for one in parsed if one.is_sweep_override()]
    parsed = [one for one in parsed if one not in several]
    choices = [one for one in parsed if "/" in one.key_or_group or _options(one.key_or_group, loader)]
    keys = [one for one in parsed if one not in choices]
    cfg = OmegaConf.create()
    given = [values_of(one) or [str(one.input_line)] for one in choices]
    for chosen in itertools.product(*given):  # of each trial, because options have own keys
        try:
            cfg = hydra.compose("config", list(chosen), return_hydra_config=True)
        except Exception as refused:
            return _wrong_choice(refused, choices, loader)
        known = all_keys(cfg)
        unknown = [one for one in keys if re.sub(r"\[\d+\]", "", one.key_or_group) not in known]
        # With a plus, the key may be new.
        values = {key.rpartition(".")[2]: value for key, value in map(split_override, overrides)}
        if wrong := [_unknown_key(one, values, cfg, known, loader) for one in unknown if not one.is_add()]:
            error = InputError.of(wrong)
            its = [one for one, choice in zip(chosen, choices, strict=True) if choice.is_sweep_override()]
            return error.within(f"trial {' '.join(its)}") if its else error
    return _several_values(several[0], cfg) if several else _wrong_value(error, keys, cfg)


def _options(group: str, loader: ConfigLoader) -> list[str]:
    """Return the options of a group. Options in folders, such as slm_lab/cartpole, come last."""
    options = loader.get_group_options(group)
    # The folders in these are the groups of their parts.
    if group not in ("agent", "search", "meta", "hydra"):
        for folder in loader.get_group_options(group, ObjectType.GROUP):
            options += [f"{folder}/{name}" for name in loader.get_group_options(f"{group}/{folder}")]
    return options


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for name in loader.get_group_options(parent, ObjectType.GROUP):
        group = f"{parent}/{name}" if parent else name
        yield group
        yield from _groups(loader, group)


def _bad_syntax(override: str, parser: OverridesParser) -> InputError:
    key, equals, value = override.partition("=")
    fix = (
        "Write key=value; lists as [1,2], groups of keys as {a: 1, b: 2}, and values with spaces or special "
        "characters in quotes, as in 'key=\"a value\"'"
    )
    cleaned, quoted = f"{key}={value.strip('=,')}", f'{key}="{value}"'
    # Quotes help text with letters beyond ASCII, but not an incomplete list or call.
    plain = not re.search(r"[\[\]{}()'\",;=]", value)
    if not equals:
        fix = f"Write {key}=<value>"
    elif value.startswith("~/"):
        fix = f"Write {key}=$HOME{value[1:]}, because shells expand ~ only at the beginning of a word"
    elif re.fullmatch(r"choice\(.*\bnull\b.*\)", value):
        fix = f"Write '{key}={value[7:-1]}', because choice(...) cannot contain null"
    elif re.match(r"(interval|tag|log|uniform|loguniform|log_uniform)\(", value):
        fix = f"Write ranges as {key}=interval(1e-5,1e-2) or '{key}=tag(log, interval(1e-5,1e-2))'"
    elif key and value.strip("=,") and cleaned != override and _is_readable(cleaned, parser):
        fix = f"Write {cleaned}"
    elif key and plain and _is_readable(quoted, parser):
        fix = f"Write '{quoted}'"
    return InputError.about(
        override, "it cannot be read", fix, code="syntax", key=key.lstrip("+~") or override
    )


def _is_readable(override: str, parser: OverridesParser) -> bool:
    try:
        return bool(parser.parse_override(override).key_or_group)
    except HydraException:
        return False


def _refused(error: Exception, among: Sequence[Override]) -> Override | None:
    """Return the override that Hydra's error message names; None if it is unclear."""
    named = [
        one for one in among if re.search(rf"(?<![\w./]){re.escape(one.key_or_group)}(?![\w/])", str(error))
    ]
    # A message that names agent.lr.start contains agent.lr, too.
    return max(named, key=lambda one: len(one.key_or_group), default=among[0] if len(among) == 1 else None)


def _unknown_option(
    error: MissingConfigException, choices: Sequence[Override], loader: ConfigLoader
) -> InputError:
    """Explain the choice of an option that does not exist."""
    path = str(error.missing_cfg_file)
    groups = [one.key_or_group for one in choices if path.startswith(f"{one.key_or_group}/")]
    group = max(groups, key=len, default=path.rpartition("/")[0])
    last = path.removeprefix(f"{group}/")
    options = list(dict.fromkeys([*(error.options or ()), *_options(group, loader)]))
    near = [f"{group}={name}" for name in nearest(last.replace("-", "_"), options, 3)]
    lists = f"Known: {', '.join(options)}." if len(options) <= SOME else "labrl --help lists the options."
    if group == "env":
        near = [meant] if (meant := env_of(last)) else near
        lists = "labrl-envs lists all names; for any other Gymnasium id, write env=gymnasium env.id=<id>."
    if not env_of(last) and not group.startswith("hydra/"):
        lists += own_file(group, last)
    if last == "null":
        near = [f"{group}=none"] if "none" in options else []
    if meant := other_option(group, last) or ("" if near else option_named(last)):
        near = [meant]
    message = f"{group}={last}: no such option.{suggested(near)} {lists}"
    return InputError(message, code="unknown-option", key=group)


def _wrong_choice(error: Exception, choices: Sequence[Override], loader: ConfigLoader) -> LabrlError:
    """Explain the choice of an option that Hydra refused with `error`."""
    if isinstance(error, MissingConfigException) and "/" in str(error.missing_cfg_file):
        return _unknown_option(error, choices, loader)
    known = hydra.compose("config", return_hydra_config=True)
    chosen = known.hydra.runtime.choices
    refused = [one for one in choices if one.is_delete() or not isinstance(one.value(), NAMES)]
    refused += [one for one in choices if one.is_add() and one.key_or_group in chosen]
    one = refused[0] if refused else _refused(error, choices)
    if one is None:
        return InputError(first_line(error), code="usage")
    group, override = one.key_or_group, str(one.input_line)
    options, owners = _options(group, loader), owners_of(group.replace("/", "."))
    if options and not one.is_delete() and not isinstance(one.value(), NAMES):
        return _unknown_option(
            MissingConfigException("", f"{group}/{override.partition('=')[2]}"), choices, loader
        )
    if not options:
        near = suggested(nearest(group, _groups(loader), 3))
        return InputError.about(
            group, "no such group", f"{near} To list them, type labrl --help", code="unknown-key"
        )
    if one.is_delete():
        none = f", or {group}=none to leave it out" if "none" in options else ""
        return InputError.about(
            override, "it cannot be removed", f"{group}=<option>{none}", code="missing", key=group
        )
    if one.package is not None:
        part = f"'{one.package}={{_target_: <class>}}', with its keys beside _target_"
        why, fix = f"no option of {group} is selected at {one.package}", f"Set the whole part there: {part}"
    elif group in chosen and one.is_add():
        why, fix = "the group exists", f"Write {override.lstrip('+')}, without the plus"
    elif group in chosen:
        if isinstance(error, RecursionError):
            why = "the defaults list of its file contains a cycle"
            return InputError.about(override, why, code="syntax", key=group)
        fix = "To list the options, type labrl --help"
        return InputError.about(override, first_line(error), fix, code="unknown-option", key=group)
    elif owners:
        why, fix = "the chosen options have no such part", f"The part exists with {some(owners)}"
    else:
        why, fix = "no option of this group is selected yet", f"Write +{override.lstrip('+')}"
    return InputError.about(override, why, fix, code="unknown-key", key=group)


def _unknown_key(
    one: Override, given: Mapping[str, str], cfg: DictConfig, known: Sequence[str], loader: ConfigLoader
) -> InputError:
    """Return the error for a key that does not exist in `cfg`, whose keys are `known`.

    given: all values of the command line, by the last part of their keys.
    """
    key, override = one.key_or_group, str(one.input_line)
    numbers = {name: int(value) for name, value in given.items() if re.fullmatch(r"-?\d+", value)}
    if key.rpartition(".")[2] in UPDATES and numbers.keys() >= set(UPDATES):
        # Alone, each of the two would have another meaning. gradient_steps=-1 means 1 update per frame.
        steps, every = (numbers[name] for name in UPDATES)
        num_envs = numbers.get("n_envs", numbers.get("num_envs", 1))
        rate = str(Fraction(steps, max(every * num_envs, 1)) if steps >= 0 else 1)
        found = unknown_key(f"agent.{UPDATES[0]}", rate, known)
        return InputError(found.message.replace(str(found.key), key, 1), code=found.code, key=key)
    parents = (key.rsplit(".", count)[0] for count in range(1, key.count(".") + 1))
    above = next((name for name in parents if name in known), None)
    node = None if above is None else OmegaConf.select(cfg, above, throw_on_resolution_failure=False)
    if above is None or OmegaConf.is_config(node) or owners_of(key, known):
        return unknown_key(key, override.partition("=")[2], known)
    others = [f"{above.replace('.', '/')}={name}" for name in _options(above.replace(".", "/"), loader)]
    why = f"{above}={'null' if node is None else node} has no keys below it"
    fix = f"Write {some(others) if others else f'{above}=<value>'}"
    return InputError.about(override, why, fix, code="unknown-key", key=key)


def _several_values(one: Override, cfg: DictConfig) -> InputError:
    """Return the error for a key with several values in a single trial. cfg: the trial's configuration
    without these values."""
    key, override = one.key_or_group, str(one.input_line)
    is_list = one.value_type == ValueType.SIMPLE_CHOICE_SWEEP and (
        is_of_user(key) or OmegaConf.is_list(OmegaConf.select(cfg, key, throw_on_resolution_failure=False))
    )
    as_list = f", or {override.replace('=', '=[', 1)}] for a list" if is_list else ""
    if one.is_interval_sweep():
        fix = f"Write labrl -m hydra/sweeper=optuna '{override}' for a search"
    else:
        fix = f"Write labrl -m '{override}' for an experiment{as_list}"
    return InputError.about(override, "a trial has one value of each key", fix, code="usage", key=key)


def _wrong_value(error: Exception, keys: Sequence[Override], cfg: DictConfig) -> LabrlError:
    """Explain the override of a key in `cfg` that Hydra refused with `error`."""
    one = _refused(error, keys)
    if one is None:
        return InputError(first_line(error), code="usage")
    key, override, known = one.key_or_group, str(one.input_line), all_keys(cfg)
    value, cause = override.partition("=")[2], error.__cause__
    node = OmegaConf.select(cfg, key, throw_on_resolution_failure=False)
    full = (cause.full_key if isinstance(cause, OmegaConfBaseException) else None) or key
    replaced = f"To replace the whole value, write ~{key} '+{override}'"
    if full.startswith(f"{key}.") and key in known:
        given = ""  # in a grid, each of several groups of keys has values of its own
        if not one.is_sweep_override():
            given = str(OmegaConf.select(OmegaConf.create({key: one.value()}), f"[{key}]{full[len(key) :]}"))
        inner = unknown_key(full, given, known)
        return InputError(f"{inner.message}. {replaced}", code=inner.code, key=full)
    if one.is_add() and key in known:
        if isinstance(one.value(), str) and OmegaConf.is_dict(node):
            why, fix = f"{key} is a group of keys", own_file(key.replace(".", "/"), value)
            return InputError.about(override, why, fix, code="unknown-option", key=key)
        fix = f"Write {override.lstrip('+')}, without the plus"
        return InputError.about(override, "the key exists", fix, code="unknown-key", key=key)
    if one.is_delete():
        why = "the key has a different value"
        return InputError.about(override, why, f"Write {key}=<value>", code="contradiction", key=key)
    if above := next(
        (str(other.input_line) for other in keys if key.startswith(f"{other.key_or_group}.")), ""
    ):
        return InputError.about(override, f"{above} has no keys below it", code="unknown-key", key=key)
    allowed = "a list" if OmegaConf.is_list(node) else "a group of keys" if OmegaConf.is_dict(node) else ""
    why = f"must be {allowed}" if allowed else first_line(cause or error)
    return InputError.about(override, why, replaced if is_of_user(key) else "", code="type", key=key)
