"""Start and end the process that sends a run to Weights & Biases.

`wandb_session.py` is the process, which turns the rows of the run folder into steps of W&B. This module does
not import wandb.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import netrc
import os
import shlex
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

from labrl.config.validate import dataclass_of
from labrl.dashboards.options import WandbConfig
from labrl.errors import InputError
from labrl.run.folder import read_json
from labrl.run.run import Run

GRACE_SECONDS = 10.0
"""Seconds that a trial waits at its end in addition to `wandb.wait`. The sending process may have started
only just before."""

QUIET_SECONDS = 3.0
"""Seconds that a trial waits for uploads before it prints that it is waiting."""

LOG = "wandb.log"
"""File in the run folder with the output of the sending process."""

_log = logging.getLogger(__name__)


def is_sent(config: WandbConfig) -> tuple[bool, str | None]:
    """Return whether W&B is used for a run, and a line to print at its start (None for no line).

    Raises InputError if `wandb.mode` is online but there is no login, because labrl never asks for one.
    """
    asked = os.environ.get("WANDB_MODE") if config.mode == "auto" else None
    mode = {"offline": "offline", "dryrun": "offline", "disabled": "disabled"}.get(asked or "", config.mode)
    if mode == "disabled":
        return False, None
    if mode == "offline":
        return True, "W&B: offline; `wandb sync` uploads the run later"
    if has_login():
        return True, f"W&B: online, project {config.project}"
    if mode == "auto":
        return False, "W&B: off (no login). `wandb login` turns it on; wandb=disabled hides this line"
    fix = (
        "Log in once with `wandb login`, set WANDB_API_KEY=<key> before the command, or set wandb=offline to "
    )
    fix += "upload the run later"
    raise InputError.about("wandb.mode=online", f"it needs a login to {_host()}", fix, code="missing")


def has_login() -> bool:
    """Return whether W&B would find an API key in the environment or in ~/.netrc."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    try:
        keys = netrc.netrc(os.environ.get("NETRC") or os.path.expanduser("~/.netrc"))
        found = keys.authenticators(urllib.parse.urlsplit(_host()).netloc)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return bool(found and found[2])


def _host() -> str:
    return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


@contextmanager
def shown_on_wandb(
    config: WandbConfig, run: Run, sessions: Sequence[int], say: Callable[[str], None]
) -> Iterator[None]:
    """Context manager: send sessions to Weights & Biases while the context is active.

    A separate process sends the rows from the run folder, so training is not affected, and any problem
    results in one line at the end. sessions: indices of the sessions; say: function that prints a line; only
    the first trial of an experiment prints whether its runs are sent. Raises InputError if `wandb=online` is
    set but there is no login.
    """
    sends, line = is_sent(config)
    if line and run.is_first_of_experiment:
        say(line)
    process = _started(config, run, sessions) if sends else None
    try:
        yield
    finally:
        if process is not None:
            _finish(process, config, run, sessions, say)


def send(run: Run, changes: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Send everything that W&B still lacks of a run that has ended. Return whether everything has arrived.

    changes: values of `WandbConfig` that replace those of the run. Raises BusyFolderError if the run is still
    running, and InputError if an option is wrong or there is no login.
    """
    options = {**run.read_config().get("wandb", {}), "mode": "online", **changes}
    try:
        config = dataclass_of(WandbConfig, options, "wandb")
    except InputError as error:  # the user set an option of labrl-wandb, not a key
        flags = {f"wandb.{name}": f"--{name}" for name in changes}
        raise InputError.of(
            InputError(one.message.replace(one.key, flags[one.key]), code=one.code, key=flags[one.key])
            if one.key in flags
            else one
            for one in error.mistakes
        ) from None
    sessions = [one.index for one in run.sessions]
    with run.lock():
        is_sent(config)
        process = _started(config, run, sessions)
        return process is not None and _finish(process, config, run, sessions, say)


def _started(config: WandbConfig, run: Run, sessions: Sequence[int]) -> Popen[str] | None:
    order = {"folder": str(run.path), "options": dataclasses.asdict(config), "sessions": list(sessions)}
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    try:
        with open(run.path / LOG, "ab") as log:
            process = Popen(
                [sys.executable, "-m", "labrl.dashboards.wandb_session"],
                stdin=PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the command, which waits for the process
                env={**os.environ, "PYTHONPATH": paths},
            )
    except OSError as error:
        _log.warning("the process for Weights & Biases cannot start, but training continues: %s", error)
        return None
    _tell(process, json.dumps(order))
    return process


def _tell(process: Popen[str], line: str) -> None:
    """Write a line to the standard input of the sending process, unless it has ended."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _finish(
    process: Popen[str],
    config: WandbConfig,
    run: Run,
    sessions: Sequence[int],
    say: Callable[[str], None],
) -> bool:
    """Tell the sending process that the trial is over, and wait for its end as long as configured, or until
    Ctrl-C. Then print where the sessions are shown and what went wrong. Return whether everything has arrived
    without problems."""
    seconds, failure = config.wait + GRACE_SECONDS, None
    quietly = min(seconds, QUIET_SECONDS)
    try:
        _tell(process, "end")
        try:
            code = process.wait(quietly)
        except TimeoutExpired:
            say(f"W&B: uploading for at most {seconds:.0f} s (Ctrl-C to skip)")
            code = process.wait(seconds - quietly)
        if code:
            failure = f"the sending process ended with exit code {code}"
    except (TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
        failure = "the upload did not finish in time"
    found = [read_json(run.session(index).path / "wandb.json") for index in sessions]
    urls = [facts["url"] for facts in found if facts.get("url")]
    warnings = [facts["warning"] for facts in found if facts.get("warning")] or [failure] * bool(failure)
    arrived = len(urls) == len(found)
    if urls:
        say(f"W&B: {urls[0]}" + (f" and {len(urls) - 1} more in its group" if len(urls) > 1 else ""))
    if warnings:
        say(f"W&B: {warnings[0]} (log: {run.path / LOG})")
        if arrived:
            say(f"W&B: upload the rest with: labrl-wandb {shlex.quote(str(run.path))}")
    if not arrived:
        folders = f"{shlex.quote(str(run.path))}/session_*/wandb/offline-run-*"
        say(f"W&B: saved in the run folder; upload it with: wandb sync {folders}")
    return arrived and not warnings
