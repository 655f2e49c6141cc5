"""Where Hydra reads configurations: YAML files, and what no file holds."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.folder import config_folder
from labrl.config.presets import optimizer_option, parts_of, preset_names
from labrl.envs.games import games
from labrl.errors import InputError


def register() -> None:
    """Make the sources known to Hydra; again does no harm."""
    Plugins.instance().register(GeneratedSource)
    SourcesRegistry.instance().types["file"] = FileConfigSource


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's source of YAML files, whose errors name a user's file and the line in it."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration at `config_path`. Raises InputError where its file cannot be read."""
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.is_relative_to(config_folder()):
            return super().load_config(config_path)
        group, _, name = config_path.rpartition("/")
        where = ""
        try:
            content = yaml.safe_load(path.read_bytes().decode())
            if not isinstance(content, dict) and (content is not None or group in ("agent", "env")):
                raise ValueError("it contains no keys. Write `name: value`")
            if isinstance(content, dict) and name in (content.get("defaults") or ()):
                raise ValueError("its defaults lead back to itself")
            return super().load_config(config_path)
        except UnicodeDecodeError as error:
            where, why = f", byte {error.start}", "it is not UTF-8. Save it as UTF-8 text"
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}" if mark else ""
            why = f"{error.problem or error.context}. Write `key: value`, indented by blanks, each key once"
        except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
            why = str(error).splitlines()[0]
        raise InputError(f"{path}{where}: {why}", code="syntax", key=str(path))


PRESET, OPTIMIZER = "preset/auto:", "agent/optimizer/auto:"
"""Beginnings of the paths of what config.yaml and an agent's file choose by itself, not a user by name."""


class GeneratedSource(ConfigSource):
    """`env/<game>`, `preset/auto:<agent>:<env>` and `agent/optimizer/auto:<usual>:<preset>`.

    They are asked for by name, so that starting labrl does not pay for a hundred games. The second composes
    the presets of the pair; for an agent with parts by way of `preset/auto:<agent>:<env>:<option>:...`, with
    what is chosen for each part. The last is the optimizer that belongs to the preset, or `<usual>`.
    """

    @staticmethod
    def scheme() -> str:
        """Return what stands in hydra.searchpath."""
        return "generated"

    def available(self) -> bool:
        """Return True."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether files can lie there; the groups themselves come from the YAML folders."""
        return config_path.strip("/") in ("env", "preset")

    def is_config(self, config_path: str) -> bool:
        """Return whether there is a configuration at `config_path`."""
        return _defaults(config_path) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration at `config_path`, with its defaults list."""
        content: dict[str, Any] = {"defaults": _defaults(config_path)}
        if config_path.startswith("env/"):
            content["game"] = config_path.removeprefix("env/")
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(content),
            header={"package": "_global_" if config_path.startswith(PRESET) else None},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """Return the games under `env`; the rest is not for users to type."""
        listed = config_path.strip("/") == "env" and results_filter is not ObjectType.GROUP
        return games() if listed else []


def _defaults(path: str) -> list[Any] | None:
    """The defaults list of what stands at a path; None where nothing does."""
    if path.startswith("env/") and path.removeprefix("env/") in games():
        return ["atari", "_self_"]
    if path.startswith(PRESET):
        agent, env, *options = path.removeprefix(PRESET).split(":")
        parts = [] if options else parts_of(agent)
        if parts:  # once more, with what is chosen for them
            return [":".join([f"/{path}", *(f"${{agent/{part}}}" for part in parts)])]
        return [{"optional /preset@_global_": preset_names(agent, env, options)}]
    if path.startswith(OPTIMIZER):
        return [optimizer_option(path.removeprefix("agent/optimizer/"))]
    return None
