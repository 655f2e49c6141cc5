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
    option_meant,
    options_of,
    other_commands,
    other_names,
    other_option,
    setting_of,
)
from labrl.mistakes.spelling import nearest

FLAGS = ("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--info", "--config-dir", "--multirun")
"""Flags of `labrl`."""

REPLACED = {
    **dict.fromkeys(("--config-name", "-cn"), "--config-dir=<folder> experiment=<name>"),
    **dict.fromkeys(("--config-path", "-cp"), "--config-dir=<folder>"),
}
"""Flags of Hydra that `labrl` does not have, and what to type instead."""


_HYDRAS = re.compile(
    r"hydra/(sweeper|launcher)[\w/]*|hydra\.(sweeper|launcher)\.[^@]+|hydra\.(run|sweep)\.dir"
)
"""Pattern of the keys below `hydra` that users may set."""


def refuse_ignored(overrides: Sequence[str], multirun: bool | None = None) -> None:
    """Raise InputError for overrides that Hydra accepts but ignores, or that break labrl's configuration.

    These overrides are: the removal of a group; a list of options of a group, of which Hydra uses the last;
    keys of Hydra that labrl does not read; and, if `multirun` is known, the folder for the other kind of run
    (`hydra.run.dir` for an experiment, `hydra.sweep.dir` for a run).
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.partition("@")[0]
        if key[:1] == "~" and (config_folder() / group[1:]).is_dir():
            fix = setting_of(group[1:], "none")
            raise InputError.about(key, "a group cannot be removed", fix, code="missing", key=group[1:])
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
        if value[:1] == "[" and group not in ("experiment", "preset") and (config_folder() / group).is_dir():
            fix = f"Write {key}=<option>, or with -m {key}=<option>,<option> for an experiment"
            raise InputError.about(override, "it takes one option, not a list", fix, code="usage", key=group)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise InputError with a mistake for each argument that is neither key=value nor ~key, such as flags and
    commands of other libraries and options without their group."""
    wrong: list[InputError] = []
    left = [one for one in arguments if one[:1] != "~" and (one[:1] == "-" or "=" not in one)]
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        flag = name.startswith("-")
        if (flag or name in VERBS) and not equals and left and not left[0].startswith("-"):
            value = left.pop(0)
            argument = f"{argument} {value}"
        meant = _meant(name, value)
        why = "no such flag" if flag else "not of the form key=value, without spaces"
        fix = "" if meant is None else f"Write {meant}" if meant else "Leave it out"
        place, key = (text if text.strip() else shlex.quote(text) for text in (argument, name))
        code: Code = "unknown-option" if flag else "syntax" if argument.strip() else "missing"
        wrong.append(InputError.about(place, why, fix, code=code, key=key))
    if wrong:
        raise InputError.of(wrong)


def _meant(name: str, value: str) -> str | None:
    """Return what to type instead of an unknown flag or bare name: '' for nothing, None if unclear.

    value: value of the flag, or ''.
    """
    plain, commands = name.lstrip("-+").replace("-", "_").lower(), other_commands()
    if plain in commands or name in REPLACED:
        return commands.get(plain) or REPLACED.get(name, "")
    if plain in VERBS:
        return f"+{plain}={value or 'latest'}"
    if plain in ("agent", "env"):
        return option_meant(plain, value) or f"{plain}=<option>"
    if others := other_names().get(plain):
        return others[0].typed(value)
    if os.path.isdir(name):
        return f"+resume={shlex.quote(name)}"
    if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", plain):
        return f"{plain}={value or '<value>'}"
    groups = ("agent", "env", "meta", "wandb", "experiment", "agent/network", "agent/memory")
    if group := next((one for one in groups if plain in options_of(one)), ""):
        return f"{group}={plain}"
    known = [*FLAGS, *commands, *options_of("agent"), *options_of("env")] if len(plain) > 2 else []
    near = [commands.get(one, one) for one in nearest(name, known)]
    return other_option("agent", name) or other_option("env", name) or (near[0] if near else None)
