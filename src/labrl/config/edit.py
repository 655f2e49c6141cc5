"""Edit a recorded configuration with overrides, without composing its other values again."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf

from labrl.config import config_folder
from labrl.config.compose import compose, explained, hydra_initialized, prepare, to_plain
from labrl.config.keys import ABSENT, changes, has_kind, is_hydras, key_of, without_alias
from labrl.config.nodes import ConfigNode

_NAME = "labrl_recorded"
"""Name by which Hydra finds the recorded configuration."""


def edit(
    plain: Mapping[str, Any],
    edits: Sequence[str],
    recorded: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return a recorded configuration with overrides applied; all other values stay as they were recorded.

    An override of a key sets its value. An override that chooses an option of a group, such as wandb=online,
    changes only the keys whose composed values differ because of this choice. Values that were interpolated
    from an edited key stay as they were recorded.

    plain: the resolved configuration; edits: overrides, as on the command line; recorded: overrides from
    which `plain` was composed, for the options of the other groups; config_dir: folder with the user's own
    groups. Raises InputError as `compose` does, and for keys that the recorded configuration does not have.
    """
    own = [one for one in edits if not is_hydras(one)]
    before = [one for one in recorded if _is_group(one, config_dir)]
    chosen = [one for one in own if _is_group(one, config_dir)]
    values = [one for one in own if one not in chosen]
    edited = copy.deepcopy(dict(plain))
    if chosen:
        groups = {key_of(one) for one in chosen}
        after = [*(one for one in before if key_of(one) not in groups), *chosen]
        then, now = (OmegaConf.to_container(compose(one, config_dir)) for one in (before, after))
        _apply(edited, then, now)
        before = after
    cfg: DictConfig = ConfigNode(edited)
    if values:
        cfg = _with_values(cfg, values, before, config_dir)
    return to_plain(cfg)


def _is_group(override: str, config_dir: str | os.PathLike[str] | None) -> bool:
    folders = [config_folder(), *([config_dir] if config_dir else [])]
    return "=" in override and any(os.path.isdir(os.path.join(one, key_of(override))) for one in folders)


def _apply(edited: dict[Any, Any], then: Any, now: Any) -> None:
    """Apply the differences between two composed configurations, `then` and `now`, to `edited`.

    A schedule is replaced as a whole, so that the keys of two kinds are not mixed.
    """
    for name in {**then, **now}:
        old, new = then.get(name, ABSENT), now.get(name, ABSENT)
        nodes = (old, new, edited.get(name))
        if not changes({name: old}, {name: new}):
            continue
        if all(isinstance(one, dict) for one in nodes) and not any(map(has_kind, nodes)):
            _apply(edited[name], old, new)
        elif new is ABSENT:
            edited.pop(name, None)
        else:
            edited[name] = new


def _with_values(
    cfg: DictConfig, values: list[str], groups: list[str], config_dir: str | os.PathLike[str] | None
) -> DictConfig:
    """Return `cfg` with overrides of keys, as Hydra applies them. They may set known keys that `cfg` lacks,
    because it was recorded before these keys existed."""
    import hydra

    from labrl.mistakes.names import all_keys  # imports Hydra

    prepare(config_dir, values)
    present = all_keys(cfg)
    if lacking := [one for one in values if one[0] not in "+~" and key_of(one) not in present]:
        known = all_keys(compose(groups, config_dir))
        values = [f"+{one}" if one in lacking and key_of(one) in known else one for one in values]
    with _stored(cfg, config_dir), explained([*groups, *values], config_dir):
        return hydra.compose(_NAME, overrides=without_alias(values))


def compose_recorded(
    plain: Mapping[str, Any],
    node: Mapping[str, Any],
    overrides: Sequence[str],
    config_dir: str | os.PathLike[str] | None,
) -> DictConfig:
    """Return the configuration `plain` with the node `hydra`, which names the folder of a new run.

    node: keys below `hydra` that labrl sets; overrides: overrides for Hydra. Raises InputError.
    """
    import hydra

    with _stored(_with_hydra(plain, node), config_dir), explained(overrides, config_dir):
        return hydra.compose(_NAME, overrides=list(overrides), return_hydra_config=True)


def _with_hydra(plain: Mapping[str, Any], node: Mapping[str, Any]) -> DictConfig:
    """Return a configuration with the settings of Hydra from labrl's `config.yaml` and from `node`."""
    from labrl.config.presets import read  # imports Hydra

    main = read(config_folder() / "config.yaml")
    defaults = ["_self_", *(one for one in main["defaults"] if "override hydra/" in str(one))]
    merged = OmegaConf.merge({"hydra": main["hydra"]}, {"hydra": dict(node)})
    content: dict[Any, Any] = {"defaults": defaults, **plain, "hydra": merged.hydra}
    return ConfigNode(content)


@contextmanager
def _stored(cfg: DictConfig, config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Context manager: initialize Hydra, and store `cfg` so that Hydra can compose it under the name
    `_NAME`."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(_NAME, cfg)
    try:
        with hydra_initialized(config_dir):
            yield
    finally:
        ConfigStore.instance().repo.pop(f"{_NAME}.yaml", None)
