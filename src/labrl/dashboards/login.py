"""Find out, without importing wandb, whether there is a W&B login and how a run is sent."""

from __future__ import annotations

import configparser
import netrc
import os
import urllib.parse
from pathlib import Path
from typing import Literal

from labrl.dashboards.options import WandbConfig
from labrl.errors import InputError

Mode = Literal["online", "offline", "disabled"]

_MODES: dict[str, Mode] = {"offline": "offline", "dryrun": "offline", "disabled": "disabled"}
"""Values in W&B's own settings that override the default mode."""


def choose_mode(config: WandbConfig) -> tuple[Mode, str | None]:
    """Return the mode for a run, and a line to print at its start (None for no line).

    Raises InputError if `wandb.mode` is online but there is no login, because labrl never asks for one.
    """
    mode, why = config.mode, ""
    if mode == "auto" and (asked := _MODES.get(os.environ.get("WANDB_MODE") or _settings().get("mode", ""))):
        mode, why = asked, " (set in W&B's own settings)"
    if mode == "disabled":
        return "disabled", None
    if mode == "offline":
        return "offline", f"W&B: offline{why}; `wandb sync` uploads the run later"
    if has_login():
        return "online", f"W&B: online, project {config.project}"
    if mode == "auto":
        return "disabled", "W&B: off (no login). `wandb login` turns it on; wandb=disabled hides this line"
    fix = (
        "Log in once with `wandb login`, set WANDB_API_KEY=<key> before the command, or set wandb=offline to "
    )
    fix += "upload the run later"
    raise InputError.about("wandb.mode=online", f"it needs a login to {_host()}", fix, code="missing")


def has_login() -> bool:
    """Return whether W&B would find an API key: in the environment, in its settings or in ~/.netrc."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    if _settings().get("api_key"):
        return True
    named = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    # Unlike pathlib, os.path does not raise if the home folder is unknown or not readable.
    file = next((path for path in map(os.path.expanduser, named) if os.path.exists(path)), "")
    try:
        entry = netrc.netrc(file).authenticators(urllib.parse.urlsplit(_host()).netloc)
    except (OSError, netrc.NetrcParseError):
        return False
    return bool(entry and entry[2])


def _host() -> str:
    return os.environ.get("WANDB_BASE_URL") or _settings().get("base_url") or "https://api.wandb.ai"


def _settings() -> dict[str, str]:
    """Read W&B's settings of the user and of the working folder, which commands such as `wandb offline`
    write."""
    own = os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read([Path(own, "settings"), Path("wandb", "settings")])
    except (OSError, configparser.Error, UnicodeDecodeError):
        return {}
    return dict(parser["default"]) if parser.has_section("default") else {}
