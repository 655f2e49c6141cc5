"""The worker process of a search, which runs a trial or continues it."""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labrl.config.compose import compose, resolve, to_plain
from labrl.config.presets import choices_of
from labrl.errors import INTERRUPTED, TERMINATED, LabrlError
from labrl.session.callbacks.search import CHANNEL
from labrl.storage.experiment_folder import TRIAL_LOG
from labrl.storage.provenance import Command, Typed
from labrl.storage.run_folder import MARKER, RunFolder
from labrl.trial.again import Again
from labrl.trial.overrides import quoted
from labrl.trial.past import Past
from labrl.trial.request import Request
from labrl.trial.result import TrialResult
from labrl.trial.trial import run_trial

PATIENCE = 60.0
"""Seconds for sessions of a killed search to save and end, before their trial is resumed."""

OutcomeStatus = Literal["finished", "pruned", "failed", "interrupted"]


@dataclass(frozen=True)
class Task:
    """One trial for a worker."""

    words: list[str]
    folder: Path
    config_dir: str | None
    resume: bool
    """Whether it may have been begun in its folder."""
    channel: str | None
    """Where its sessions report; None: nowhere."""
    typed: Typed
    """The command of the search."""


@dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    status: OutcomeStatus
    error: str | None = None


def perform(task: Task) -> Outcome:
    """Run the trial, or go on with it; whatever goes wrong is in the outcome."""
    os.environ.pop(CHANNEL, None)
    if task.channel:
        os.environ[CHANNEL] = task.channel
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        with _printing_to(task.folder / TRIAL_LOG):
            try:
                result = _resumed(task) if task.resume else None
                return _outcome(task.folder, result or _fresh(task))
            except LabrlError as error:
                print(error)
                return Outcome("failed", str(error))
            except Exception as error:
                traceback.print_exc()
                return Outcome("failed", f"{type(error).__name__}: {error}")
    except OSError as error:
        return Outcome("failed", f"{task.folder} cannot be written ({error.strerror or error})")


def _fresh(task: Task) -> TrialResult:
    cfg = compose(
        [*task.words, f"hydra.run.dir={quoted(str(task.folder))}"], task.config_dir, with_hydra=True
    )
    plain = to_plain(cfg)
    command = Command.of(task.words, choices_of(cfg.hydra), task.config_dir, task.typed)
    return run_trial(resolve(plain), plain, task.folder, command)


def _resumed(task: Task) -> TrialResult | None:
    """The trial gone on with where it has ended too; None where it has not really begun."""
    if not (task.folder / MARKER).exists():
        return None
    run = RunFolder.open(task.folder)
    _wait_for(run)
    if _has_ended(run):
        return TrialResult(folder=run.path, seed=0)
    if run.unrecorded:
        shutil.rmtree(task.folder)
        task.folder.mkdir()
        return None
    again = Again(Request("resume", str(task.folder), force=False, edits=[]), Past.of(run))
    cfg = compose(again.words, task.config_dir, with_hydra=True)
    plain = to_plain(cfg)
    command = Command.of(task.words, choices_of(cfg.hydra), task.config_dir, task.typed)
    return again.run(cfg, resolve(plain), plain, task.folder, command)


def _wait_for(run: RunFolder) -> None:
    """Wait until the last process of a killed search has saved the trial.

    Raises BusyFolderError if it has not after PATIENCE.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with run.lock():
                return
        except LabrlError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def _has_ended(run: RunFolder) -> bool:
    """Whether nothing is left to be done, whatever the marker of a killed trial says."""
    if run.status in ("finished", "pruned"):
        return True
    sessions, expected = run.sessions(), _sessions_of(run)
    return len(sessions) == expected > 0 and all(session.ended_well for session in sessions)


def _sessions_of(run: RunFolder) -> int:
    try:
        return int(Past.of(run).config["meta"]["max_session"])
    except LabrlError:
        return 0


def _outcome(folder: Path, result: TrialResult) -> Outcome:
    if result.exit_code in (INTERRUPTED, TERMINATED):
        return Outcome("interrupted")
    if result.exit_code:
        errors = [session.error for session in result.sessions if session.error]
        return Outcome("failed", errors[0] if errors else "a session failed")
    return Outcome("pruned" if RunFolder.open(folder).status == "pruned" else "finished")


@contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """What this process and its children print meanwhile goes to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(before, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
