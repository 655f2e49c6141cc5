"""The presets of an agent in an environment, and their composition by Hydra."""

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
    """Return the presets of `agent` in `env`, the strongest last, whether there are such files or not.

    options: what is chosen for the parts that have presets. docs/reference/configuration.md states the rule.
    """
    agents = _agents(agent)
    envs = rule()["environments"].get(GAME if env in games() else env, [env])
    owners = [*options, *(f"{one}_{option}" for one in agents for option in options), *agents]
    return [f"{owner}_{one}".replace(GAME, env) for owner in owners for one in envs]


def _agents(agent: str) -> list[str]:
    """The agents whose presets `agent` takes, itself last."""
    return list(rule()["agents"].get(agent, [agent]))


def choices_of(hydra: Any) -> dict[str, str]:
    """Return the option of each group, from Hydra's own node, without the groups of Hydra itself."""
    options = hydra.runtime.choices.items()
    # preset@_global_: a preset that another builds on
    others = ("hydra/", "preset@")
    return {str(group): str(option) for group, option in options if not group.startswith(others)}


PRESET = "preset/auto:"
"""Beginning of the paths of what config.yaml chooses by itself, not a user by name."""


class GeneratedSource(ConfigSource):
    """`env/<game>` and `preset/auto:<agent>:<env>`.

    They are asked for by name, so that starting labrl does not pay for a hundred games. The second composes
    the presets of the pair; for an agent with parts by way of `preset/auto:<agent>:<env>:<option>:...`, with
    what is chosen for each part.
    """

    @staticmethod
    def scheme() -> str:
        """Return what stands in hydra.searchpath."""
        return "generated"

    def available(self) -> bool:
        """Return True."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether files can lie there; the groups themselves come from the YAML folders."""
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
        """Return the games under `env`; the rest is not for users to type."""
        listed = config_path.strip("/") == "env" and results_filter is not ObjectType.GROUP
        return games() if listed else []


def _defaults(path: str) -> list[Any] | None:
    """The defaults list of what stands at a path; None where nothing does."""
    if path.startswith("env/") and path.removeprefix("env/") in games():
        return ["atari", "_self_"]
    if path.startswith(PRESET):
        agent, env, *options = path.removeprefix(PRESET).split(":")
        parts = [] if options else rule()["parts"].get(_agents(agent)[0], ())
        if parts:  # once more, with what is chosen for them
            return [":".join([f"/{path}", *(f"${{agent/{part}}}" for part in parts)])]
        return [{"optional /preset@_global_": preset_names(agent, env, options)}]
    return None
