"""A configuration in a YAML file, such as a copy of the `config.yaml` of a run, that is run again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import to_plain
from labrl.config.nodes import ConfigNode
from labrl.envs.games import environments
from labrl.errors import DamagedFileError, InputError
from labrl.run.run import Run
from labrl.run.trust import check_recorded

_FIX = "Name a run folder, its config.yaml, or a copy of that file"


class ConfigFile(Run):
    """A configuration in a YAML file, which is repeated like a run that has no rows.

    Its recorded overrides choose only the agent and the environment.
    """

    unrecorded = False

    def __init__(self, file: Path) -> None:
        """Raises DamagedFileError if the file cannot be read, and InputError if it is not a configuration of
        labrl, or names code that is not part of labrl."""
        super().__init__(Path(os.path.abspath(file)))
        try:
            node = OmegaConf.create(self.path.read_text(encoding="utf-8"))
            config: Any = OmegaConf.to_container(node)
            if not isinstance(config, dict) or not config:
                raise ValueError("it contains no keys")
        except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
            why = f"it cannot be read: {' '.join(str(error).split())}"
            raise DamagedFileError.about(self.path, why, _FIX) from None
        groups = ("agent", "env", "meta", "wandb", "start_from")
        if wrong := [name for name in groups if not isinstance(config.get(name), dict)]:
            why = f"it is not a configuration of labrl, which has groups of keys {', '.join(wrong)}"
            raise InputError.about(self.path, why, _FIX, code="missing", key=wrong[0])
        self._facts: dict[str, Any] = {"overrides": [], "config": config}
        check_recorded(self, config)  # before references are resolved, which may call functions
        resolved = to_plain(ConfigNode({"seed": None} | config))
        self._facts["config"] = resolved
        agent, is_option = _agent(resolved["agent"])
        env = str(resolved["env"].get("name"))
        self._facts["choices"] = {"agent": agent, "env": env}
        self._facts["overrides"] = [f"agent={agent}"] * is_option
        self._facts["overrides"] += [f"env={env}"] * any(env == name for name, _, _ in environments())

    def read_info(self) -> dict[str, Any]:
        """Return an empty dict, because no run is recorded."""
        return {}

    def read_config(self) -> dict[str, Any]:
        """Return the configuration as plain data."""
        return self.config

    def read_provenance(self) -> dict[str, Any]:
        """Return the configuration and the choice of agent and environment."""
        return self._facts

    def explain(self, error: InputError) -> InputError:
        """Return the error of this configuration with the name of the file."""
        return error.within(self.path.name)


def _agent(node: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the option of the group `agent` that adds this class and True, or otherwise the name of the
    class and False."""
    from labrl.config.presets import options_by_class  # imports Hydra

    target = str(node.get("_target_"))
    option = options_by_class().get(target)
    return option or target.rpartition(".")[2].lower(), option is not None
