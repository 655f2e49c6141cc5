"""Configurations that no file holds: one environment for each Atari game, and the presets of a pair.

A Hydra config source, asked by name, so that starting labrl does not pay for a hundred games.
"""

from __future__ import annotations

import builtins
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from labrl.config.presets import optimizer_of, parts_of, preset_names
from labrl.envs.games import games

PRESET, OPTIMIZER = "preset/auto:", "agent/optimizer/auto:"
"""Beginnings of the paths of what config.yaml and an agent's file choose by itself, not a user by name."""


class GeneratedSource(ConfigSource):
    """`env/<game>`, `preset/auto:<agent>:<env>` and `agent/optimizer/auto:<usual>:<preset>`.

    The second composes the presets of the pair; for an agent with parts by way of
    `preset/auto:<agent>:<env>:<option>:...`, with what is chosen for each part. The last is the optimizer
    that belongs to the preset, or `<usual>`.
    """

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
        """Whether there is a configuration at `config_path`."""
        return _content(config_path) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """The configuration at `config_path`, with its defaults list."""
        package = "_global_" if config_path.startswith(PRESET) else None
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(_content(config_path) or {}),
            header={"package": package},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """The games under `env`; the rest is not for users to type."""
        listed = config_path.strip("/") == "env" and results_filter is not ObjectType.GROUP
        return games() if listed else []


def _content(path: str) -> dict[str, Any] | None:
    """What stands at a path; None where nothing does."""
    if path.startswith("env/") and (game := path.removeprefix("env/")) in games():
        return {"defaults": ["atari", "_self_"], "game": game}
    if path.startswith(PRESET):
        agent, env, *options = path.removeprefix(PRESET).split(":")
        parts = [] if options else parts_of(agent)
        if parts:  # once more, with what is chosen for them
            return {"defaults": [":".join([f"/{path}", *(f"${{agent/{part}}}" for part in parts)])]}
        return {"defaults": [{"optional /preset@_global_": preset_names(agent, env, options)}]}
    if path.startswith(OPTIMIZER):
        return {"defaults": [_optimizer(path.removeprefix("agent/optimizer/"))]}
    return None


def _optimizer(option: str) -> str:
    """The option of agent/optimizer that `auto:<usual>:<preset>` stands for; any other stands for itself."""
    auto, _, rest = option.partition(":")
    if auto != "auto":
        return option
    usual, _, preset = rest.partition(":")
    pair = preset.removeprefix("auto:").split(":")
    return optimizer_of(preset_names(*pair) if preset.startswith("auto:") else [preset], usual)


def choices_of(hydra: Any) -> dict[str, str]:
    """The option of each group, from Hydra's own node of a configuration, without those of Hydra itself."""
    options = hydra.runtime.choices.items()
    choices = {str(group): str(option) for group, option in options if not group.startswith("hydra/")}
    if "agent/optimizer" in choices:
        choices["agent/optimizer"] = _optimizer(choices["agent/optimizer"])
    return choices


def register() -> None:
    """Make `generated://` known to Hydra; again does no harm."""
    Plugins.instance().register(GeneratedSource)
