"""`labrl --info presets`: which preset files make the values of a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from labrl.config.compose import compose, hydra_initialized
from labrl.config.keys import walk
from labrl.config.presets import rule


def applied_presets(overrides: list[str], config_dir: str | os.PathLike[str] | None = None) -> str:
    """Return a text with the preset files that `labrl <overrides>` composes and the keys that each sets.

    Hydra itself says which files these are. The weakest comes first; a value that something stronger replaces
    is followed by the one that the run has. Raises InputError as `compose` does.
    """
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
