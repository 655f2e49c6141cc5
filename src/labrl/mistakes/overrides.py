"""Explanations of overrides that Hydra refused to compose, with what to type instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from labrl.config.keys import key_of, values_of
from labrl.envs.games import env_of
from labrl.errors import Code, InputError, LabrlError, first_line
from labrl.mistakes.names import (
    SOME,
    all_keys,
    option_named,
    other_option,
    own_file,
    unknown_key,
)
from labrl.mistakes.spelling import nearest, suggested

NAMES = (str, list, ChoiceSweep, Glob)
"""Types of the values of overrides that can name options of a group."""

SYNTAX = (
    "Write key=value; lists as [1,2], groups of keys as {a: 1, b: 2}, and values with spaces or special "
    "characters in quotes, as in 'key=\"a value\"'"
)


def explain_refusal(error: Exception, overrides: Sequence[str], multirun: bool) -> LabrlError:
    """Return the error for overrides that Hydra refused with `error`. Hydra must be initialized.

    The error is about the first override that cannot be read, or else about a choice of an option that Hydra
    refuses, or about each key that does not exist, or about the override that Hydra names. multirun: whether
    overrides may have several values, of which the first is composed.
    """
    if isinstance(error, LabrlError):
        return error
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(loader)  # with the loader, which knows what a pattern means
    parsed: list[Override] = []
    for override in overrides:
        try:
            found = parser.parse_overrides([override])
        except HydraException:
            found = []
        if not found or not found[0].key_or_group:
            key = key_of(override) or override
            return InputError.about(override, "it cannot be read", SYNTAX, code="syntax", key=key)
        parsed += found
    several = [] if multirun else [one for one in parsed if one.is_sweep_override()]
    parsed = [one for one in parsed if one not in several]
    choices = [one for one in parsed if "/" in one.key_or_group or _options(one.key_or_group, loader)]
    keys = [one for one in parsed if one not in choices]
    try:
        chosen = [(values_of(one) or [str(one.input_line)])[0] for one in choices]
        cfg = hydra.compose("config", chosen, return_hydra_config=True)
    except Exception as refused:
        return _wrong_choice(refused, choices, loader)
    known = all_keys(cfg)
    # With a plus, the key may be new.
    unknown = [
        one for one in keys if not one.is_add() and re.sub(r"\[\d+\]", "", one.key_or_group) not in known
    ]
    if unknown:
        texts = [str(one.input_line).partition("=")[2] for one in unknown]
        return InputError.of(
            unknown_key(one.key_or_group, text, known) for one, text in zip(unknown, texts, strict=True)
        )
    if several:
        key, override = several[0].key_or_group, str(several[0].input_line)
        fix = f"Write labrl -m '{override}' for an experiment or a search"
        return InputError.about(override, "a trial has one value of each key", fix, code="usage", key=key)
    one = _refused(error, keys)
    if one is None:
        return InputError(first_line(error), code="usage")
    key, cause = one.key_or_group, error.__cause__
    full = (cause.full_key if isinstance(cause, OmegaConfBaseException) else None) or key
    if full.startswith(f"{key}."):
        return unknown_key(full, "", known)
    code: Code = "contradiction" if one.is_delete() else "unknown-key" if one.is_add() else "type"
    return InputError.about(str(one.input_line), first_line(cause or error), code=code, key=key)


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


def _refused(error: Exception, among: Sequence[Override]) -> Override | None:
    """Return the override that Hydra's error message names; None if it is unclear."""
    named = [
        one for one in among if re.search(rf"(?<![\w./]){re.escape(one.key_or_group)}(?![\w/])", str(error))
    ]
    # A message that names agent.lr.start contains agent.lr, too.
    return max(named, key=lambda one: len(one.key_or_group), default=among[0] if len(among) == 1 else None)


def _unknown_option(path: str, choices: Sequence[Override], loader: ConfigLoader) -> InputError:
    """Explain the choice of an option that does not exist. path: the group and the option."""
    groups = [one.key_or_group for one in choices if path.startswith(f"{one.key_or_group}/")]
    group = max(groups, key=len, default=path.rpartition("/")[0])
    last = path.removeprefix(f"{group}/")
    options = _options(group, loader)
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
        return _unknown_option(str(error.missing_cfg_file), choices, loader)
    for odd in choices:
        if not (odd.is_delete() or isinstance(odd.value(), NAMES)):
            return _unknown_option(f"{odd.key_or_group}/{odd.get_value_string()}", choices, loader)
    one = next((one for one in choices if one.is_delete()), None) or _refused(error, choices)
    one = one or next((one for one in choices if one.is_add()), None)
    if one is None:
        return InputError(first_line(error), code="usage")
    group, override = one.key_or_group, str(one.input_line)
    why, code = first_line(error), "unknown-key"
    if isinstance(error, RecursionError):
        why, code = "the defaults list of its file contains a cycle", "syntax"
    elif one.is_delete():
        why, code = "it cannot be removed", "missing"
    elif not _options(group, loader):
        why = f"no such group.{suggested(nearest(group, _groups(loader), 3))}"
    fix = "To list groups and options, type labrl --help"
    return InputError.about(override, why, fix, code=cast("Code", code), key=group)
