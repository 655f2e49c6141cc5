"""Explanations of overrides that Hydra refused to compose, with what to type instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from labrl.config.keys import key_of, values_of
from labrl.errors import Code, InputError, LabrlError, first_line
from labrl.mistakes.names import all_keys, option_meant, unknown_key
from labrl.mistakes.spelling import suggested

SYNTAX = (
    "Write key=value; lists as [1,2], groups of keys as {a: 1, b: 2}, and values with spaces or special "
    "characters in quotes, as in 'key=\"a value\"'"
)


def explain_refusal(error: Exception, overrides: Sequence[str], multirun: bool) -> LabrlError:
    """Return the error for overrides that Hydra refused with `error`. Hydra must be initialized.

    The error is about an override that cannot be read, an option that does not exist, each key that does not
    exist, or what Hydra's message names. multirun: whether overrides may have several values, of which the
    first is composed.
    """
    if isinstance(error, LabrlError):
        return error
    nameless = next((one for one in overrides if one.startswith("=")), "")
    if text := error.override if isinstance(error, OverrideParseException) else nameless:
        return InputError.about(text, "it cannot be read", SYNTAX, code="syntax", key=key_of(text) or text)
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(loader).parse_overrides(list(overrides))
    choices, keys = list[Override](), list[Override]()
    for one in parsed:
        key, value = one.key_or_group, one.value()
        is_group = "/" in key or bool(loader.get_group_options(key))
        if isinstance(value, str) or one.is_sweep_override():  # the options of experiment are all in folders
            is_group = is_group or bool(loader.get_group_options(key, ObjectType.GROUP))
        (choices if is_group else keys).append(one)
        if one.is_sweep_override() and not multirun:
            fix = f"Write labrl -m '{one.input_line}' for an experiment or a search"
            why = "a trial has one value of each key"
            return InputError.about(str(one.input_line), why, fix, code="usage", key=key)
        if is_group and not (one.is_delete() or one.is_sweep_override() or isinstance(value, str | list)):
            return _unknown_option(f"{key}/{one.get_value_string()}", overrides, loader)
    known: list[str] = []
    try:
        chosen = [(values_of(one) or [str(one.input_line)])[0] for one in choices]
        known = all_keys(hydra.compose("config", chosen, return_hydra_config=True))
    except Exception as refused:  # the options do not fit together
        error = refused
    if isinstance(error, MissingConfigException) and "/" in str(error.missing_cfg_file):
        return _unknown_option(str(error.missing_cfg_file), overrides, loader)
    # With a plus, the key may be new.
    unknown = [
        one for one in keys if not one.is_add() and re.sub(r"\[\d+\]", "", one.key_or_group) not in known
    ]
    if known and unknown:
        texts = [str(one.input_line).partition("=")[2] for one in unknown]
        return InputError.of(
            unknown_key(one.key_or_group, text, known) for one, text in zip(unknown, texts, strict=True)
        )
    named = [one for one in parsed if re.search(rf"(?<![\w./]){re.escape(one.key_or_group)}\b", str(error))]
    # A message that names agent.lr.start contains agent.lr, too.
    one = max(named, key=lambda one: len(one.key_or_group), default=parsed[0])
    key, cause = one.key_or_group, None if one in choices else error.__cause__
    if isinstance(cause, OmegaConfBaseException) and str(cause.full_key).startswith(f"{key}."):
        return unknown_key(str(cause.full_key), "", known)
    code: Code = "contradiction" if one.is_delete() else "type"
    code = "unknown-key" if one.is_add() or one in choices else code
    fix = "To list groups and options, type labrl --help" if one in choices else ""
    return InputError.about(str(one.input_line), first_line(cause or error), fix, code=code, key=key)


def _unknown_option(path: str, overrides: Sequence[str], loader: ConfigLoader) -> InputError:
    """Return the error for an option that does not exist. path: the group and the option."""
    groups = [key for key in map(key_of, overrides) if path.startswith(f"{key}/")]
    group = max(groups, key=len, default=path.rpartition("/")[0])
    name = path.removeprefix(f"{group}/")
    options = loader.get_group_options(group)
    if "/" in name or not options:  # options in folders, such as slm_lab/cartpole
        for folder in loader.get_group_options(group, ObjectType.GROUP):
            options += [f"{folder}/{one}" for one in loader.get_group_options(f"{group}/{folder}")]
    meant = option_meant(group, "none" if name == "null" else name, options)
    known = ", ".join(options)
    if group == "env":
        known = "see labrl-envs; for any other Gymnasium id, write env=gymnasium env.id=<id>"
    message = f"{group}={name}: no such option.{suggested([meant] * bool(meant))} Known: {known}. "
    message += "For a file of your own, add --config-dir=<folder>"
    return InputError(message, code="unknown-option", key=group)
