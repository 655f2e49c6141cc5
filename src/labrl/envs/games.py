"""The environments that `env=` can select. Listing them imports no ALE, so that it is fast."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from labrl.config import config_folder
from labrl.errors import InputError
from labrl.mistakes.spelling import did_you_mean

TWO_PLAYER_GAMES = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""Games of the ALE without a single-player mode. Loading one of them in the ALE ends the process."""


@cache
def games() -> list[str]:
    """Return the sorted snake-case ids of all single-player games; empty if the ALE is not installed."""
    package = importlib.util.find_spec("ale_py")
    if package is None or not package.submodule_search_locations:
        return []
    roms = Path(package.submodule_search_locations[0]) / "roms"
    return sorted({rom.stem for rom in roms.glob("*.bin")} - TWO_PLAYER_GAMES)


@cache
def environments() -> list[tuple[str, str, str]]:
    """Return (name, kind, id) of every environment: those with a configuration file, then Atari games."""
    rows = []
    for file in sorted((config_folder() / "env").glob("*.yaml")):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if content.get("id", "???") != "???":  # others need a further key, the game or the id
            rows.append((file.stem, "gymnasium", str(content["id"])))
    rows += [(game, "atari", game) for game in games()]
    return [*rows, ("gymnasium", "gymnasium", "any: labrl env=gymnasium env.id=<id>")]


def list_environments(part: str = "") -> list[str]:
    """Return a line for each environment whose name contains `part`. Raises InputError if there is none."""
    rows = [row for row in environments() if part in row[0]]
    if not rows:
        guess = did_you_mean(part, (row[0] for row in environments()))
        fix = guess or "To list all environments, type labrl-envs without a name"
        why = "no environment name contains this text"
        raise InputError.about(part, why, fix, code="unknown-option", key=part)
    name_width, kind_width = (max(len(row[column]) for row in rows) for column in range(2))
    return [f"{name:<{name_width}}  {kind:<{kind_width}}  {identity}" for name, kind, identity in rows]


def check_game(game: str) -> None:
    """Raise InputError, which suggests the nearest spelling, unless `game` is a supported game."""
    known = games()
    if game in known:
        return
    if not known:
        why, fix = "needs the ALE, which is not installed", "Type pip install 'ale-py>=0.12.1'"
        raise InputError.about("env.game", why, fix, code="not-installed")
    fix = f"labrl-envs lists all games.{did_you_mean(game, known, 'env=')}"
    why = "this is not a single-player game of the ALE"
    raise InputError.about(f"env.game={game}", why, fix, code="unknown-option")


def env_of(env_id: str) -> str:
    """Return the env= override for a Gymnasium id, or '' if `env_id` does not look like one.

    For example, ALE/MsPacman-v5 and MsPacmanNoFrameskip-v4 give env=ms_pacman.
    """
    if not re.search(r"-v\d+$", env_id) and not env_id.startswith("ALE/"):
        return ""
    stem = re.sub(r"(NoFrameskip|Deterministic|-ram)*(-v\d+)?$", "", env_id.rpartition("/")[2])
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    stems = {name: one for one, _, known in environments() for name in (one, known.rpartition("-v")[0])}
    own = stems.get(name) or stems.get(stem)
    return f"env={own}" if own else f"env=gymnasium env.id={env_id}"


def check_environment(env: Mapping[str, Any], option: str) -> None:
    """Raise InputError if an environment would have the name or the presets of another environment.

    env: the group `env` of a new run, resolved; option: the option of the group, which determines presets.
    """
    ids = {name: known for name, _, known in environments() if name != "gymnasium"}

    def meant(name: str) -> str:
        """Return the override for the environment with this name or id; '' if there is none."""
        return f"env={name}" if name in ids else env_of(name)

    key, name = "env.game" if "game" in env else "env.id", env["name"]
    played = env.get("game", env.get("id"))
    here = meant(played) if played else "env=gymnasium env.id=null env.name=<name>"
    # A class of the user's own may have any name but that of the option. Two options may have the same id.
    own = here == f"env={option}" or played == ids.get(option)
    if option in ids and not own and (played or name == option):
        why = "the run would have the name, presets and budget of another environment"
        raise InputError.contradiction(f"{key}={played}", f"env={option}", why, f"Type {here} instead")
    other = meant(name) if played else ""
    if other not in ("", f"env={option}", here) and ids.get(name, name) != played:
        from gymnasium import registry  # late, because few names need it

        if other.removeprefix("env=") in ids or name in registry:
            why = "the name does not choose the environment"
            fix = f"Type {other}, or choose another name"
            raise InputError.contradiction(f"env.name={name}", f"{key}={played}", why, fix)
