"""Presets of hyperparameters for agents and environments, and their composition by Hydra."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import cache
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from labrl.config import config_folder
from labrl.envs.games import games

GAME = "<game>"
"""Placeholder for the name of an Atari game in configs/presets.yaml."""


@cache
def rule() -> dict[str, Any]:
    """Return the content of configs/presets.yaml: agents, parts and environments."""
    content = yaml.safe_load((config_folder() / "presets.yaml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def preset_names(agent: str, env: str, options: Sequence[str] = ()) -> list[str]:
    """Return the possible names of presets for `agent` in `env`, in increasing priority.

    Not all of these files exist. options: options chosen for the parts that have presets.
    docs/reference/configuration.md states the rule.
    """
    agents = _agents(agent)
    envs = rule()["environments"].get(GAME if env in games() else env, [env])
    owners = [*options, *(f"{one}_{option}" for one in agents for option in options), *agents]
    return [f"{owner}_{one}".replace(GAME, env) for owner in owners for one in envs]


def _agents(agent: str) -> list[str]:
    """Return the agents whose presets `agent` uses, ending with itself."""
    return list(rule()["agents"].get(agent, [agent]))


def choices_of(hydra: Any) -> dict[str, str]:
    """Return the chosen option of each group from the node `hydra`, without Hydra's groups."""
    options = hydra.runtime.choices.items()
    # preset@_global_ is a preset that another one extends.
    others = ("hydra/", "preset@")
    return {str(group): str(option) for group, option in options if not group.startswith(others)}


PRESET = "preset/auto:"
"""Prefix of the preset that config.yaml selects automatically."""


class GeneratedSource(ConfigSource):
    """Hydra source that generates the configurations `env/<game>` and `preset/auto:<agent>:<env>`.

    Generating them on demand avoids listing a hundred games at each start. The second one composes the
    presets for agent and environment. For an agent with parts, it goes through
    `preset/auto:<agent>:<env>:<option>:...`, with the option chosen for each part.
    """

    @staticmethod
    def scheme() -> str:
        """Return the scheme used in hydra.searchpath."""
        return "generated"

    def available(self) -> bool:
        """Return True."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether `config_path` is a group to which this source adds configurations."""
        return config_path.strip("/") in ("env", "preset")

    def is_config(self, config_path: str) -> bool:
        """Return whether there is a configuration at `config_path`."""
        return _defaults(config_path) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration at `config_path`, with its defaults list."""
        content: dict[str, Any] = {"defaults": _defaults(config_path)}
        if config_path.startswith("env/"):
            content["game"] = config_path.removeprefix("env/")
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(content),
            header={"package": "_global_" if config_path.startswith(PRESET) else None},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """Return the games in `env`. Generated presets are not listed, because users do not select them."""
        listed = config_path.strip("/") == "env" and results_filter is not ObjectType.GROUP
        return games() if listed else []


def _defaults(path: str) -> list[Any] | None:
    """Return the defaults list of the generated configuration at a path; None if there is none."""
    if path.startswith("env/") and path.removeprefix("env/") in games():
        return ["atari", "_self_"]
    if path.startswith(PRESET):
        agent, env, *options = path.removeprefix(PRESET).split(":")
        parts = [] if options else rule()["parts"].get(_agents(agent)[0], ())
        if parts:  # resolved in a second step, with the chosen options
            return [":".join([f"/{path}", *(f"${{agent/{part}}}" for part in parts)])]
        return [{"optional /preset@_global_": preset_names(agent, env, options)}]
    return None
