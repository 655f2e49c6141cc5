"""Compositions, which take Hydra a sixth of a second each, remembered by a process that runs tests.

Values (`agent.lr=1e-3`) are set in copies. Folders of users, whose files may change, are always read.
"""

from __future__ import annotations

import os
import pickle
import re
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl

from labrl.config import config_folder

FIXED = ("pkg", "structured")
"""Schemes of sources that are part of a package. The packages that tests search are labrl's and Hydra's."""

VALUE = re.compile(r"(?!hydra\.).+\..+|seed|hydra\.(run\.dir|sweep\.dir|sweep\.subdir)")


def remember() -> None:
    """Let Hydra compose each choice of groups only once."""
    compose = ConfigLoaderImpl._load_configuration
    known: dict[str, bytes] = {}

    def remembered(loader: Any, config_name: str, overrides: list[str], run_mode: Any, **options: Any) -> Any:
        sources = [(one.scheme(), one.path) for one in loader.repository.get_sources()]
        of_others = {path for scheme, path in sources if scheme not in FIXED} - {str(config_folder())}
        if config_name != "config" or of_others or "hydra.searchpath" in str(overrides):
            return compose(loader, config_name, overrides, run_mode, **options)
        parsed = options.pop("parsed_overrides", None) or loader.parse_overrides(config_name, overrides)
        values = [one for one in parsed if VALUE.fullmatch(one.key_or_group) and not one.is_sweep_override()]
        choices = [one for one in parsed if one not in values]
        key = repr((sources, config_name, run_mode, options, [one.input_line for one in choices]))
        if key not in known:
            cfg = compose(loader, config_name, overrides, run_mode, parsed_overrides=choices, **options)
            known[key] = pickle.dumps(cfg)
        cfg = pickle.loads(known[key])
        loader._apply_overrides_to_config(values, cfg)
        cfg.hydra.overrides.hydra = [one.input_line for one in parsed if one.is_hydra_override()]
        cfg.hydra.overrides.task = [one.input_line for one in parsed if not one.is_hydra_override()]
        cfg.hydra.runtime.cwd = os.getcwd()
        return cfg

    ConfigLoaderImpl._load_configuration = remembered  # type: ignore[method-assign]
