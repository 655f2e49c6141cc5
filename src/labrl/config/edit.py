"""Edit a recorded configuration with overrides, without composing its other values again."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.compose import compose, to_plain
from labrl.config.keys import key_of, without_alias
from labrl.config.nodes import ConfigNode
from labrl.errors import InputError, LabrlError, first_line


def edit(
    plain: Mapping[str, Any],
    edits: Sequence[str],
    recorded: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return a recorded configuration with overrides applied; all other values stay as they were recorded.

    An override of a key sets its value. An option of a group whose file has only keys, such as wandb=online,
    sets the keys of its file, except those that an override of the run has set.

    plain: the resolved configuration; edits: overrides, as on the command line; recorded: overrides from
    which `plain` was composed; config_dir: folder with the user's own groups. Raises InputError for a key
    that the configuration does not have, and for an option that consists of several files.
    """
    # Imported late, because they import Hydra's parser.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from labrl.mistakes.names import all_keys, unknown_key
    from labrl.mistakes.overrides import SYNTAX

    parser, cfg = OverridesParser.create(), ConfigNode(copy.deepcopy(dict(plain)))
    known, mistakes = all_keys(cfg), list[LabrlError]()

    def known_here(key: str) -> list[str]:
        """Return the known keys. A configuration in a file may lack some, which its options have."""
        if key in known:
            return known
        options = [one for one in recorded if _group(key_of(one), config_dir)]
        return [*known, *all_keys(compose(options, config_dir))]

    for text in without_alias(edits):
        try:
            one = parser.parse_override(text)
        except HydraException:
            key = key_of(text) or text
            raise InputError.about(text, "it cannot be read", SYNTAX, code="syntax", key=key) from None
        key = one.key_or_group
        if one.is_sweep_override():
            fix = "Name the experiment with -m to add trials, or give one value"
            raise InputError.about(text, "a trial has one value of each key", fix, code="usage", key=key)
        try:
            if group := _group(key, config_dir):
                _choose(cfg, group, key, str(one.value()), recorded)
            elif one.is_delete() and key in known:
                parent, _, name = key.rpartition(".")
                del OmegaConf.select(cfg, parent)[name]
            elif not one.is_add() and re.sub(r"\[\d+\]", "", key) not in (here := known_here(key)):
                mistakes.append(unknown_key(key, str(one.value()), here))
            else:
                OmegaConf.update(cfg, key, one.value(), merge=True, force_add=True)
        except OmegaConfBaseException as error:
            raise InputError.about(text, first_line(error), code="type", key=key) from error
    if mistakes:
        raise InputError.of(mistakes)
    return to_plain(cfg)


def _group(key: str, config_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of the group `key`, labrl's or the user's; None if it is not a group."""
    folders = (Path(one, key) for one in (config_folder(), config_dir) if one is not None)
    return next((one for one in folders if "." not in key and one.is_dir()), None)


def _choose(cfg: DictConfig, folder: Path, group: str, option: str, recorded: Sequence[str]) -> None:
    """Set the keys of a group's option in `cfg`. Raises InputError if there is no such option, or if it
    consists of several files."""
    from labrl.config.presets import file_of, read, read_with_package

    file = file_of(folder.parents[group.count("/")], group, option)
    content, package = read_with_package(file)
    if not file.is_file():
        options = ", ".join(sorted(one.stem for one in folder.glob("*.yaml")))
        raise InputError.about(
            f"{group}={option}", f"no such option. Known: {options}", code="unknown-option"
        )
    own = {key: value for key, value in (content or {}).items() if key != "defaults"}
    path, parents = group.replace("/", "."), (content or {}).get("defaults") or ()
    if "/" in group and all(isinstance(one, str) and "/" not in one for one in parents):  # one component
        for parent in (one for one in parents if one != "_self_"):
            own = {**(read(folder / f"{parent}.yaml") or {}), **own}
        value = own.get(path.rpartition(".")[2]) if package else own or None
        OmegaConf.update(cfg, path, value, merge=False, force_add=True)
        return
    if group not in ("wandb", "meta"):
        keys = [f"{path}.{key}" if package is None else key for key in own if key != "_target_"]
        shown = " ".join(f"{key}=<value>" for key in keys[:6])
        why = "an earlier run is changed by keys, and this option stands for several"
        fix = f"Type the keys to change, such as {shown or 'agent.lr=<value>'}, or start a new run"
        raise InputError.about(f"{group}={option}", why, fix, code="usage", key=group)
    typed = set(map(key_of, recorded))
    changed = own if package == "_global_" else {group: own}
    for name, values in changed.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if f"{name}.{key}" not in typed:
                OmegaConf.update(cfg, f"{name}.{key}", value, merge=True, force_add=True)
