"""The script or notebook that calls labrl, and the parts of it that labrl's processes need.

labrl's processes never import the user's `__main__`: a script without a main guard would train again in each
process, and a notebook or a script from standard input has no file to import.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, FunctionType
from typing import Any

from labrl.component import MAIN, being_imported, importing, used_of_main
from labrl.errors import InputError
from labrl.processes.secrets import remembered

Dumps = Callable[[Any], bytes]


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


class Carried:
    """The parts of the script that a new process needs.

    Pass it to the process before other arguments that refer to the script. Unpickling it in the new process
    sets the environment variables (a process forked from a server has the variables with which the server
    started), sets the secrets to mask, defines the classes and functions of `__main__` that the configuration
    names, which are pickled by value, and registers in Gymnasium the environments that the original process
    has registered, by importing the modules that registered them or, for those that the script itself
    registered, directly.
    """

    def __init__(self) -> None:
        """Collect the parts of the script.

        Raises InputError if this process cannot start other processes, or if a part cannot be pickled.
        """
        if multiprocessing.current_process().daemon:
            raise InputError(
                "this run needs further processes, but a daemonic process, such as a worker of "
                "multiprocessing.Pool, cannot start them. Call labrl from a "
                "concurrent.futures.ProcessPoolExecutor instead, or set meta.max_session=1 and "
                "env.vectorization=sync.",
                code="usage",
            )
        # Imported late, so that wrong input is reported without waiting for it.
        from cloudpickle import dumps

        self._definitions = _definitions(dumps)
        self._registered = _registered(dumps)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _take, (dict(os.environ), dict(remembered), self._definitions, self._registered)


def _definitions(dumps: Dumps) -> bytes:
    main = vars(sys.modules[MAIN])
    found = {name: main[name] for name in sorted(used_of_main) if name in main}
    try:
        return dumps(found)
    except Exception as error:  # pickling a user's objects can raise anything
        names = ", ".join(f"{MAIN}.{name}" for name in found)
        why = f"{names}: this run needs further processes, and these definitions of the script or notebook "
        why += f"cannot be sent to them: {error}"
        fix = "Put the definition into a module, and set _target_=my_module.MyClass"
        raise InputError.about("_target_", why, fix, code="target") from error


def refuse_main(env_id: str | None, why: str) -> None:
    """Raise InputError if the run uses definitions of the script or notebook, or an environment that the
    script has registered. The processes of sessions do not have these.

    env_id: id of the environment; why: setting that makes such processes necessary, as in
    `meta.max_session=2`.
    """
    names = sorted(used_of_main)
    if names or _homes().get(env_id or "") == MAIN:
        place = f"_target_={MAIN}.{names[0]}" if names else f"env.id={env_id}"
        home = "it is defined in the script or notebook, which the processes needed for"
        fix = "Move the definition to a module and refer to it there, for example _target_=my_module.MyClass"
        raise InputError.about(place, f"{home} {why} cannot import", fix, code="target")


def registering_modules() -> list[str]:
    """Return the modules that have registered environments in Gymnasium, which a new process must import."""
    found = set()
    for home in _homes().values():
        # A package may register environments whose modules it imports only when they are made.
        while home and home not in sys.modules:
            home = home.rpartition(".")[0]
        found.add(home)
    return sorted(found - {"", MAIN})


def surroundings() -> dict[str, Any]:
    """Return what the process of a session needs besides its run folder, as plain data: the secrets, and the
    places and names of modules. None of this is ever written to a file."""
    return {"secrets": dict(remembered), "path": sys.path, "modules": registering_modules()}


def take_surroundings(given: Mapping[str, Any]) -> None:
    """Apply the `surroundings` of another process to this process."""
    remembered.update(given["secrets"])
    sys.path += [folder for folder in given["path"] if folder not in sys.path]
    take_registered(given["modules"])


def take_registered(modules: Iterable[str]) -> None:
    """Import the modules that have registered environments in another process."""
    for module in modules:
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


def _registered(dumps: Dumps) -> bytes:
    """Return, pickled, the environments registered in Gymnasium but not part of it, and their modules."""
    specs = {}
    for name in _homes():
        with contextlib.suppress(Exception):  # the new process will not know this environment
            specs[name] = dumps(sys.modules["gymnasium"].registry[name])
    return pickle.dumps((registering_modules(), specs))


def _take(
    environment: Mapping[str, str], secrets: Mapping[str, Any], definitions: bytes, registered: bytes
) -> None:
    remembered.update(secrets)
    if environment != dict(os.environ):
        os.environ.clear()
        os.environ.update(environment)
    main = vars(sys.modules[MAIN])
    found: Mapping[str, Any] = pickle.loads(definitions)
    used_of_main.update(found)
    for name, value in found.items():
        main[name] = value
        for function in (value, *vars(value).values()) if isinstance(value, type) else (value,):
            # Globals that it refers to get their own names, so that instances can be sent back.
            for other, used in function.__globals__.items() if isinstance(function, FunctionType) else ():
                if not other.startswith("__"):
                    main.setdefault(other, used)
    modules: list[str]
    specs: Mapping[str, bytes]
    modules, specs = pickle.loads(registered)
    if specs:
        import gymnasium

        take_registered(modules)  # first, because Gymnasium warns of environments that are registered again
        for name, spec in specs.items():
            if name not in gymnasium.registry:
                gymnasium.registry[name] = pickle.loads(spec)
