"""Find out, without importing wandb, whether there is a login to Weights & Biases and how a run is shown."""

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

_MODES: dict[str, Mode] = {
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
"""What WANDB_MODE can be, in W&B's own words."""


def chosen(config: WandbConfig) -> tuple[Mode, str | None]:
    """The mode that a run goes by, and a line for its beginning, if there is something to say.

    Raises InputError where `wandb.mode` is online and there is no login, because labrl never asks for one.
    """
    if config.mode == "disabled":
        return "disabled", None
    if config.mode == "offline":
        return "offline", "W&B: offline, `wandb sync` sends it later"
    if config.mode == "online":
        if not has_login():
            raise InputError(
                f"wandb.mode=online needs a login to {_host()}. Log in once with `wandb login`, set "
                "WANDB_API_KEY=<key> before the command, or set wandb=offline to send the run later",
                code="missing",
                key="wandb.mode",
            )
        return "online", _online(config)
    asked = _MODES.get(os.environ.get("WANDB_MODE") or _settings().get("mode", ""))
    if asked == "disabled":
        return "disabled", None
    if asked == "offline":
        return "offline", "W&B: offline, as its own settings say; `wandb sync` sends it later"
    if has_login():
        return "online", _online(config)
    return (
        "disabled",
        "W&B: off without a login: `wandb login` turns it on, wandb=disabled hides this",
    )


def has_login() -> bool:
    """Whether W&B would find a key by itself: in the environment, ~/.netrc or its settings."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    if _settings().get("api_key"):
        return True
    host = urllib.parse.urlsplit(_host()).netloc
    try:
        entry = netrc.netrc(_netrc_file()).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return False
    return bool(entry and entry[2])


def _online(config: WandbConfig) -> str:
    return f"W&B: online, project {config.project}"


def _host() -> str:
    return os.environ.get("WANDB_BASE_URL") or _settings().get("base_url") or "https://api.wandb.ai"


def _netrc_file() -> Path:
    if os.environ.get("NETRC"):
        return _at_home(os.environ["NETRC"])
    files = _at_home("~/.netrc"), _at_home("~/_netrc")
    # os.path, unlike pathlib, raises nothing where the home folder cannot be looked into
    return next((path for path in files if os.path.exists(path)), files[0])


def _at_home(path: str) -> Path:
    """`path` with ~ replaced; as it is where nobody knows a home folder, as for a user of a container."""
    return Path(os.path.expanduser(path))


def _settings() -> dict[str, str]:
    """What W&B's commands wrote, as `wandb offline` does: for the user, then for the working folder."""
    own = _at_home(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read([own / "settings", Path("wandb", "settings")])
    except (OSError, configparser.Error, UnicodeDecodeError):
        return {}
    return dict(parser["default"]) if parser.has_section("default") else {}
