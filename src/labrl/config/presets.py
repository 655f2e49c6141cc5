"""Which preset files make the values of an agent in an environment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import yaml

from labrl.config.folder import config_folder
from labrl.envs.games import games

GAME = "<game>"
"""What stands for the name of an Atari game in configs/presets.yaml."""


@cache
def rule() -> dict[str, Any]:
    """Return the content of configs/presets.yaml: agents, parts, environments and optimizers."""
    content = yaml.safe_load((config_folder() / "presets.yaml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def parts_of(agent: str) -> list[str]:
    """Return the groups below `agent/` whose chosen options have presets."""
    return list(rule()["parts"].get(_agents(agent)[0], ()))


def preset_names(agent: str, env: str, options: Sequence[str] = ()) -> list[str]:
    """Return the presets of `agent` in `env`, the strongest last, whether there are such files or not.

    options: what is chosen for `parts_of(agent)`. docs/configuration.md states the rule.
    """
    agents = _agents(agent)
    envs = rule()["environments"].get(GAME if env in games() else env, [env])
    owners = [*options, *(f"{one}_{option}" for one in agents for option in options), *agents]
    return [f"{owner}_{one}".replace(GAME, env) for owner in owners for one in envs]


def _agents(agent: str) -> list[str]:
    """The agents whose presets `agent` takes, itself last."""
    return list(rule()["agents"].get(agent, [agent]))


def optimizer_option(option: str) -> str:
    """Return the option of agent/optimizer that `auto:<usual>:<preset>` is; any other is itself.

    It is the one that the strongest preset has in configs/presets.yaml, or `<usual>` if none has one.
    """
    auto, _, rest = option.partition(":")
    if auto != "auto":
        return option
    usual, _, preset = rest.partition(":")
    pair = preset.removeprefix("auto:").split(":")
    presets = preset_names(*pair) if preset.startswith("auto:") else [preset]
    own = rule()["optimizers"]
    return next((own[name] for name in reversed(presets) if name in own), usual)


def choices_of(hydra: Any) -> dict[str, str]:
    """Return the option of each group, from Hydra's own node, without the groups of Hydra itself."""
    options = hydra.runtime.choices.items()
    choices = {str(group): str(option) for group, option in options if not group.startswith("hydra/")}
    if "agent/optimizer" in choices:
        choices["agent/optimizer"] = optimizer_option(choices["agent/optimizer"])
    return choices
