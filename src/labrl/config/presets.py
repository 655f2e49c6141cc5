"""Presets: values for an agent in an environment, in `preset/<environment>.yaml` with a section per agent.

docs/reference/configuration.md states which sections apply to a run. Hydra composes the section `ppo` of
`preset/cartpole.yaml` as the configuration `preset/ppo_cartpole`, which may also be a file of that name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.global_hydra import GlobalHydra
from omegaconf._yaml import get_yaml_loader

from labrl.component import TargetError, load_target
from labrl.config import config_folder
from labrl.envs.games import games
from labrl.errors import InputError

FILE = "file:"
"""Prefix in the name of a generated preset that repeats the keys of an agent's file."""
SCHEME = "labrl"
"""Prefix of labrl's folders of groups in Hydra's search path."""
OWN = "+"
"""Prefix of the name of a user's preset that applies after labrl's preset of the same name."""

_PACKAGE = re.compile(r"(?:[ \t]*(?:#.*)?\n)*?[ \t]*#[ \t]*@package[ \t]+(\S+)")
"""Header of a file for Hydra. Only comments and empty lines may come before it."""


def choices_of(hydra: Any) -> dict[str, str]:
    """Return the chosen option of each group as recorded in the node `hydra`, without Hydra's own groups."""
    options = hydra.runtime.choices.items()
    # preset@_global_ is a preset that another one extends.
    others = ("hydra/", "preset@")
    return {str(group): str(option) for group, option in options if not group.startswith(others)}


def hydra_options(overrides: Sequence[str], config_dir: str | None) -> list[str]:
    """Return overrides for the sweeper and the launcher that the chosen file of the group `experiment` sets.

    Hydra itself would prefer those of config.yaml, because it reads that file first.
    """
    typed = dict(one.split("=", 1) for one in overrides if "=" in one)
    folders = [config_folder(), *([Path(config_dir)] if config_dir else [])]

    def options_in(name: str) -> dict[str, str]:
        files = (file_of(folder, "experiment", name) for folder in folders)
        content = next((read(file) for file in files if file.is_file()), None)
        found: dict[str, str] = {}
        for entry in (content or {}).get("defaults") or ():
            if isinstance(entry, dict):
                chosen = {key.split()[-1].lstrip("/"): str(value) for key, value in entry.items()}
                found |= {key: chosen[key] for key in ("hydra/sweeper", "hydra/launcher") if key in chosen}
            elif entry not in ("_self_", name):
                found |= options_in(str(entry))
        return found

    found = options_in(typed["experiment"]) if "experiment" in typed else {}
    return [f"{key}={value}" for key, value in found.items() if key not in typed]


# --- files and their sections ---


def file_of(folder: Path, group: str, option: str) -> Path:
    """Return the file of an option. Raises InputError for a name that leads out of the group's folder."""
    file = folder / group / f"{option}.yaml"
    if not Path(os.path.normpath(file)).is_relative_to(os.path.normpath(folder / group)):
        raise InputError.not_found(f"{group}={option}", "this is a path, not the name of an option")
    return file


def read(file: Path) -> Any:
    """Return the content of a YAML file; None if it is empty or missing. Raises InputError for bad syntax."""
    return read_with_package(file)[0]


def read_with_package(file: Path) -> tuple[Any, str | None]:
    """Return the content of a YAML file, and the package in its header, `# @package <package>`.

    The content is None if the file is empty or missing; the package is None without such a header.
    Raises InputError for bad syntax.
    """
    try:
        return _parsed(file, file.stat().st_mtime_ns)
    except FileNotFoundError:
        return None, None
    except (yaml.YAMLError, ValueError) as error:
        raise wrong_file(file, error) from error


@cache
def _parsed(file: Path, changed: int) -> tuple[Any, str | None]:
    text = file.read_text(encoding="utf-8")
    found = _PACKAGE.match(text)
    return yaml.load(text, get_yaml_loader()), found[1] if found else None


def wrong_file(file: Path, why: object) -> InputError:
    """Return the error for a file that cannot be used."""
    return InputError.about(file, " ".join(str(why).split()), code="syntax")


def sections(folder: Path, env: str) -> dict[str, dict[str, Any]]:
    """Return the sections of `preset/<env>.yaml` in `folder`, by title.

    The result is empty if the file is missing or is a single preset. Raises InputError for a section that has
    no keys or is for an agent that does not exist.
    """
    file = file_of(folder, "preset", env)
    content, package = read_with_package(file)
    if package is not None or not content:
        return {}
    if not isinstance(content, dict) or not all(isinstance(one, dict) for one in content.values()):
        raise wrong_file(file, "each section must contain keys. Write `ppo: {agent: {gamma: 0.98}}`")
    agents = {title.split()[0] for title in content if not title.startswith("agent/")}
    for agent in agents if folder != config_folder() else ():
        if not _content("agent", agent):
            raise wrong_file(file, f"the section {agent} is for an agent that does not exist")
    return content


def section(folder: Path, name: str) -> tuple[Path, str, dict[str, Any]] | None:
    """Return the file, title and content of the preset `name`, if it is a section of a file in `folder`.

    For example, ppo_cartpole is the section `ppo` of preset/cartpole.yaml, and dqn_replace_cartpole its
    section `dqn agent/target=replace`.
    """
    for underscore in re.finditer("_", name):
        env = name[underscore.end() :]
        for title, content in sections(folder, env).items():
            if re.sub(r"agent/\w+=", "", title).replace(" ", "_") == name[: underscore.start()]:
                return file_of(folder, "preset", env), title, content
    return None


def origin_of(folder: Path, path: str) -> str:
    """Return the file of the configuration at Hydra's `path`; for a section, also the section's title."""
    group, _, name = path.replace(f"/{OWN}", "/").partition("/")
    if group == "env" and not (folder / f"{path}.yaml").is_file():
        return f"env={name}"
    if name.startswith(FILE):
        files = (file_of(one, "agent", name.removeprefix(FILE)) for one in _folders())
        return str(next(one for one in files if one.is_file()))
    found = section(folder, name) if group == "preset" else None
    return f"{found[0]}, section {found[1]}" if found else f"{folder / group / name}.yaml"


# --- the presets of a run ---


def generated(path: str) -> dict[str, Any] | None:
    """Return the content of a configuration that labrl generates; None if there is none at `path`.

    `preset/<agent>:<env>` composes the presets of a run, if necessary through
    `preset/<agent>:<env>:<option>:...` with the chosen options of the agent's parts. `preset/file:<agent>`
    has the keys of an agent's file, whose values replace the presets that the agent inherits.
    """
    group, _, name = path.partition("/")
    if group == "env" and name in games():
        return {"defaults": ["atari", "_self_"], "game": name}
    if group != "preset" or ":" not in name:
        return None
    if name.startswith(FILE):
        content = _content("agent", name.removeprefix(FILE))
        return {"agent": {key: value for key, value in content.items() if key != "defaults"}}
    agent, env, *options = name.split(":")
    agents, envs = ancestors("agent", agent), ancestors("env", env)
    parts = [] if options else _parts(agent, envs)
    if parts:  # resolved in a second step, with the chosen options
        return {"defaults": [":".join([name, *(f"${{agent/{part}}}" for part in parts)])]}
    names = _existing(options, envs)
    has_file = env in games() or bool(_content("env", env))  # unlike dev, which is no environment
    for one in agents:
        inherits = has_file and one != agents[0] and names
        names += [FILE + one] if inherits and _content("agent", one).keys() != {"defaults"} else []
        names += _existing([*(f"{one}_{option}" for option in options), one], envs)
    return {"defaults": [{"/preset@_global_": names}]}


def _existing(owners: Sequence[str], envs: Sequence[str]) -> list[str]:
    """Return the names of the existing presets of `owners` in `envs`, labrl's presets before the user's."""
    names: list[str] = []
    for name in (f"{owner}_{env}" for owner in owners for env in envs):
        found = [one for one in _folders() if _is_file(one, name) or section(one, name)]
        names += [name, OWN + name][: len(found)]
    return names


def ancestors(group: str, option: str, by_class: bool = True) -> list[str]:
    """Return the agents or environments that `option` extends, the most general first, then `option` itself.

    An option extends those in the defaults list of its file. A user's agent without such a list extends
    labrl's agent from whose class its own class is derived, unless `by_class` is False.
    """
    content = _content(group, option)
    entries = (one for one in content.get("defaults") or () if isinstance(one, str) and one != "_self_")
    names = [re.sub(f"^/{group}/(.*)@_here_$", r"\1", one) for one in entries]
    if by_class and group == "agent" and not names and not is_labrls(group, option):
        names = _by_class(str(content.get("_target_")))
    if group == "env" and option in games():
        names = ["atari"]
    return [*dict.fromkeys(above for name in names for above in ancestors(group, name, by_class)), option]


def is_labrls(group: str, option: str) -> bool:
    """Return whether an option of agent or env is one of labrl's."""
    return file_of(config_folder(), group, option).is_file() or (group == "env" and option in games())


def options_by_class() -> dict[str, str]:
    """Return the option of labrl's group `agent` that adds each class, by the name of the class."""
    files = sorted((config_folder() / "agent").glob("*.yaml"))
    return {str(target): file.stem for file in files if (target := read(file).get("_target_"))}


def _by_class(target: str) -> list[str]:
    """Return labrl's agent whose class is `target` or the nearest base class of `target`, if any."""
    agents = options_by_class()
    if target in agents:
        return [agents[target]]
    try:
        bases = load_target(target).__mro__
    except (TargetError, AttributeError):  # validation will refuse the target; a function has no bases
        return []
    return [agents[name] for base in bases if (name := f"{base.__module__}.{base.__name__}") in agents][:1]


def _folders() -> list[Path]:
    """Return the folders in which Hydra looks for configurations: labrl's, then the user's."""
    sources = GlobalHydra.instance().config_loader().get_sources()
    return [Path(source.path) for source in sources if source.scheme() == SCHEME]


def _content(group: str, option: str) -> dict[str, Any]:
    files = (file_of(folder, group, option) for folder in _folders())
    content = next((read(file) for file in files if file.is_file()), None)
    return content if isinstance(content, dict) else {}


def _is_file(folder: Path, name: str) -> bool:
    return file_of(folder, "preset", name).is_file()


def _parts(agent: str, envs: Sequence[str]) -> list[str]:
    """Return the groups below `agent` whose options determine which presets apply.

    If the user has files that each contain a single preset, these may depend on any group.
    """
    agents = ancestors("agent", agent, by_class=False)
    entries = [entry for one in agents for entry in _content("agent", one).get("defaults") or ()]
    chosen = {
        key.split()[-1]: value for one in entries if isinstance(one, dict) for key, value in one.items()
    }
    groups = [key for key, value in chosen.items() if key.isidentifier() and value is not None]
    titles = [title.split() for one in _folders() for env in envs for title in sections(one, env)]
    conditions = {word for title in titles if title[0] in agents or "/" in title[0] for word in title}
    single = any((one / "preset").is_dir() for one in _folders() if one != config_folder())
    return [one for one in groups if single or any(word.startswith(f"agent/{one}=") for word in conditions)]
