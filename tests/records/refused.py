"""Exit code, and code and key of each mistake, of wrong command lines.

Each line runs in an empty folder and in a process of its own, which is killed if it begins a training. To add
a line, write it into the record with any value and make the record anew.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NoReturn

import labrl.cli
from labrl.config.compose import compose
from labrl.errors import LabrlError

HERE = "command lines"

RUN = "agent=random env.max_frame=64 seed=1 meta.progress=false meta.tensorboard=false meta.report=false"
"""The run in runs/one, which lines that name it find."""

MODULES = ("labrl.session.main", "labrl.experiment.grid", "labrl.experiment.search.begin", "labrl.envs.gym")
"""Modules that are imported once, before the commands are forked."""

LIMIT = 60
"""Seconds after which a command is killed."""


def take(before: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="labrl-records-") as folder:
        made = Path(folder, "made")
        answer([*shlex.split(RUN), "meta.videos=false", "hydra.run.dir=runs/one"], made, trains=True)
        assert (made / "runs" / "one" / "run.json").exists(), "the run that lines need was not made"
        for module in MODULES:  # before the forks, each of which would otherwise take seconds
            importlib.import_module(module)
        compose([])
        found = {}
        for number, line in enumerate(before):
            place = Path(folder, "place")
            if "runs/one" in line or "latest" in line:
                shutil.copytree(made, place)
            found[line] = answer(shlex.split(line), place)
            shutil.rmtree(place)
            if number % 100 == 99:
                print(f"{number + 1} command lines", file=sys.stderr, flush=True)
        return found


def answer(arguments: list[str], place: Path, trains: bool = False) -> list[Any]:
    """Run `labrl <arguments>` in a folder. Return its exit code, or how else it ended, and its mistakes."""
    place.mkdir(exist_ok=True)
    before = sessions(place)
    told = place.with_name("told.json")
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _run(arguments, place, told)
    until, how = time.monotonic() + LIMIT, ""
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if not trains and sessions(place) > before:
            how = "begins a training"
        elif time.monotonic() > until:
            how = f"takes more than {LIMIT} s"
        if how:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return [how, []]
        time.sleep(0.005)
    return json.loads(told.read_text()) if told.exists() else ["died", []]


def sessions(place: Path) -> int:
    """Return the number of sessions below a folder, whose files may come and go."""
    return sum(name.startswith("session_") for _, names, _ in os.walk(place) for name in names)


def _run(arguments: list[str], place: Path, told: Path) -> NoReturn:
    """Run `labrl` in this process, and write to the file `told` what `answer` returns."""
    os.setsid()
    forkserver._forkserver._forkserver_pid = None  # that of the tests is no child of this process
    os.chdir(place)
    printed = told.with_name("printed")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    made = remember_errors()
    try:
        code: int | str = labrl.cli.main(arguments)
    except BaseException as error:
        code = f"raises {type(error).__name__}"
    sys.stderr.flush()
    lines = printed.read_text()
    if "Traceback" in lines:
        code = f"{code}, with a traceback"
    folder = str(Path.cwd())
    mistakes = [[one.code, one.key and one.key.replace(folder, ".")] for one in told_of(lines, made)]
    told.write_text(json.dumps([code, mistakes]))
    os._exit(0)


def remember_errors() -> list[LabrlError]:
    """Return the list of all errors of labrl that this process makes from now on."""
    made: list[LabrlError] = []
    make = LabrlError.__init__

    def remembered(error: LabrlError, *args: Any, **options: Any) -> None:
        make(error, *args, **options)
        made.append(error)

    LabrlError.__init__ = remembered  # type: ignore[method-assign]
    return made


def told_of(printed: str, made: list[LabrlError]) -> list[LabrlError]:
    """Return the errors whose messages were printed, in this order; of equal messages, the one made last."""
    left, found = [line.removeprefix("labrl: ") for line in printed.splitlines()], []
    single = {one.message: one for one in made if one.mistakes == (one,)}
    by_length = sorted(single.items(), key=lambda item: -len(item[0].splitlines()))
    while left:
        for message, error in by_length:
            lines = message.splitlines()
            if lines and left[: len(lines)] == lines:
                found.append(error)
                del left[: len(lines)]
                break
        else:
            del left[0]
    return found


def differences(old: Any, new: Any) -> list[str]:
    return [f"labrl {line}\n    was {old[line]}, is {new[line]}" for line in old if old[line] != new[line]]
