"""Start and end the process that shows a run on Weights & Biases."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labrl.config.validate import dataclass_of
from labrl.dashboards.login import Mode, chosen
from labrl.dashboards.options import WandbConfig
from labrl.errors import InputError
from labrl.storage.experiment_folder import is_first_of_experiment
from labrl.storage.folder import read_json
from labrl.storage.provenance import damages, recorded_config
from labrl.storage.run_folder import RunFolder

GRACE_SECONDS = 10.0
"""Seconds that the end of a trial waits beyond `wandb.wait`, because the process may have just started."""

QUIET_SECONDS = 3.0
"""Seconds to wait before a message says so."""

LOG = "wandb.log"
"""File in the run folder with the output of the process that sends."""

_log = logging.getLogger(__name__)


@contextmanager
def shown_on_wandb(
    config: WandbConfig, run: RunFolder, sessions: Sequence[int], say: Callable[[str], None]
) -> Iterator[None]:
    """Show the sessions numbered `sessions` on Weights & Biases for as long as this lasts.

    Training meets nothing of it: the rows go from the run folder, by a process of their own, and
    whatever goes wrong there is one line at the end. say: prints a line; of an experiment's trials only the
    first says whether it is shown at all. Raises InputError where
    `wandb=online` has no login.
    """
    mode, line = chosen(config)
    if line and is_first_of_experiment(run.path):
        say(line)
    process = None if mode == "disabled" else _started(config, mode, run, sessions)
    try:
        yield
    finally:
        if process is not None:
            _finish(process, config, run, sessions, say)


def send(run: RunFolder, changes: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Send what W&B lacks of a run that has ended. Returns whether all has arrived.

    changes: options of `WandbConfig` that differ from the run's own. Raises BusyFolderError where it still
    runs, InputError where an option is wrong or there is no login.
    """
    for damage in damages(run):
        say(f"{run.path}: {damage}; the other files of the run stand in for it")
    options = {**recorded_config(run).get("wandb", {}), "mode": "online", **changes}
    try:
        config = dataclass_of(WandbConfig, options, "wandb")
    except InputError as error:  # what was typed is an option of labrl-wandb, and no key
        flags = {f"wandb.{name}": f"--{name}" for name in changes}
        raise InputError.of(
            dataclasses.replace(one, key=flags[one.key], message=one.message.replace(one.key, flags[one.key]))
            if one.key in flags
            else one
            for one in error.mistakes
        ) from None
    sessions = [one.index for one in run.sessions()]
    with run.lock():
        mode, line = chosen(config)
        if line:
            say(line)
        process = _started(config, mode, run, sessions)
        return process is not None and _finish(process, config, run, sessions, say)


def _started(
    config: WandbConfig, mode: Mode, run: RunFolder, sessions: Sequence[int]
) -> subprocess.Popen[str] | None:
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    order = {
        "folder": str(run.path),
        "mode": mode,
        "options": dataclasses.asdict(config),
        "sessions": list(sessions),
        "parent": os.getpid(),
    }
    try:
        with open(run.path / LOG, "a", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "labrl.dashboards"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                # Ctrl-C at the terminal is for the trial, which tells it when it is over.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return process
    except OSError as error:
        _log.warning("Weights & Biases cannot be started, training continues: %s", error)
        return None


def _finish(
    process: subprocess.Popen[str],
    config: WandbConfig,
    run: RunFolder,
    sessions: Sequence[int],
    say: Callable[[str], None],
) -> bool:
    """Say that the trial is over, and wait as long as is allowed, or until Ctrl-C; then say where the
    sessions are to be seen, and what went wrong. Returns whether nothing did."""
    seconds, failure = config.wait + GRACE_SECONDS, None
    quietly = min(seconds, QUIET_SECONDS)
    try:
        with contextlib.suppress(OSError):  # it ended before
            try:
                process.communicate("end\n", timeout=quietly)
            except subprocess.TimeoutExpired:
                say(f"W&B: finishing, {seconds:.0f} s at most (Ctrl-C: not now)")
                process.communicate(timeout=seconds - quietly)
        if code := process.wait():
            failure = f"its process ended with code {code}"
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
        failure = "not all was sent in time"
    found = [read_json(run.path / f"session_{index}" / "wandb.json") for index in sessions]
    urls = [facts["url"] for facts in found if facts.get("url")]
    warnings = [facts["warning"] for facts in found if facts.get("warning")] or [failure] * bool(failure)
    if urls:
        more = f" and {len(urls) - 1} more of its group" if len(urls) > 1 else ""
        say(f"W&B: {urls[0]}{more}")
    if warnings:
        say(f"W&B: {warnings[0]} (log: {run.path / LOG})")
        if len(urls) == len(found):
            say(f"W&B: to send the rest: labrl-wandb {shlex.quote(str(run.path))}")
    if len(urls) < len(found):
        folders = f"{shlex.quote(str(run.path))}/session_*/wandb/offline-run-*"
        say(f"W&B: kept in the run folder; to send it: wandb sync {folders}")
    return not warnings and len(urls) == len(found)
