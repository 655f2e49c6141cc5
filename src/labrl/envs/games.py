"""The environments that `env=` can select, listed without importing the ALE, so that completion is fast."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

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


def check_game(game: str) -> None:
    """Raise InputError with the nearest spelling unless `game` is a supported game."""
    known = games()
    if game in known:
        return
    if not known:
        why, fix = "needs the ALE, which is not installed", "Type pip install 'ale-py>=0.12.1'"
        raise InputError.about("env.game", why, fix, code="not-installed")
    two_players = game in TWO_PLAYER_GAMES
    reason = "has no single-player mode" if two_players else "is not a game of the ALE"
    raise InputError(
        f"env.game={game} {reason}.{did_you_mean(game, known, 'env=')} There are {len(known)} games, with "
        "names such as ms_pacman; labrl-envs lists them.",
        code="unsupported" if two_players else "unknown-option",
        key="env.game",
    )
