"""Explanations of arguments of `labrl` that are neither flags nor overrides."""

from __future__ import annotations

import importlib.util
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
    **dict.fromkeys(("--help", "-h", "--hydra-help", "--version", "--run", "-r", "--resolve"), ""),
    **dict.fromkeys(("--multirun", "-m", "--shell-completion", "-sc"), ""),
    **dict.fromkeys(("--cfg", "-c"), "job, hydra, all"),
    **dict.fromkeys(("--package", "-p"), "<key>"),
    **dict.fromkeys(("--config-dir", "-cd"), "<folder>"),
    **dict.fromkeys(
        ("--info", "-i"),
        "all, aliases, config, defaults, defaults-tree, origin, plugins, presets, searchpath",
    ),
}
"""Flags of `labrl`, which Hydra parses, and their allowed values."""

REPLACED = {
    **dict.fromkeys(("--config-name", "-cn"), "--config-dir=<folder> experiment=<name>"),
    **dict.fromkeys(("--config-path", "-cp"), "--config-dir=<folder>"),
    "--experimental-rerun": "+rerun=<run folder>",
}
"""Flags of Hydra that `labrl` does not have, and what to type instead."""


def refuse_ignored(overrides: Sequence[str], multirun: bool | None = None) -> None:
    """Raise InputError for overrides that Hydra accepts but ignores, or that break labrl's configuration.

    These are `~preset`, which it accepts for some agents only; `~transforms/...`, which presets override; a
    list of options of a group, of which it uses the last; loggers in `hydra.verbose` that no package has; a
    search path, in which labrl does not look; a launcher or sweeper without keys; and, if `multirun` is
    known, the folder of the other kind of run.
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group, several = key.partition("@")[0], re.fullmatch(r"\[(.*)\]", value)
        if key == "~preset" or key.startswith("~transforms/"):
            raise InputError(
                f"{key}: the group {key[1:]} cannot be removed. Set {key[1:]}=none to use none.",
                code="missing",
                key=key[1:],
            )
        if key == "hydra.verbose" and value.lower() not in ("true", "false"):
            names = (several[1] if several else value).split(",")
            if any(not _is_package(name.strip(" '\"").partition(".")[0]) for name in names):
                raise InputError(
                    f"{override}: must be true, false, or the names of loggers, such as hydra or "
                    "[labrl,optuna]",
                    code="range",
                    key=key,
                )
        if key == "hydra.searchpath":
            raise InputError(
                f"{override}: presets and modules are not searched for there. For your own groups, write "
                "--config-dir=<folder>",
                code="usage",
                key=key,
            )
        if key in ("hydra.launcher", "hydra.sweeper") and value[:1] not in ("{", "$"):
            raise InputError(
                f"{key} must be a group of keys, got {value}. Write {key.replace('.', '/')}=<option>",
                code="type",
                key=key,
            )
        if multirun is not None and key == ("hydra.run.dir" if multirun else "hydra.sweep.dir"):
            there, other = ("an experiment (-m)", "sweep") if multirun else ("a run without -m", "run")
            raise InputError(
                f"{override} has no effect on {there}. Write hydra.{other}.dir={value or '<folder>'}",
                code="usage",
                key=key,
            )
        if several and group not in ("experiment", "preset") and (config_folder() / group).is_dir():
            raise InputError(
                f"{override}: {group} takes one option, not a list. Write {key}=<option>, or labrl -m "
                f"{key}={several[1].replace(' ', '')} for an experiment with each",
                code="usage",
                key=group,
            )


def _is_package(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(name) is not None


def stray_arguments(arguments: Sequence[str]) -> tuple[list[InputError], list[str]]:
    """Return the mistakes for arguments that are neither flags, key=value nor ~key, and the overrides.

    Such arguments are commands of other programs (train, --env pong, -s 3), options without their group
    (pong), or overrides that the shell has split (env = pong, key=[1, 2]). A single mistake shows the correct
    command line for all of them. Otherwise Hydra would print its usage, or take -s for its flag -sc.
    """
    mistakes: list[InputError] = []
    overrides: list[str] = []
    wrong: list[str] = []
    line = ["labrl"]
    left = [re.sub("^[\N{EN DASH}\N{EM DASH}]", "--", argument) for argument in arguments]
    while left:
        if not left[0].strip():
            empty = shlex.quote(left.pop(0))
            why = f"{empty}: the argument is empty (perhaps a shell variable is not set): leave it out"
            mistakes.append(InputError(why, code="missing", key=empty))
            continue
        parts, argument = _taken(left)
        typed = " ".join(parts)
        name, equals, value = argument.partition("=")
        if name in FLAGS:
            line.append(typed)
            if not _takes(name, equals, value):
                message = f"{typed}: {name} takes {FLAGS[name] or 'no value'}"
                mistakes.append(InputError(message, code="unknown-option" if value else "missing", key=name))
        elif len(parts) == 1 and (argument.startswith("~") or (equals and not argument.startswith("-"))):
            overrides.append(argument)
            line.append(shlex.quote(argument))
        else:
            wrong.append(typed)
            line.append(
                shlex.quote(argument) if "=" in parts[0] and argument[0] != "-" else _suggestion(name, value)
            )
    if wrong:
        command = next((part for part in line if part.startswith("labrl-")), " ".join(filter(None, line)))
        message = f"{', '.join(wrong)}: not of the form key=value, without spaces. Write: {command}"
        code: Code = "unknown-option" if wrong[0].startswith("-") else "syntax"
        mistakes.insert(0, InputError(message, code=code, key=wrong[0].split()[0]))
    return mistakes, overrides


def _taken(left: list[str]) -> tuple[list[str], str]:
    """Remove the first arguments of `left` that belong together. Return them separately and joined."""
    argument = left.pop(0)
    parts = [argument]
    while left and _continues(argument, left[0]):
        part = left.pop(0)
        parts.append(part)
        argument += f" {part}" if _is_open(argument) else part if "=" in argument + part else f"={part}"
    return parts, argument


def _continues(argument: str, following: str) -> bool:
    """Return whether `following` belongs to `argument`, as its value or as a part split off by the shell."""
    if following.startswith("="):
        return "=" not in argument
    if _is_open(argument):
        return True
    if not re.fullmatch(r"[^-~=][^=]*|-[\d.e+-]+", following):
        return False
    if "=" in argument or argument.startswith("-"):
        return argument.endswith("=") or ("=" not in argument and FLAGS.get(argument) != "")
    if argument.lstrip("+") in VERBS:
        return following == "latest" or os.path.exists(following)
    if argument.endswith(".json"):
        return False
    is_key = "." in argument or argument in other_names() or (config_folder() / argument).is_dir()
    return is_key and argument not in other_commands()


def _is_open(argument: str) -> bool:
    """Return whether `argument` has an unclosed bracket."""
    return sum(map(argument.count, "[{(")) > sum(map(argument.count, "]})"))


def _takes(flag: str, equals: str, value: str) -> bool:
    """Return whether a flag accepts this value."""
    allowed = FLAGS[flag]
    if not value:
        return not equals and (not allowed or flag in ("--info", "-i"))
    return bool(allowed) and (allowed.startswith("<") or value in allowed.split(", "))


def _suggestion(name: str, value: str) -> str:
    """Return what to type instead of an unknown flag or bare name. value: its value, or ''."""
    plain = name.lstrip("-+").replace("-", "_") if name.startswith(("-", "+")) else name
    if not plain:
        return ""
    if name in REPLACED:
        return REPLACED[name]
    if not value and ":" in plain:
        plain, _, value = plain.partition(":")
    commands = other_commands()
    # SLM Lab's commands for a run, and its spec files, which the rest of the command line replaces.
    if at := re.fullmatch(r"(train|enjoy)@(.*)", plain):
        verb = "enjoy" if at[1] == "enjoy" else "resume"
        return f"+{verb}={shlex.quote(at[2]) if os.path.isdir(at[2]) else 'latest'}"
    if plain.endswith(".json"):
        return ""
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
    if not near:
        return f"<key>={value or '<value>'}"
    return commands.get(near[0]) or option_named(near[0]) or near[0]
