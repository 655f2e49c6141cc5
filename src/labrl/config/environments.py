"""The environments that `env=` can choose."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from labrl.config.folder import config_folder
from labrl.envs.games import games

BASES = ("atari", "gymnasium")
"""Files of the group that need a further key: the game, or the id."""


def listed() -> list[tuple[str, str, str]]:
    """Return (name, kind, id) of every environment: those with a file of their own, then the Atari games."""
    rows = []
    for file in sorted((config_folder() / "env").glob("*.yaml")):
        name = file.stem
        if name not in BASES:
            content = OmegaConf.create(file.read_text(encoding="utf-8"))
            assert isinstance(content, DictConfig)
            rows.append((name, "gymnasium", str(content.id)))
    rows += [(game, "atari", game) for game in games()]
    return [*rows, ("gymnasium", "gymnasium", "any: labrl env=gymnasium env.id=<id>")]
