"""Which preset files make the values of an agent in an environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from omegaconf import OmegaConf

from labrl.config.folder import config_folder
from labrl.config.keys import walk
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


def applied_presets(overrides: list[str], config_dir: str | os.PathLike[str] | None = None) -> str:
    """Return a text with the preset files that `labrl <overrides>` composes and the keys that each sets.

    Hydra itself says which files these are. The weakest comes first; a value that something stronger replaces
    is followed by the one that the run has. Raises InputError as `compose` does.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    from labrl.config.compose import compose, hydra_initialized

    cfg = compose(overrides, config_dir, with_hydra=True)
    final = dict(walk(OmegaConf.to_container(cfg, resolve=False)))
    chosen = str(cfg.hydra.runtime.choices.get("agent/optimizer"))
    lines = []
    with hydra_initialized(config_dir):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        for one in loader.compute_defaults_list("config", overrides, RunMode.RUN).defaults:
            group, _, name = (one.config_path or "").partition("/")
            file = loader.repository.load_config(f"{group}/{name}") if group == "preset" else None
            if file is None or not file.path.startswith("file://"):
                continue
            lines.append(os.path.join(file.path.removeprefix("file://"), group, f"{name}.yaml"))
            values = _values(OmegaConf.to_container(file.config, resolve=False))
            rows = [(key, value, final.get(key)) for key, value in values.items()]
            if own := rule()["optimizers"].get(name):
                rows.append(("agent/optimizer", own, own if chosen.startswith("auto:") else chosen))
            width = max((len(key) for key, _, _ in rows), default=0)
            for key, value, now in rows:
                replaced = "" if now == value else f"  (replaced by {_written(now)})"
                lines.append(f"  {key:{width}}  {_written(value)}{replaced}")
    return "\n".join(lines or ["No preset file applies."])


def _values(node: Any) -> dict[str, Any]:
    """Value by full key; a component or a schedule is one value."""
    found: dict[str, Any] = {}
    for key, value in walk(node):
        is_group = isinstance(value, Mapping) and not {"_target_", "kind"} & set(value)
        if not is_group and not any(key.startswith((f"{whole}.", f"{whole}[")) for whole in found):
            found[key] = value
    return found


def _written(value: Any) -> str:
    """`value` as it stands in a YAML file, on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).split("\n")[0]
