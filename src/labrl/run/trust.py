"""Check the code that the configuration in someone else's run or experiment folder names, before importing
it.

Someone else's folder is treated as data. A `_target_` in it is accepted only if it names a class that is
defined in labrl, in a library on which labrl builds, or in a file of the --config-dir of the current command,
and if the class has the type that its key requires. Nothing else that the configuration names is imported,
and its overrides are not composed again, unless the user trusts the folder.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from labrl.component import TargetError, load_target
from labrl.config.keys import walk
from labrl.errors import InputError
from labrl.run.experiment import Experiment
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

REFERENCE = r"\$\{[\w.]+\}"
"""Pattern of a reference to another key. Anything else in ${...} may be a function of OmegaConf, whatever it
looks like."""

TARGET = r"\w+(\.\w+)+"
"""Pattern of the dotted path of a class."""


class Name(NamedTuple):
    """Something that a configuration names: a class, a module, or an environment that a module registers."""

    key: str
    value: str
    texts: tuple[str, ...] = ()
    """The texts that the named code receives. A name that the user has signed is accepted only with the same
    texts."""


def check_recorded(run: Run, config: Mapping[str, Any]) -> None:
    """Raise InputError if the configuration of a run names code that neither labrl nor its user has written.

    config: a configuration in the run folder, as plain data. Names that the user has signed are accepted.
    Only accepted code is imported.
    """
    if present_trust().everything:
        return
    facts = run.read_provenance()
    signed = set(_names(facts.get("config"))) if is_own(facts) else set()
    refused = [name for name in _names(config) if name not in signed and not _accepted(name)]
    if refused:
        lines = dict.fromkeys(f"  {one.key}: {one.value:.160}" for one in refused)
        why = (
            "It names code that is not a class of labrl of the type that its key requires. The code has not "
        )
        why += "been run:\n" + "\n".join(lines)
        raise _untrusted(run.path, why, refused[0].key)


def check_overrides(folder: Run | Experiment, facts: Mapping[str, Any]) -> None:
    """Raise InputError if someone else has written `facts`, a JSON file in `folder`, because the overrides in
    it, which can run any code, would be composed again."""
    if not is_own(facts):
        why = "Its overrides, which can run any code, would be composed again."
        raise _untrusted(folder.path, why, "overrides")


def check_experiment(folder: Experiment) -> str | None:
    """Raise InputError if someone else has written an experiment. Return the folder with the user's own
    groups for composing its trials; None if there is none."""
    info = folder.read_info()
    check_overrides(folder, info)
    return info.get("config_dir")


def code_names(config: Mapping[str, Any]) -> list[str]:
    """Return the classes, modules and environments that a configuration names, except those of labrl and of
    libraries on which it builds."""
    return [name.value for name in _names(config) if not name.value.startswith(LIBRARIES)]


def _untrusted(folder: Path, why: str, key: str) -> InputError:
    return InputError(
        f"{folder} was written by someone else or on another machine, or was changed since you wrote it. "
        f"{why}\nIf you trust all of it: {present_trust().typed}",
        code="untrusted",
        key=key,
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


def _accepted(name: Name) -> bool:
    """Return whether the code that `name` names may be imported."""
    place, _, last = name.key.rpartition(".")
    if "$" in name.value:
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
