"""Start commands in processes of their own without importing PyTorch again each time.

Each test process has a nursery: a process that has only imported the modules for training, composed the usual
configurations (see `compositions`) and examined the machine (see `surroundings`). It forks one process for
each command. This saves the two CPU seconds that a fresh Python needs before the first frame, and half a
second for destroying its objects at the end. Tests of the start itself, of imports, signals or the exit start
a fresh Python instead (`[sys.executable, "-m", "labrl"]`). Processes that a command starts with
multiprocessing are forked from a copy of the nursery (see `forked`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

from forked import keep_server

TESTS = Path(__file__).parents[1]

MODULES = (
    "labrl.cli",
    "labrl.commands",
    "labrl.trial.find",
    "labrl.session.main",
    "labrl.experiment.grid",
    "labrl.experiment.search.begin",
    "labrl.session.session",
    "labrl.agents.dqn",
    "labrl.agents.ppo",
    "labrl.agents.random",
    "labrl.envs.classic",
    "labrl.envs.gym",
    "labrl.session.callbacks.checkpoint",
    "labrl.session.callbacks.profile",
    "labrl.session.callbacks.record",
    "labrl.session.callbacks.tensorboard",
    "gymnasium.envs.classic_control.cartpole",
    "hydra._internal.logging_config",
    "numpy.ma",
    "optuna.storages._rdb.storage",
    "torch.utils.serialization",
    "pydantic.dataclasses",
    "rich._emoji_codes",
)
COMPOSED = (["agent=random"], ["agent=ppo"], ["agent=dqn"])
SEARCHED = ["hydra/sweeper=optuna", "search=ppo"]
PARSED = (
    *("agent.lr=1e-3", "env.max_frame=512", "meta.report=false", "~agent.lr", "+resume=latest", "seed=null"),
    *("hydra.run.dir='/tmp/a folder/run_1'", "hydra.sweep.dir=/tmp/pytest-0/e", "agent.hidden=[64,64]"),
    *("+env.make={_target_: module.Class, size: 3}", "agent.lr=linear:1e-3:0", "agent=ppo,dqn"),
    *("agent.lr=tag(log, interval(1e-4, 1e-2))", "agent.epochs=range(1, 5)", "agent.gamma=choice(0.9, 0.99)"),
)
"""Overrides of every form, which warm up Hydra's parser: it builds its tables while it parses."""
WIDTH = 16
"""Size in bytes of a number that is sent through a pipe."""


class Command:
    """A running command: the part of subprocess.Popen that tests use."""

    def __init__(self, pid: int, status: int, output: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = output
        self.returncode: int | None = None
        self._status = status

    def __del__(self) -> None:
        """Close the output. Otherwise a later test, which may turn warnings into errors, would be blamed."""
        if self.stdout is not None:
            self.stdout.close()

    def poll(self) -> int | None:
        """Return the exit code, the negative number of the signal that killed it, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait and return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("python", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return its output once it has exited. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        assert self.stdout is not None
        until = None if timeout is None else time.monotonic() + timeout
        parts = []
        while True:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not select.select([self.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired("python", timeout or 0)
            if not (part := os.read(self.stdout.fileno(), 1 << 16)):
                break
            parts.append(part)
        self.wait(timeout)
        return b"".join(parts).decode(), None

    def send_signal(self, number: int) -> None:
        """Send a signal to this process alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, WIDTH))
            os.close(self._status)
        return self.returncode


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
    descriptors of files that take the command's stdout or stderr instead.
    """
    read, write = os.pipe()
    status, tell = os.pipe()
    target = write if output else os.open(os.devnull, os.O_WRONLY)
    env = dict(env or os.environ)
    tests = [path for path in sys.path if Path(path).is_relative_to(TESTS)]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), *tests]))
    request = {"module": module, "arguments": arguments, "cwd": os.fspath(cwd or Path.cwd()), "env": env}
    door = _nursery()
    data = json.dumps(request).encode()
    streams = [target if own is None else own for own in (stdout, stderr)]
    socket.send_fds(door, [len(data).to_bytes(8, "big")], [*streams, tell])
    door.sendall(data)
    for each in {write, target, tell}:
        os.close(each)
    if not output:
        os.close(read)
    pid = int(os.read(status, WIDTH))
    return Command(pid, status, os.fdopen(read, "r") if output else None)


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


@functools.cache
def _nursery() -> socket.socket:
    """Start the nursery, and return the socket to it."""
    door, theirs = socket.socketpair()
    program = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(program, pass_fds=[theirs.fileno()], start_new_session=True, cwd="/")
    theirs.close()
    for end in (process.wait, door.close):  # atexit calls these in reverse order
        atexit.register(end)
    return door


def _serve(door: socket.socket) -> None:
    """Import the modules that commands need, then fork a process for each request."""
    gc.disable()  # nothing of what is imported can be freed
    # A test may have started this process while it blocked signals for its children.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    from labrl.processes.startup import let_threads_sleep

    let_threads_sleep()
    for module in MODULES:
        importlib.import_module(module)
    from compositions import remember
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from surroundings import look_around, remember_surroundings

    from labrl.config.compose import compose, resolve
    from labrl.trial.create import check

    remember()
    remember_surroundings()
    look_around()
    OverridesParser.create().parse_overrides(list(PARSED))
    for overrides in COMPOSED:
        check(resolve(compose(overrides, with_hydra=True)))
    resolve(compose(SEARCHED, with_hydra=True))
    gc.collect()
    gc.freeze()
    gc.enable()
    children = 0
    while True:
        size, files, *_ = socket.recv_fds(door, 8, 3)
        while children and os.waitpid(-1, os.WNOHANG)[0]:  # so that their CPU seconds count as this process's
            children -= 1
        if not size:
            return
        data = door.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        children += 1
        if os.fork() == 0:
            door.close()
            _start(json.loads(data), *files)
            return
        for each in files:
            os.close(each)


def _start(request: dict, output: int, errors: int, status: int) -> None:
    """Fork the command of `request` and wait; write its process id and then its exit code to `status`."""
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(request, output, errors)
    os.close(output)
    os.close(errors)
    os.write(status, b"%16d" % pid)
    _, ended = os.waitpid(pid, 0)
    os.write(status, b"%16d" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _become(request: dict, output: int, errors: int) -> NoReturn:
    """Run the module of `request` in this process, as `python -m` does."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)  # this process may have been started by nohup
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, file in enumerate((output, errors), 1):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = request["cwd"]
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    keep_server()
    module, arguments = request["module"], request["arguments"]
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    _leave(code)


def _leave(code: object) -> NoReturn:
    """Exit as Python does, but without destroying all objects, which takes half a CPU second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, int | None):
        with contextlib.suppress(OSError, ValueError):  # let Python report output that cannot be written
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit((code or 0) & 0xFF)
    sys.exit(code)  # type: ignore[arg-type]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
