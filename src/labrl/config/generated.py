"""Configurations that no file holds: one environment for each Atari game, and which presets fit a pair.

A Hydra config source, asked by name, so that starting labrl does not pay for a hundred games.
"""

from __future__ import annotations

import builtins
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from labrl.envs.games import games

AUTO = "preset/auto_"
"""Beginning of the choice `preset=auto_<agent>_<env>`, which config.yaml makes by itself."""


class GeneratedSource(ConfigSource):
    """`env/<game>`: the Atari base with that game; `preset/auto_<agent>_<env>`: what presets fit it."""

    @staticmethod
    def scheme() -> str:
        """As it stands in hydra.searchpath."""
        return "generated"

    def available(self) -> bool:
        """Always."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Whether files can lie there; the groups themselves come from the YAML folders."""
        return config_path.strip("/") in ("env", "preset")

    def is_config(self, config_path: str) -> bool:
        """Whether `config_path` is a game or an automatic preset."""
        return _game(config_path) is not None or config_path.startswith(AUTO)

    def load_config(self, config_path: str) -> ConfigResult:
        """The configuration at `config_path`, with its defaults list."""
        game = _game(config_path)
        content: dict[str, Any]
        if game is not None:
            content = {"defaults": ["atari", "_self_"], "game": game}
        else:
            names = preset_names(config_path.removeprefix(AUTO))
            content = {"defaults": [{"optional /preset@_global_": names}]}
        package = None if game is not None else "_global_"
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(content),
            header={"package": package},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """The games under `env`; automatic presets are nobody's to type."""
        listed = config_path.strip("/") == "env" and results_filter is not ObjectType.GROUP
        return games() if listed else []


def preset_names(pair: str) -> list[str]:
    """Presets for `<agent>_<env>`, the special after the general: of the family, then of the pair."""
    # The longest game first: checkers must not take the end of video_checkers.
    for game in sorted(games(), key=len, reverse=True):
        if pair.endswith(f"_{game}"):
            return [f"{pair.removesuffix(game)}atari", pair]
    return [pair]


def _game(config_path: str) -> str | None:
    group, _, name = config_path.strip("/").rpartition("/")
    return name if group == "env" and name in games() else None


def register() -> None:
    """Make `generated://` known to Hydra; again does no harm."""
    Plugins.instance().register(GeneratedSource)
