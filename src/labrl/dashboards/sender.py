"""Start and end the process that sends a run to Weights & Biases.

`wandb_session.py` is the process, which turns the rows of the run folder into steps of W&B. This module does
not import wandb.
"""

from __future__ import annotations

import configparser
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
from labrl.processes.output import doing
from labrl.run.folder import read_json
from labrl.run.run import Run

GRACE_SECONDS = 10.0
"""Seconds that a trial waits at its end in addition to `wandb.wait`. The sending process may have started
only just before."""

LOG = "wandb.log"
"""File in the run folder with the output of the sending process."""

_log = logging.getLogger(__name__)


def resolve_mode(config: WandbConfig) -> tuple[str, str | None]:
    """Return whether a run is sent `online`, `offline` or not at all (`disabled`), and a line to print at its
    start (None for no line).

    Raises InputError if `wandb.mode` is online but there is no login, because labrl never asks for one.
    """
    mode = str(config.mode)
    if mode == "auto":
        own = os.environ.get("WANDB_MODE") or _settings_mode()
        mode = {"dryrun": "offline", "offline": "offline", "disabled": "disabled"}.get(own, mode)
    if mode == "disabled":
        return mode, None
    if mode == "offline":
        return mode, "W&B: offline; `wandb sync` uploads the run later"
    if has_login():
        return "online", f"W&B: online, project {config.project}"
    if mode == "auto":
        return "disabled", "W&B: off (no login). `wandb login` turns it on; wandb=disabled hides this line"
    fix = "Log in once with `wandb login`, set WANDB_API_KEY=<key> before the command, or set wandb=offline"
    raise InputError.about("wandb.mode=online", f"it needs a login to {_host()}", fix, code="missing")


def _settings_mode() -> str:
    """Return the mode in W&B's own settings, which `wandb offline` writes; '' if they set none."""
    home = os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb")
    here = Path(os.environ.get("WANDB_DIR", "."))
    settings = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, UnicodeDecodeError):
        settings.read([Path(home) / "settings", here / "wandb" / "settings", here / ".wandb" / "settings"])
    return settings.get("default", "mode", fallback="")


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
    mode, line = resolve_mode(config)
    if line and run.is_first_of_experiment:
        say(line)
    process = _start(config, mode, run, sessions) if mode != "disabled" else None
    try:
        yield
    finally:
        if process is not None:
            _finish(process, config, run, sessions, say)


def send(run: Run, changes: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Send everything that W&B still lacks of a run that has ended. Return whether everything has arrived.

    changes: values of `WandbConfig` that replace those of the run. Raises BusyFolderError if the run is still
    running, and InputError if a value is wrong or there is no login.
    """
    options = {**run.read_config().get("wandb", {}), "mode": "online", **changes}
    config = dataclass_of(WandbConfig, options, "wandb")
    sessions = [one.index for one in run.sessions]
    with run.lock():
        process = _start(config, resolve_mode(config)[0], run, sessions)
        return process is not None and _finish(process, config, run, sessions, say)


def _start(config: WandbConfig, mode: str, run: Run, sessions: Sequence[int]) -> Popen[str] | None:
    options = {**dataclasses.asdict(config), "mode": mode}
    order = {"folder": str(run.path), "options": options, "sessions": list(sessions)}
    try:
        with open(run.path / LOG, "ab") as log:
            process = Popen(
                [sys.executable, "-m", "labrl.dashboards.wandb_session"],
                stdin=PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the command, which waits for the process
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
    doing(f"uploading to W&B for at most {seconds:.0f} s (Ctrl-C to skip)")
    try:
        _tell(process, "end")
        if code := process.wait(seconds):
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
    if warnings or not arrived:
        what = "upload the rest" if arrived else "saved in the run folder; upload it"
        say(f"W&B: {what} with: labrl-wandb {shlex.quote(str(run.path))}")
    return arrived and not warnings
