"""Start labrl's commands in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1]


class Command(subprocess.Popen[str]):
    """A running command."""

    def __del__(self) -> None:
        """Close the output. Otherwise a later test, which may turn warnings into errors, would be blamed."""
        if self.stdout is not None:
            self.stdout.close()
        super().__del__()  # type: ignore[misc]  # the stubs lack it


def start_labrl(
    *overrides: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: bool = True,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Command:
    """Start `labrl <overrides>` in a session of its own, as a terminal does (see `start_module`)."""
    return start_module("labrl", *overrides, cwd=cwd, env=env, output=output, stdout=stdout, stderr=stderr)


def start_module(
    module: str,
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: bool = True,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Command:
    """Start `python -m <module> <arguments>` in a session of its own. It can import the modules of the tests.

    output: whether stdout and stderr can be read from `stdout`; otherwise they are dropped. stdout, stderr:
    descriptors of files that take the command's stdout or stderr instead; the other one can still be read.
    """
    env = dict(env or os.environ)
    tests = [path for path in sys.path if Path(path).is_relative_to(TESTS)]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), *tests]))
    place = subprocess.PIPE if output else subprocess.DEVNULL
    errors = subprocess.STDOUT if output and stdout is None else place
    return Command(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=env,
        stdout=place if stdout is None else stdout,
        stderr=errors if stderr is None else stderr,
        text=True,
        start_new_session=True,
    )


def run_ranks(*arguments: str, module: str = "labrl") -> list[tuple[int, str]]:
    """Run `python -m <module> <arguments>` as two ranks with the environment variables that torchrun sets.

    Returns the exit code and the output of each rank.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    told |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    known = [{**os.environ, **told, "RANK": n, "LOCAL_RANK": n} for n in "01"]
    ranks = [start_module(module, *arguments, env=env) for env in known]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    return [(rank.wait(), output) for rank, output in zip(ranks, outputs, strict=True)]
