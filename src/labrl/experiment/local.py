"""Trials in processes on this machine, each with its own cores and GPUs: `hydra/launcher=local`."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TextIO

from labrl.errors import InputError
from labrl.experiment.launcher import TrialLauncher
from labrl.experiment.machine import Machine, Need, Share
from labrl.experiment.scheduler import Outcome, Task
from labrl.processes import (
    SAVE,
    exit_code_of,
    how_it_ended,
    signals_leave,
    signals_wait_in_children,
    stop_with_the_parent,
    take_signals,
)
from labrl.script import Carried
from labrl.secrets import redact

ASKED_TO_END = (exit_code_of(signal.SIGINT), exit_code_of(signal.SIGTERM), -signal.SIGTERM)
"""Exit codes of a process that a signal has asked to end."""


@dataclass(eq=False)
class _Worker:
    """A process that runs trials one after another."""

    process: BaseProcess
    connection: Connection
    environment: Mapping[str, str]
    share: Share | None = None
    """The cores and GPUs of the trial that it runs."""
    told_to_stop: bool = False


class WorkersLauncher(TrialLauncher):
    """`hydra/launcher=local`: as many trials at the same time as the machine can run, each in its own
    process.

    A process runs one trial after another, so that PyTorch is loaded once. If it dies, only its trial is
    affected; with the pool of joblib, which Hydra's launcher of that name uses, all trials would end.
    """

    def __init__(self, n_jobs: int = -1) -> None:
        """n_jobs: largest number of trials at once, >= 1; -1 for as many as the machine can run."""
        super().__init__()
        self._workers: list[_Worker] = []
        self._n_jobs = n_jobs
        self.limit = None if n_jobs == -1 else n_jobs

    def check(self) -> None:
        """Raise InputError if the number of trials at once is wrong."""
        whole = isinstance(self._n_jobs, int) and not isinstance(self._n_jobs, bool)
        if not whole or self._n_jobs == 0 or self._n_jobs < -1:
            raise InputError(
                "hydra.launcher.n_jobs must be at least 1, or -1 for as many as the machine can run, "
                f"got {self._n_jobs}",
                code="range" if whole else "type",
                key="hydra.launcher.n_jobs",
            )

    def __enter__(self) -> WorkersLauncher:
        # Imported late, because Hydra imports this module at every start.
        import cloudpickle

        self._payload = cloudpickle.dumps((Carried(), self.run))
        self._machine = Machine(self.cores)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for worker in self._workers:
            worker.connection.close()
            worker.process.join()
        self._workers.clear()
        super().__exit__()

    def has_room(self, need: Need) -> bool:
        """Return whether cores and GPUs for another trial are free."""
        if not super().has_room(need):
            return False
        share = self._machine.take(need)
        if share is not None:
            self._machine.give_back(share)
        return share is not None

    def start(self, task: Task) -> None:
        """Start a trial in a process that uses its cores and GPUs."""
        share = self._machine.take(task.need)
        assert share is not None, "has_room must return True first"
        worker = self._idle(share.environment)
        worker.share, self._jobs[worker] = share, task
        with contextlib.suppress(OSError):  # It has died, which `ended` will report.
            worker.connection.send(task)

    def _outcomes(self, seconds: float) -> Sequence[tuple[_Worker, Outcome]]:
        """Return the workers whose trial has ended, as soon as there is one or after `seconds`."""
        wait([end for worker in self._jobs for end in (worker.connection, worker.process.sentinel)], seconds)
        ended = [(one, outcome) for one in self._jobs if (outcome := _outcome(one)) is not None]
        for worker, _ in ended:
            assert worker.share is not None
            self._machine.give_back(worker.share)
            worker.share = None
        self._workers = [one for one in self._workers if one.share is not None or one.process.is_alive()]
        return ended

    def stop(self) -> None:
        """Ask each trial once to save and end. A second signal would interrupt saving."""
        for worker in self._workers:
            if worker.share is None:
                worker.connection.close()
            elif not worker.told_to_stop and worker.process.is_alive():
                worker.told_to_stop = True
                worker.process.terminate()

    def save(self) -> None:
        """Ask each trial to save and go on."""
        for worker in self._workers:
            if worker.share is not None and worker.process.pid is not None and worker.process.is_alive():
                os.kill(worker.process.pid, SAVE)

    def _idle(self, environment: Mapping[str, str]) -> _Worker:
        """Return an idle process with this environment, or a new one."""
        idle = [
            worker
            for worker in self._workers
            if worker.share is None and worker.process.is_alive() and not worker.connection.closed
        ]
        for worker in idle:
            if worker.environment == environment:
                return worker
        for worker in idle[:1]:  # PyTorch has initialized its GPUs, so it cannot use others.
            worker.connection.close()
        # The threads of PyTorch would be unusable in a forked child.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        name = f"worker_{len(self._workers)}"
        process = context.Process(target=_serve, args=(there, self._payload, environment), name=name)
        with signals_wait_in_children():
            process.start()
        there.close()  # so that the end of the process is noticed
        self._workers.append(_Worker(process, here, environment))
        return self._workers[-1]


def _outcome(worker: _Worker) -> Outcome | None:
    """Return the outcome of the trial in a process; None while it runs."""
    alive = worker.process.is_alive()
    try:
        if worker.connection.poll():
            outcome: Outcome = worker.connection.recv()
            return outcome
    except (EOFError, OSError, pickle.UnpicklingError):
        worker.process.join()
        alive = False
    if alive:
        return None
    code = worker.process.exitcode or 0
    return Outcome.lost(f"its process {how_it_ended(code)}", interrupted=code in ASKED_TO_END)


def _serve(connection: Connection, payload: bytes, environment: Mapping[str, str]) -> None:
    """Run trials until there are no more or the process that sends them has ended."""
    os.environ.update(environment)
    take_signals()
    stop_with_the_parent()
    run: Callable[[Task], Outcome] | None = None
    streams = [LabeledLines(sys.stdout), LabeledLines(sys.stderr)]
    sys.stdout, sys.stderr = streams
    try:
        with signals_leave():  # while no trial handles them
            while True:
                task: Task = connection.recv()
                for stream in streams:
                    stream.label = "" if task.log else f"[{task.number}] "
                try:
                    run = run or pickle.loads(payload)[1]
                    outcome = run(task)
                except Exception as error:
                    outcome = Outcome.failed(f"{type(error).__name__}: {error}")
                sys.stdout.flush()
                connection.send(outcome)
    except (EOFError, OSError):
        return
    except KeyboardInterrupt:
        sys.exit(exit_code_of(signal.SIGTERM))


class LabeledLines(io.TextIOBase):
    """A stream that writes whole lines, each with the label of its trial.

    On a terminal, long lines are wrapped between words. The stream itself is not a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.label = ""
        self._stream = stream
        self._begun = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write complete lines, and keep the rest. Return the number of characters."""
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._pass_on("".join(f"{self._labeled(line)}\n" if line.strip() else "\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Flush the stream. An incomplete line waits for its end, or for `close`."""
        self._pass_on("")

    def close(self) -> None:
        """Write an incomplete line."""
        if self._begun:
            self.write("\n")
        super().close()

    def _labeled(self, line: str) -> str:
        whole = redact(f"{self.label}{line}")
        width = shutil.get_terminal_size().columns
        if len(whole) <= width or not self._stream.isatty():
            return whole
        indent = " " * len(self.label)
        return textwrap.fill(
            whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )

    def _pass_on(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # A closed output must not end training.
