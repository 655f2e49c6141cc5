"""The first step of every run: what the user has typed, as plain data."""

from __future__ import annotations

import os
from argparse import ArgumentError, ArgumentParser
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from labrl.config.keys import is_hydras
from labrl.errors import Code, InputError
from labrl.run.provenance import Typed
from labrl.run.signature import Trust

KINDS = ("resume", "rerun", "fork", "enjoy")
"""Names of the overrides whose value is a run folder or `latest`."""

SIGNED = (*KINDS, "force", "trust")
"""Names of the overrides that need a leading plus."""

TRUST = "+trust=true. To accept only classes in your own files: --config-dir <their folder>"
"""Advice in messages: how to permit labrl to import the code that someone else's run names."""

TOPICS = ("all", "aliases", "config", "defaults", "defaults-tree", "origin", "plugins", "searchpath")
"""Topics of --info."""

_EXAMPLES = {"at": "<frame>", "force": "true", "trust": "true"} | dict.fromkeys(
    KINDS, "latest or +{name}=<run folder>"
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line of `labrl`, or a call of `labrl.train` or `labrl.sweep`."""

    verb: Literal["new", "resume", "rerun", "fork", "enjoy"] = "new"
    which: str = ""
    """The earlier run: a run folder, or `latest`; for `+rerun`, also a YAML file with a configuration."""
    overrides: list[str]
    """The other overrides: of a new run, changes of an earlier one, or options of `+enjoy`."""
    at: str | None = None
    """Frame at which to fork, as given on the command line; None if it is missing."""
    force: bool = False
    """Whether to continue even if new values contradict the past of the run."""
    multirun: bool = False
    """Whether to run an experiment (-m)."""
    config_dir: str | None = None
    """Folder with the user's own groups, as given."""
    trust: Trust = field(default_factory=Trust)
    """Which recorded configurations the user trusts."""
    typed: Typed
    """The complete command, which is recorded."""
    show: str = ""
    """What to print instead of running: `job`, `hydra` or `all` of the configuration (--cfg), or a topic of
    --info; '' to run."""
    resolve: bool = False
    """Whether to print the configuration with its references resolved (--resolve)."""

    @property
    def hydras(self) -> list[str]:
        """The overrides for Hydra, such as `hydra.run.dir`."""
        return [one for one in self.overrides if is_hydras(one)]

    @property
    def own(self) -> list[str]:
        """The overrides except those for Hydra."""
        return [one for one in self.overrides if not is_hydras(one)]


def parse(arguments: Sequence[str], typed: Typed) -> Command:
    """Return the command that arguments of `labrl` express. Raises InputError if they contradict each
    other, or are neither flags nor overrides."""
    from labrl.mistakes.arguments import check_arguments  # imports the names of all options

    parser = ArgumentParser(prog="labrl", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-c", "--cfg", default="", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-i", "--info", nargs="?", const="all", default="", choices=TOPICS)
    following = [*arguments[1:], "="]
    given = [  # of --info, the value may be left out before an override
        f"{one}=all" if one in ("--info", "-i") and ("=" in after or after.startswith("-")) else one
        for one, after in zip(arguments, following, strict=False)
    ]
    try:
        flags, unknown = parser.parse_known_intermixed_args(given)
    except ArgumentError as error:
        flag = str(error.argument_name).rpartition("/")[2]
        code: Code = "unknown-option" if "choice" in error.message else "missing"
        raise InputError.about(flag, error.message, code=code) from None
    check_arguments([one for one in arguments if one in {*unknown, *flags.overrides}])
    for flag, topic in (("--cfg", flags.cfg), ("--info", flags.info)) if flags.multirun else ():
        if topic:
            fix = "Leave out -m, and give each key a single value"
            raise InputError.contradiction("-m", f"{flag} {topic}", "it is about a single run", fix)
    command = command_of(flags.overrides, flags.config_dir, typed, flags.multirun)
    show = f"info {flags.info}" if flags.info else flags.cfg
    if show and command.verb != "new" and show != "job":
        flag = f"--{show}" if flags.info else f"--cfg {show}"
        why = f"it cannot be combined with +{command.verb}, unlike --cfg job, which prints the complete "
        why += "configuration of the run with the edits"
        raise InputError.about(flag, why, "Use --cfg job alone", code="usage", key=flag.split()[0])
    return replace(command, show=show, resolve=flags.resolve)


def command_of(
    overrides: Sequence[str],
    config_dir: str | os.PathLike[str] | None,
    typed: Typed,
    multirun: bool = False,
) -> Command:
    """Return the command that overrides express. Raises InputError for overrides that contradict each
    other."""
    given, edits = read(overrides, (*SIGNED, "at"))
    folder = None if config_dir is None else os.fspath(config_dir)
    advice = TRUST if folder is None else "+trust=true"
    for name in ("trust", "force"):
        if given.get(name, "true") not in ("true", "false"):
            raise InputError.value(f"+{name}", given[name], "be true or false")
    trusts, force = given.pop("trust", "") == "true", given.get("force") == "true"
    inside = None if folder is None else os.path.abspath(folder)
    trust = Trust(trusts, inside, advice)
    common: dict[str, Any] = {
        "config_dir": folder,
        "trust": trust,
        "typed": typed,
        "multirun": multirun,
        "at": given.get("at"),
        "force": force,
    }
    kinds = [name for name in given if name in KINDS]
    if "enjoy" in kinds:
        if multirun:
            raise InputError.contradiction("-m", "+enjoy", "it plays a single run", "Leave out -m")
        edits = [one for one in overrides if not one.startswith(("+enjoy=", "+trust="))]
        return Command(verb="enjoy", which=given["enjoy"], overrides=edits, **common)
    if not given:
        return Command(overrides=edits, **common)
    if "at" in given and "fork" not in kinds:
        at = f"at={given['at']}"
        raise InputError.usage(at, "it is an option of +fork", f"Type labrl +fork=<run folder> {at}")
    if not kinds or ("force" in given and kinds == ["fork"]):
        why, fix = "it is an option of +resume and +rerun", "Type labrl +resume=<run folder> +force=true"
        raise InputError.usage("+force=true", why, fix)
    if len(kinds) > 1:
        why = "+resume continues a run in its folder, +fork continues it in a new folder, "
        why += "and +rerun repeats it"
        fix = f"Leave out +{' or +'.join(kinds)}"
        raise InputError.contradiction(f"+{kinds[1]}", f"+{kinds[0]}", why, fix)
    verb: Any = kinds[0]
    if multirun and verb == "rerun":
        raise InputError.contradiction("-m", "+rerun", "it repeats a single run", "Leave out -m")
    of_folder = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    placed = next((one for one in edits if one.lstrip("+").startswith(f"{of_folder}=")), None)
    if verb == "resume" and placed:
        why = "an experiment is resumed in its own folder"
        why = why if multirun else "a run is resumed in its own folder; +rerun=<run> uses a new one"
        raise InputError.about(placed, why, f"Leave out {of_folder}", code="contradiction", key=of_folder)
    return Command(verb=verb, which=given[verb], overrides=edits, **common)


def frame_of(text: str | float | None) -> int | None:
    """Convert a frame such as 5e4 to an integer; None if `text` is not a frame."""
    try:
        number = float("nan" if text is None else text)
        return int(number) if number == int(number) and number >= 0 else None
    except (ValueError, OverflowError):
        return None


def read(overrides: Sequence[str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of the overrides called `names`, by name, and the other overrides.

    Raises InputError if an override lacks its value, has a wrong sign, or is given twice.
    """
    given: dict[str, str] = {}
    others = []
    for one in overrides:
        name, _, value = one.lstrip("+").partition("=")
        if name not in names:
            others.append(one)
            continue
        key = f"+{name}" if name in SIGNED else name
        if not value:
            example = _EXAMPLES.get(name, "<value>").format(name=name)
            fix = f"Type {key}={example}"
            raise InputError.about(one, "it needs a value", fix, code="missing", key=key)
        if one[: one.index(name)] not in (("+",) if name in SIGNED else ("", "+")):
            sign = "needs a" if name in SIGNED else "takes no"
            raise InputError.about(one, f"it {sign} plus", f"Type {key}={value}", code="syntax", key=key)
        if name in given:
            raise InputError.contradiction(f"{key}={value}", f"{key}={given[name]}", "", "Leave one out")
        in_quotes = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
        given[name] = value[1:-1] if in_quotes else value
    return given, others
