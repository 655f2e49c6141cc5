"""The script or notebook that calls labrl, and what labrl's processes need of its process.

labrl's processes never import the user's `__main__`: a script without a main guard would train again in each
process, and a notebook or a script from standard input has no file to import. So only the process that
defines a class in `__main__` has this class.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from labrl.component import MAIN, being_imported, importing, used_of_main
from labrl.errors import InputError
from labrl.processes.secrets import remembered


def begin(caller: str) -> None:
    """Start a run: forget the names that earlier runs used. Raises InputError if `caller` runs by accident.

    It runs by accident if it is called because labrl imports a module that the configuration names, or
    because a child process of the user's program imports the script.
    """
    fix = f'Put the call below `if __name__ == "{MAIN}":`'
    if being_imported:
        module = f"the module {being_imported[-1]}, which the configuration names,"
        raise InputError.usage(caller, f"{module} makes this call when it is imported", fix)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # multiprocessing imports the script under this name in a child process.
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__mp_main__":
            why = "a child process imported this script, which makes this call at its top level"
            raise InputError.usage(caller, why, fix)
        frame = frame.f_back
    used_of_main.clear()


def refuse_main(env_id: str | None, why: str) -> None:
    """Raise InputError if this process cannot start others, or if the run uses definitions of the script or
    notebook, or an environment that the script has registered. Other processes do not have these.

    env_id: id of the environment; why: setting that makes other processes necessary, as in
    `meta.max_session=2`.
    """
    if multiprocessing.current_process().daemon:
        whose = (
            "it needs processes, which a daemonic process, such as a worker of multiprocessing.Pool, cannot"
        )
        fix = "Call labrl from a concurrent.futures.ProcessPoolExecutor instead"
        raise InputError.usage(why, f"{whose} start", fix)
    names = sorted(used_of_main)
    if names or _homes().get(env_id or "") == MAIN:
        place = f"_target_={MAIN}.{names[0]}" if names else f"env.id={env_id}"
        home = "it is defined in the script or notebook, which the processes needed for"
        fix = "Move the definition to a module and refer to it there, for example _target_=my_module.MyClass"
        raise InputError.about(place, f"{home} {why} cannot import", fix, code="target")


def surroundings() -> dict[str, Any]:
    """Return what another process of the run needs of this one, as plain data: the secrets, and the places
    and names of the modules that have registered environments. None of this is ever written to a file."""
    modules = set()
    for home in _homes().values():
        # A package may register environments whose modules it imports only when they are made.
        while home and home not in sys.modules:
            home = home.rpartition(".")[0]
        modules.add(home)
    return {"secrets": dict(remembered), "path": sys.path, "modules": sorted(modules - {"", MAIN})}


def take_surroundings(given: Mapping[str, Any]) -> None:
    """Apply the `surroundings` of another process to this process."""
    remembered.update(given["secrets"])
    sys.path += [folder for folder in given["path"] if folder not in sys.path]
    for module in given["modules"]:
        with contextlib.suppress(Exception, SystemExit), importing(module):
            importlib.import_module(module)


def _homes() -> dict[str, str]:
    """Return the module of each environment that is registered in Gymnasium but not part of it, by id."""
    gymnasium, homes = sys.modules.get("gymnasium"), {}
    for name, spec in {} if gymnasium is None else gymnasium.registry.items():
        module = inspect.getmodule(spec.entry_point)  # None if it is a name
        home = str(spec.entry_point).partition(":")[0] if module is None else module.__name__
        if not home.startswith("gymnasium."):
            homes[name] = home
    return homes
