"""Check the code that the configuration in someone else's run or experiment folder names, before importing
it.

Someone else's folder is treated as data. A `_target_` in it is accepted only if it names a class that is
defined in labrl, in a library on which labrl builds, or in a file of the --config-dir of the current command,
and if the class has the type that its key requires. Nothing else that the configuration names is imported,
unless the user trusts the folder.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from labrl.component import TargetError, load_target
from labrl.config import config_folder
from labrl.config.keys import values_of, walk
from labrl.errors import InputError
from labrl.run.experiment import STUDY_FILE, Experiment
from labrl.run.run import Run
from labrl.run.signature import is_own, present_trust

LIBRARIES = ("labrl.", "gymnasium.", "torch.nn.", "torch.optim.")
"""Prefixes of the modules whose classes every configuration may name."""

_PARTS = "labrl.agents.parts"
KINDS: Mapping[str, tuple[str, ...]] = {
    "agent": ("labrl.agents.agent.Agent",),
    "env": ("labrl.envs.protocol.Backend",),
    "env.make": ("gymnasium.Env",),
    "env.wrappers*": ("gymnasium.Wrapper",),
    "transforms.*": ("labrl.agents.transforms.Transform",),
    "callbacks.*": ("labrl.session.callbacks.callback.Callback",),
    "agent.network.*": ("torch.nn.Module",),
    "agent.*exploration": (f"{_PARTS}.exploration.Exploration",),
    "agent.*memory": ("labrl.memory.replay.Replay",),
    "agent.*noise": (f"{_PARTS}.noise.ActionNoise",),
    "agent.*offline": ("labrl.memory.offline.OfflineData",),
    "agent.*optimizer": ("labrl.learning.optimizers", "torch.optim.Optimizer"),
    "agent.*self_imitation": (f"{_PARTS}.self_imitation.SelfImitation",),
    "agent.*target": (f"{_PARTS}.targets.TargetNetwork",),
    "agent.*value": (f"{_PARTS}.action_values",),
}
"""For each pattern of keys, the base classes that a matching key requires, or the module of its classes if
they have no common base. The first matching pattern applies."""

USERS = ("callbacks.",)
"""Prefixes of keys that accept only classes of users. labrl makes its own callbacks itself, and one of them
connects to other processes."""

HYDRAS = ("hydra/launcher", "hydra/sweeper", "hydra.sweep.dir")
"""Keys of the overrides for Hydra that an experiment of someone else may have. Other overrides can start
programs."""

REFERENCE = r"\$\{[\w.]+\}"
"""Pattern of a reference to another key. Anything else in ${...} may be a function of OmegaConf, whatever it
looks like."""

TARGET = r"\w+(\.\w+)+"
"""Pattern of the dotted path of a class."""


class Name(NamedTuple):
    """Something that a configuration names: a class, a module, an environment that a module registers, or a
    folder."""

    key: str
    value: str
    texts: tuple[str, ...] = ()
    """The texts that the named code receives. A name that the user has signed is accepted only with the same
    texts."""


def check_recorded(
    run: Run, config: Mapping[str, Any], overrides: Sequence[str] = (), composes: bool = False
) -> None:
    """Raise InputError if the configuration of a run names code that neither labrl nor its user has written.

    config: a configuration in the run folder, as plain data; overrides: the recorded overrides of the run;
    composes: whether the overrides will be composed again, which requires the recorded folder of groups.
    Names that the user has signed are accepted. Only accepted code is imported.
    """
    if present_trust().everything:
        return
    facts = run.read_provenance()
    if is_own(facts):
        signed = set(_names(facts.get("config")))
        _refuse(run.path, (name for name in _names(config) if name not in signed))
        return
    _refuse(run.path, [*_names(config), *_in_overrides(overrides), *(_config_dir(facts) if composes else ())])
    if composes:
        present_trust().foreign = run.path


def code_names(config: Mapping[str, Any]) -> list[str]:
    """Return the classes, modules and environments that a configuration names, except those of labrl and of
    libraries on which it builds."""
    return [name.value for name in _names(config) if not name.value.startswith(LIBRARIES)]


def check_composed(config: Mapping[str, Any]) -> None:
    """Raise InputError if a configuration composed from overrides of someone else names code that is not
    accepted.

    config: the composed configuration as plain data. Names that occur in the overrides of the current command
    are accepted.
    """
    trust = present_trust()
    if trust.foreign is not None and not trust.everything:
        _refuse(trust.foreign, (name for name in _names(config) if name.value not in trust.words))


def check_experiment(folder: Experiment) -> str | None:
    """Raise InputError if the overrides of an experiment or of its trials name code that is not accepted.
    Sign the experiment otherwise.

    Returns the folder with the user's own groups for composing the experiment; None if there is none.
    """
    info = folder.read_info()
    if is_own(info):
        return info.get("config_dir")
    trials = folder.trials()
    lists = [info.get("overrides"), info.get("hydra_overrides"), *(one.overrides for one in trials)]
    found = [*_in_overrides(str(override) for overrides in lists for override in overrides or [])]
    inside = folder.path.resolve()
    outside = [one for one in trials if not folder.trial_path(one).resolve().is_relative_to(inside)]
    found += [Name("folder", one.folder) for one in outside] + _config_dir(info)
    if info.get("kind") == "search":  # Optuna unpickles the state of some samplers
        found.append(Name("search", f"{STUDY_FILE}, the database of Optuna"))
    _refuse(folder.path, found)
    present_trust().foreign = folder.path
    folder.sign()
    return present_trust().config_dir


def _refuse(folder: Path, found: Iterable[Name]) -> None:
    """Raise InputError, which lists the names in `found` that are not accepted, if there are any."""
    refused = [name for name in found if not _accepted(name)]
    if not refused:
        return
    lines = dict.fromkeys(f"  {one.key}: {one.value:.160}" for one in refused)
    raise InputError(
        f"{folder} was written by someone else or on another machine, or was changed since you wrote it. It "
        "names code that is not a class of labrl of the type that its key requires. The code has not been "
        "run:\n" + "\n".join(lines) + f"\nIf you trust all of it: {present_trust().typed}",
        code="untrusted",
        key=refused[0].key,
    )


def _names(node: Any, key: str = "") -> Iterator[Name]:
    """Yield the classes, modules and environments that a configuration, or its part at `key`, names."""
    parts = dict(walk(node, key))
    for full, value in parts.items():
        last = full.rpartition(".")[2]
        if last == "_target_" or (last in ("import_module", "id") and value is not None):
            passed = (full.removesuffix("_target_"), "env.make.", "env.kwargs.", "env.id")
            texts = (one for place, one in parts.items() if place.startswith(passed) and isinstance(one, str))
            yield Name(full, str(value), tuple(texts))
        elif isinstance(value, str) and "${" in re.sub(REFERENCE, "", value):  # may call a function
            yield Name(full, value)


def _in_overrides(overrides: Iterable[str]) -> Iterator[Name]:
    """Yield everything that overrides name, and the overrides that cannot be parsed."""
    # Imported late: reading a run of labrl's user must not wait for the parser.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for override in dict.fromkeys(overrides):
        try:
            (one,) = parser.parse_overrides([override])
            values = [parser.parse_override(text).value() for text in values_of(one) or [override]]
        except HydraException:  # such as a flag, which Hydra would obey
            yield Name("overrides", override)
            continue
        is_group = (config_folder() / one.key_or_group.partition("@")[0]).is_dir()
        if is_group and re.search(r"^/|:/|_/|\\|\.\.", override.partition("=")[2]):  # a path, not an option
            yield Name(one.key_or_group, override)
        key = re.sub(r"\[(\w+)\]", r".\1", one.key_or_group).replace("/", ".")
        if "hydra" in (key.partition(".")[0], re.split(r"[.@]", one.package or "")[0]):
            if one.key_or_group not in HYDRAS or one.package:
                yield Name(key, override)
            continue
        for value in values:
            yield from _names(value, key)


def _config_dir(facts: Mapping[str, Any]) -> list[Name]:
    """Return the recorded folder of groups as a list of names; empty if the current command sets
    --config-dir."""
    recorded = facts.get("config_dir")
    return [Name("config_dir", str(recorded))] if recorded and present_trust().config_dir is None else []


def _accepted(name: Name) -> bool:
    """Return whether the code that `name` names may be imported."""
    place, _, last = name.key.rpartition(".")
    if place.startswith("hydra") or "$" in name.value:
        return False
    if last == "_target_":
        return _is_part(name.value, re.sub(r"\[\d+\]", "", place))
    if last == "id" and ":" not in name.value:
        return all(one.startswith(LIBRARIES) or _is_users(one) for one in entry_points(name.value))
    return last in ("id", "import_module") and _is_users(name.value.partition(":")[0])


def _is_part(target: str, place: str) -> bool:
    """Return whether a target is a class of labrl, of a trusted library or of the user, and has the type that
    the key `place` requires."""
    if not (target.startswith(LIBRARIES) or _is_users(target)) or not re.fullmatch(TARGET, target):
        return False
    try:
        found = load_target(target)
    except TargetError:
        return True  # the class does not exist; a later error names similar classes
    if not isinstance(found, type):
        return False
    home, folder = sys.modules.get(found.__module__), present_trust().config_dir
    users = folder is not None and home is not None and _lies_in(vars(home).get("__file__"), folder)
    if not users and (not f"{found.__module__}.".startswith(LIBRARIES) or place.startswith(USERS)):
        return False
    kinds = next((kinds for one, kinds in KINDS.items() if fnmatch(place, one)), None)
    return any(_is_kind(found, kind, users) for kind in kinds) if kinds else users


def _is_kind(found: type, kind: str, users: bool) -> bool:
    if kind.rpartition(".")[2].islower():
        return users or found.__module__ == kind
    return issubclass(found, load_target(kind))


def _is_users(path: str) -> bool:
    """Return whether a module, or the module of a class, is in the --config-dir of the current command."""
    folder = present_trust().config_dir
    if folder is None:
        return False
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that it shadows no package
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(re.split(r"[.:]", path)[0])
        if spec is not None:
            places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
            return bool(places) and all(_lies_in(place, folder) for place in places)
    return False


def _lies_in(path: str | None, folder: str) -> bool:
    return path is not None and Path(path).resolve().is_relative_to(Path(folder).resolve())


def entry_points(env_id: str) -> list[str]:
    """Return the entry point that makes the environments of an id, as a list; empty if Gymnasium does not
    know the id."""
    import gymnasium

    spec = gymnasium.registry.get(env_id)
    made = None if spec is None else spec.entry_point
    return [] if made is None else [made if isinstance(made, str) else f"{made.__module__}."]
