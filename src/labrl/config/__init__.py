"""Composition of the YAML groups with Hydra, and their validation into the dataclasses of components."""

from functools import cache
from pathlib import Path


@cache
def config_folder() -> Path:
    """Return the folder with labrl's YAML groups.

    In a checkout, including one installed with `pip install -e`, this is `configs/` at the top of the
    repository, so that edits take effect. An installed wheel contains the groups as `labrl/configs`.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if package.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        return checkout / "configs"
    return package / "configs"
