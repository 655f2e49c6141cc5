"""Explanations of arguments of `labrl` that are neither flags nor overrides."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from labrl.config import config_folder
from labrl.errors import Code, InputError
from labrl.mistakes.names import (
    VERBS,
    choice_of,
    option_named,
    options_of,
    other_commands,
    other_names,
    owners_of,
)
from labrl.mistakes.spelling import nearest

FLAGS = {
    **dict.fromkeys(("--help", "-h", "--hydra-help", "--version", "--resolve", "--multirun", "-m"), ""),
    **dict.fromkeys(("--cfg", "-c"), "job, hydra, all"),
    **dict.fromkeys(("--config-dir", "-cd"), "<folder>"),
    **dict.fromkeys(
        ("--info", "-i"), "all, aliases, config, defaults, defaults-tree, origin, plugins, searchpath"
    ),
}
"""Flags of `labrl`, and their allowed values."""

REPLACED = {
    **dict.fromkeys(("--config-name", "-cn"), "--config-dir=<folder> experiment=<name>"),
    **dict.fromkeys(("--config-path", "-cp"), "--config-dir=<folder>"),
    "--experimental-rerun": "+rerun=<run folder>",
}
"""Flags of Hydra that `labrl` does not have, and what to type instead."""


_HYDRAS = re.compile(
    r"hydra/(sweeper|launcher)[\w/]*|hydra\.(sweeper|launcher)\.[^@]+|hydra\.(run|sweep)\.dir"
)
"""Pattern of the keys below `hydra` that users may set."""


def refuse_ignored(overrides: Sequence[str], multirun: bool | None = None) -> None:
    """Raise InputError for overrides that Hydra accepts but ignores, or that break labrl's configuration.

    These overrides are: `~preset`, which Hydra accepts for some agents only; `~transforms/...`, which presets
    override; a list of options of a group, of which Hydra uses the last; keys of Hydra that labrl does not
    read; and, if `multirun` is known, the folder for the other kind of run (`hydra.run.dir` for an
    experiment, `hydra.sweep.dir` for a run).
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group, several = key.partition("@")[0], re.fullmatch(r"\[(.*)\]", value)
        if key == "~preset" or key.startswith("~transforms/"):
            raise InputError.about(
                key, "the group cannot be removed", f"{key[1:]}=none", code="missing", key=key[1:]
            )
        if re.search(r"(^|@)hydra\b", key.lstrip("~")) and not _HYDRAS.fullmatch(key.lstrip("~")):
            why = "of the node hydra, labrl reads only hydra.run.dir, hydra.sweep.dir, hydra/sweeper and "
            why += "hydra/launcher, with their keys"
            raise InputError.about(override, why, "Leave it out", code="unknown-key", key=key)
        if key == "hydra/sweeper" and value not in ("grid", "optuna"):
            raise InputError.value(key, value, "be grid or optuna", code="unknown-option")
        if multirun is not None and key == ("hydra.run.dir" if multirun else "hydra.sweep.dir"):
            there, other = ("an experiment (-m)", "sweep") if multirun else ("a run without -m", "run")
            fix = f"hydra.{other}.dir={value or '<folder>'}"
            raise InputError.usage(override, f"it has no effect on {there}", fix)
        if several and group not in ("experiment", "preset") and (config_folder() / group).is_dir():
            each = f"labrl -m {key}={several[1].replace(' ', '')} for an experiment with each"
            fix = f"Write {key}=<option>, or {each}"
            raise InputError.about(override, "it takes one option, not a list", fix, code="usage", key=group)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise InputError if an argument is neither a flag with an allowed value, nor key=value or ~key.

    The message contains the corrected command line. In it, wrong arguments whose meaning is known are
    replaced: commands and flags of other libraries (train, --env=pong), and options without their group
    (pong).
    """
    wrong: list[str] = []
    line: list[str | None] = ["labrl"]
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if not argument.strip():
            why = "the argument is empty (perhaps a shell variable is not set)"
            raise InputError.about(shlex.quote(argument), why, "Leave it out", code="missing")
        if argument.startswith("~") or (equals and not argument.startswith("-")):
            line.append(shlex.quote(argument))
            continue
        has_value = not equals and (name in VERBS or (name.startswith("-") and FLAGS.get(name) != ""))
        if has_value and left and re.fullmatch(r"[^-~=][^=]*", left[0]):
            value = left.pop(0)
            argument = f"{argument} {value}"
        if name in FLAGS:
            line.append(argument)
            if not _takes(name, equals, value):
                code: Code = "unknown-option" if value else "missing"
                raise InputError(f"{argument}: {name} takes {FLAGS[name] or 'no value'}", code=code, key=name)
        else:
            wrong.append(argument)
            line.append(_suggestion(name, value))
    if wrong:
        parts = [part for part in line if part]
        command = next((part for part in parts if part.startswith("labrl-")), " ".join(parts))
        unclear = None in line
        fix = "Write 'key=value', with quotes if it contains spaces" if unclear else f"Write: {command}"
        code = "unknown-option" if wrong[0].startswith("-") else "syntax"
        why = "not of the form key=value, without spaces"
        key = re.findall(r"-\S*|[^=\s]+", wrong[0])[0]
        raise InputError.about(", ".join(wrong), why, fix, code=code, key=key)


def _takes(flag: str, equals: str, value: str) -> bool:
    """Return whether a flag accepts this value."""
    allowed = FLAGS[flag]
    if not value:
        return not equals and (not allowed or flag in ("--info", "-i"))
    return bool(allowed) and (allowed.startswith("<") or value in allowed.split(", "))


def _suggestion(name: str, value: str) -> str | None:
    """Return what to type instead of an unknown flag or bare name: '' for nothing, None if unclear.

    value: value of the flag, or ''.
    """
    plain = name.lstrip("-+").replace("-", "_") if name.startswith(("-", "+")) else name
    if not plain:
        return ""
    if name in REPLACED:
        return REPLACED[name]
    commands = other_commands()
    if not value and plain.lower() in commands:
        return commands[plain.lower()]
    if plain in VERBS:
        return f"+{plain}={shlex.quote(value) or 'latest'}"
    if plain in ("agent", "env"):
        return choice_of(plain, value)
    if others := other_names().get(plain.lower()):
        return others[0].typed(value)
    if not value and (option := option_named(name)):
        return option
    if not value and os.path.isdir(name):
        return f"+resume={shlex.quote(name)}"
    if ("." in plain and "/" not in plain) or (config_folder() / plain).is_dir():
        return shlex.quote(f"{plain}={value}") if value else f"{plain}=<value>"
    for node in ("agent", "env", "meta", "wandb"):
        if owners_of(f"{node}.{plain}"):
            return f"{node}.{plain}={value or '<value>'}"
    options = [option for group in ("agent", "env", "meta") for option in options_of(group)]
    near = nearest(name, [*FLAGS, *commands, *options])
    return (commands.get(near[0]) or option_named(near[0]) or near[0]) if near else None
