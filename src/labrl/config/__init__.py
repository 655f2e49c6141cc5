"""Configuration: composed by Hydra, validated into the dataclasses that stand beside each component."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def config_folder() -> Path:
    """Return the folder with labrl's YAML groups.

    In a checkout, also one that is installed with `pip install -e`, this is `configs/` at the top of the
    repository, so that an edited file takes effect. An installed wheel carries the groups as `labrl/configs`.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if package.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        return checkout / "configs"
    return package / "configs"
