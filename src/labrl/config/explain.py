"""Hydra's and OmegaConf's complaints, told again in terms of what was typed and what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import ConfigDefault, GroupDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from labrl.errors import InputError, did_you_mean, nearest

RECIPES = "experiment"
"""The group whose options lie in folders, and among which users have their own."""

VERBS = ("resume", "rerun", "enjoy", "force", "pin")
"""Words that are typed with a plus and are no keys."""

NAMED_ELSEWHERE = {
    "buffer_size": "agent.memory.capacity",
    "ent_coef": "agent.entropy_coef",
    "evaluation_epsilon": "meta.eval_epsilon",
    "discount": "agent.gamma",
    "learning_rate": "agent.lr",
    "max_episode_steps": "env.max_episode_steps",
    "n_steps": "agent.horizon",
    "total_timesteps": "env.max_frame",
    "vf_coef": "agent.value_coef",
}
"""labrl's keys for names that other libraries, or earlier versions of labrl, use."""


def explained(error: BaseException, overrides: Sequence[str], loader: ConfigLoader) -> InputError:
    """`error`, raised while `overrides` were composed, as one that says what to type instead."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, OverrideParseException):
        return _bad_syntax(str(error.override))
    if isinstance(error, MissingConfigException):
        return _missing_option(error, overrides, loader)
    if isinstance(error, OSError):
        where = f" {os.path.abspath(error.filename)}" if error.filename else ""
        return InputError(
            f"the run folder cannot be made ({error.strerror or error}:{where}): "
            "give another with hydra.run.dir=<folder>, or hydra.sweep.dir=<folder> with -m"
        )
    message = str(error) or str(error.__cause__)
    whole = f"{message} {error.__cause__}"
    unknown = re.match(r"Could not override '([^']*)'", message)
    if unknown:
        key = unknown[1]
        inner = re.search(r"full_key: (\S+)", str(error.__cause__))
        if inner and inner[1].startswith(f"{key}."):
            return InputError(
                f"{inner[1]}: no such key; groups of keys are merged. To add to this one: '+{key}=...'. "
                f"To put something of another kind there, take the old one away: ~{key} '+{key}=...'"
            )
        return _unknown_key(unknown[1], overrides, loader)
    present = re.match(r"Could not append to config. An item is already at '([^']*)'", message)
    if present:
        return InputError(
            f"+{present[1]}: there is such a key; write it without the plus, {present[1]}=<value>"
        )
    absent = re.match(r"Could not delete from config\. '([^']*)' does not exist", message)
    if absent:
        return _unknown_key(absent[1], overrides, loader)
    differs = re.match(r"Could not delete from config\. The value of '([^']*)' is (.*) and not ", message)
    if differs:
        key, value = differs.groups()
        return InputError(
            f"~{key}: its value is {value}, not the one given. {key}=<value> changes it; "
            f"~{key} without a value takes it away, unless the run needs it"
        )
    several = re.match(r"Ambiguous value for argument '([^=]*)=(.*)'", message)
    if several:
        key, values = several.groups()
        return InputError(
            f"{key}={values}: several values are an experiment (labrl -m {key}={values}) "
            f"or a list ({key}=[{values}])."
        )
    if message.startswith("Config group override must be"):
        return _not_an_option(overrides, loader)
    kinds = re.match(r"Error merging override (.*)", message)
    if kinds and "Cannot merge incompatible container types" in whole:
        key = kinds[1].partition("=")[0]
        return InputError(
            f"{kinds[1]}: a list cannot take the place of a group of keys, nor the other way round. To put "
            f"something of another kind there, take the old one away: ~{key} '+{key}=...'"
        )
    if kinds and "is not Optional" in whole:
        return InputError(f"{kinds[1]}: it cannot be null; give it a value, or leave the word out")
    if re.match(r"Error resolving interpolation 'auto_", message):
        if "~preset" in overrides:
            return InputError("~preset: the agent asks for it; to leave presets out write preset=none")
        part = next((word.lstrip("~") for word in overrides if re.fullmatch(r"~agent/\w+", word)), None)
        if part:
            return InputError(f"~{part}: the agent needs one: {part}=<option>")
        return InputError("agent and env must each be chosen: agent=<option> env=<option>")
    unset = re.search(r"Missing mandatory value: (\S+)", whole)
    if unset:
        key = unset[1].rstrip(".:,")
        return InputError(f"{key} must be given: set {key}=<value>")
    cause = (
        f": {_first_line(error.__cause__)}" if error.__cause__ and str(error.__cause__) not in message else ""
    )
    return InputError(f"{_first_line(message)}{cause}")


def _first_line(text: Any) -> str:
    """The first line that says something: one that ends with a colon says it in the next."""
    first, _, rest = str(text).strip().partition("\n")
    return f"{first} {_first_line(rest)}" if first.endswith(":") and rest.strip() else first


def _bad_syntax(override: str) -> InputError:
    choices = re.fullmatch(r"(.+?)=choice\((.*\bnull\b.*)\)", override)
    if choices:
        return InputError(f"{override}: choice(...) cannot hold null; write '{choices[1]}={choices[2]}'")
    return InputError(
        f"{override}: cannot be read. "
        "Write key=value; lists are [1,2], groups of keys {a: 1, b: 2}, "
        "and a value with blanks or signs needs quotes, as in 'key=\"a value\"'."
    )


def _not_an_option(overrides: Sequence[str], loader: ConfigLoader) -> InputError:
    for one in OverridesParser.create().parse_overrides(list(overrides)):
        if not one.key_or_group:
            return _bad_syntax(str(one.input_line))
        options = loader.get_group_options(one.key_or_group)
        if options and not isinstance(one.value(), str | list):
            return InputError(f"{one.input_line}: {one.key_or_group} must be one of {', '.join(options)}")
    return InputError("a group must be given the name of one of its options")


def _missing_option(
    error: MissingConfigException, overrides: Sequence[str], loader: ConfigLoader
) -> InputError:
    path = error.missing_cfg_file
    if not path or "/" not in path:
        return InputError(_first_line(error))
    group, option = _group_and_option(path, overrides)
    options = list(error.options or [])
    if group == RECIPES or "/" in option or not options:
        options += _in_folders(group, loader)
    if not options:
        return InputError(_first_line(error))
    guess = did_you_mean(_name_in(option) if group == "env" else option, options, prefix=f"{group}=")
    if group == "env":
        hint = " labrl-envs lists all; env=gymnasium env.id=<id> takes any id of Gymnasium."
    else:
        hint = f" Known: {', '.join(options)}."
    if group == RECIPES:
        hint += f" Your own, <folder>/{group}/{option}.yaml, are found with --config-dir <folder>."
    return InputError(f"{group}={option}: no such option.{guess}{hint}")


def _group_and_option(path: str, overrides: Sequence[str]) -> tuple[str, str]:
    """Of a file that is missing: as they were typed, for an option may have a slash of its own."""
    for one in OverridesParser.create().parse_overrides(list(overrides)):
        if f"{one.key_or_group}/{one.get_value_string()}" == path:
            return one.key_or_group, path.removeprefix(f"{one.key_or_group}/")
    for group in ("env", RECIPES):  # ids such as ALE/Pong-v5, recipes such as slm_lab/cartpole
        if path.startswith(f"{group}/"):
            return group, path.removeprefix(f"{group}/")
    group, _, option = path.rpartition("/")
    return group, option


def _in_folders(group: str, loader: ConfigLoader) -> list[str]:
    """What `group` can be that lies in a folder of it: slm_lab/cartpole."""
    folders = [one.removeprefix(f"{group}/") for one in _groups(loader, group)]
    return [
        f"{folder}/{name}" for folder in folders for name in loader.get_group_options(f"{group}/{folder}")
    ]


def _name_in(env_id: str) -> str:
    """What labrl would call an id of Gymnasium's: ms_pacman for ALE/MsPacman-v5 or MsPacmanNoFrameskip-v4."""
    name = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", env_id.rpartition("/")[2])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def _unknown_key(key: str, overrides: Sequence[str], loader: ConfigLoader) -> InputError:
    groups = list(_groups(loader))
    if "/" in key:
        if key in groups:
            return InputError(f"{key}: {_without_part(key, overrides, loader)}")
        group, _, place = key.partition("@")
        if place and group in groups:
            return InputError(
                f"{key}: nothing is chosen from {group} at {place}. A part is put there whole: "
                f"'{place}={{_target_: <class>}}', with its keys beside _target_."
            )
        guess = did_you_mean(key, groups)
        return InputError(f"{key}: no such group.{guess or ' Known: ' + ', '.join(groups) + '.'}")
    hydra = key.startswith("hydra.")
    cfg = _chosen(overrides, loader)
    keys = [known for known in _known_keys(cfg) if known.startswith("hydra.") == hydra]
    parent = key.rpartition(".")[0]
    below = [known for known in keys if known.rpartition(".")[0] == parent]
    others = _agents_with(key, loader)
    emptied = _emptied(key, overrides, loader)
    if emptied is not None:
        hint = f" {emptied} has left no keys there: take one of the two words away."
    elif parent in keys and not below:
        options = loader.get_group_options(parent.replace(".", "/"))
        choices = ", ".join(f"{parent.replace('.', '/')}={option}" for option in options)
        hint = f" First choose one: {choices}." if options else f" To add it there write +{key}=<value>."
    elif cfg is not None and others:
        hint = f" agent={cfg.hydra.runtime.choices.agent} has none; these have one: {', '.join(others)}."
    elif match := _nearest_key(key, keys, groups):
        hint = f" Did you mean {match}?"
    else:
        hint = f" Known there: {', '.join(below)}." if below else ""
    node = "hydra" if key.startswith("hydra.") else "job"
    return InputError(f"{key}: no such key.{hint} (labrl --cfg {node} prints every key.)")


def _emptied(key: str, overrides: Sequence[str], loader: ConfigLoader) -> str | None:
    """The word, if there is one, that has put a value where `key` would have a group of keys."""
    for one in OverridesParser.create().parse_overrides(list(overrides)):
        above, chooses = key.startswith(f"{one.key_or_group}."), loader.get_group_options(one.key_or_group)
        if above and not chooses and not isinstance(one.value(), dict):
            return one.input_line
    return None


def _nearest_key(key: str, keys: Sequence[str], groups: Sequence[str]) -> str | None:
    """The full key most likely meant: another library's name for it, a sibling, the same last word elsewhere,
    or any that looks alike."""
    parent, _, leaf = key.rpartition(".")
    if NAMED_ELSEWHERE.get(leaf) in keys:
        return NAMED_ELSEWHERE[leaf]
    siblings = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == parent}
    if not parent:
        siblings |= {verb: f"+{verb}" for verb in VERBS}
    for match in nearest(leaf, siblings):
        return siblings[match]
    same_leaf = [name for name in keys if name.rpartition(".")[2] == leaf]
    if same_leaf:
        return same_leaf[0]
    return None if parent in keys else next(iter(nearest(key, [*keys, *groups])), None)


def _without_part(group: str, overrides: Sequence[str], loader: ConfigLoader) -> str:
    """That nothing is chosen from `group`, and who would have a part from there."""
    parent, _, part = group.rpartition("/")
    cfg = _chosen([word for word in overrides if not word.startswith(f"{group}=")], loader)
    owners = _agents_where(lambda file: part in _parts(file), loader) if parent == "agent" else []
    if cfg is None or not owners:
        return f"what is chosen for {parent} has no such part."
    return f"agent={cfg.hydra.runtime.choices.agent} has no such part; these have one: {', '.join(owners)}."


def _parts(file: ConfigResult) -> list[str]:
    """The groups from which a file's list of defaults chooses."""
    return [one.group for one in file.defaults_list or [] if isinstance(one, GroupDefault) and one.group]


def _agents_with(key: str, loader: ConfigLoader) -> list[str]:
    """The agents in whose files, or in those that they build on, `key` stands."""
    group, _, inner = key.partition(".")
    if group != "agent" or not inner:
        return []

    def stands_in(file: ConfigResult) -> bool:
        plain = OmegaConf.to_container(file.config, resolve=False)
        assert isinstance(plain, dict)
        return inner in _keys(plain)

    return _agents_where(stands_in, loader)


def _agents_where(true_of: Callable[[ConfigResult], bool], loader: ConfigLoader) -> list[str]:
    """The agents of whose file, or of one that they build on, something is true."""
    assert isinstance(loader, ConfigLoaderImpl)
    repository = loader.repository

    @cache  # many agents build on the same one
    def holds(agent: str) -> bool:
        file = repository.load_config(f"agent/{agent}")
        if file is None:
            return False
        bases = [one.path for one in file.defaults_list or [] if isinstance(one, ConfigDefault) and one.path]
        return true_of(file) or any(holds(base) for base in bases if base != "_self_")

    return [agent for agent in loader.get_group_options("agent") if holds(agent)]


def _chosen(overrides: Sequence[str], loader: ConfigLoader) -> DictConfig | None:
    """The configuration that the chosen groups make, before any key is set; None where they make none."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    chosen = [
        one.input_line
        for one in parsed
        if one.input_line and not one.is_sweep_override() and loader.get_group_options(one.key_or_group)
    ]
    try:
        return loader.load_configuration("config", chosen, run_mode=RunMode.RUN)
    except Exception:  # the suggestion is a courtesy: the first complaint stays the one that is told
        return None


def _known_keys(cfg: DictConfig | None) -> list[str]:
    """Every full key of a configuration."""
    plain = {} if cfg is None else OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(plain, dict)
    return list(_keys(plain))


def _keys(node: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    assert isinstance(loader, ConfigLoaderImpl)
    for name in loader.get_group_options(parent, ObjectType.GROUP):
        group = f"{parent}/{name}" if parent else name
        if not parent and name == "hydra":
            continue
        if loader.get_group_options(group, ObjectType.CONFIG):
            yield group
        yield from _groups(loader, group)
