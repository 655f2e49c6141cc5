"""Edit a recorded configuration with overrides, without composing again what was composed then."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from labrl.config import config_folder
from labrl.config.compose import compose, explain, hydra_initialized, prepare, to_plain
from labrl.config.keys import ABSENT, changes, is_hydras, key_of
from labrl.errors import LabrlError

_NAME = "labrl_recorded"
"""Name of the recorded configuration among those of Hydra."""


def edit(
    plain: Mapping[str, Any],
    edits: Sequence[str],
    recorded: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return a recorded configuration after overrides; all other values stay as they were recorded.

    An override of a key sets its value. One that chooses an option of a group, such as wandb=online, changes
    the keys that this choice changes now, and no others: values that follow an edited key stay, too.

    plain: the resolved configuration; edits: as on the command line; recorded: the overrides that have
    composed it, for the options of the other groups; config_dir: the folder with the user's own groups.
    Raises InputError as `compose` does, for keys that the recorded configuration does not have, too.
    """
    own = [one for one in edits if not is_hydras(one)]
    before = [one for one in recorded if _is_group(one, config_dir)]
    chosen = [one for one in own if _is_group(one, config_dir)]
    values = [one for one in own if one not in chosen]
    cfg = OmegaConf.create(dict(plain))
    if chosen:
        groups = {key_of(one) for one in chosen}
        after = [*(one for one in before if key_of(one) not in groups), *chosen]
        _apply(cfg, compose(before, config_dir), compose(after, config_dir))
        before = after
    if values:
        cfg = _with_values(cfg, values, before, config_dir)
    return to_plain(cfg)


def _is_group(override: str, config_dir: str | os.PathLike[str] | None) -> bool:
    folders = [config_folder(), *([config_dir] if config_dir else [])]
    return "=" in override and any(os.path.isdir(os.path.join(one, key_of(override))) for one in folders)


def _apply(cfg: DictConfig, before: DictConfig, after: DictConfig) -> None:
    """Change in `cfg` what differs between two composed configurations."""
    then, now = (dict[str, Any](OmegaConf.to_container(one)) for one in (before, after))  # type: ignore[arg-type]
    for change in changes(then, now):
        parent, _, name = change.key.rpartition(".")
        with open_dict(cfg):
            if change.new is not ABSENT:
                OmegaConf.update(cfg, change.key, change.new, merge=False, force_add=True)
            elif isinstance(node := OmegaConf.select(cfg, parent) if parent else cfg, DictConfig):
                node.pop(name, None)


def _with_values(
    cfg: DictConfig, values: list[str], groups: list[str], config_dir: str | os.PathLike[str] | None
) -> DictConfig:
    """Return `cfg` with overrides of keys, as Hydra applies them."""
    import hydra
    from hydra.core.config_store import ConfigStore

    prepare(config_dir, values)
    ConfigStore.instance().store(_NAME, cfg)
    try:
        with hydra_initialized(config_dir):
            return hydra.compose(_NAME, overrides=values)
    except LabrlError:
        raise
    except Exception as error:
        raise explain(error, [*groups, *values], config_dir) from None
    finally:
        ConfigStore.instance().repo.pop(f"{_NAME}.yaml", None)
