"""Extensions of Hydra and OmegaConf."""

from __future__ import annotations

import builtins
import math
import os
import pickle
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.nodes import ConfigNode
from labrl.config.presets import (
    OWN,
    SCHEME,
    generated,
    is_labrls,
    read,
    read_with_package,
    section,
    sections,
    wrong_file,
)
from labrl.envs.games import games
from labrl.errors import InputError


def register() -> None:
    """Register labrl's source of files and resolvers in Hydra and OmegaConf. May be called repeatedly."""
    Plugins.instance().register(FileSource)
    Plugins.instance().register(Groups)
    OmegaConf.register_resolver("labrl.unique", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    for resolver in (slug, whole, job_cores, horizon, dev_frames, budget):
        OmegaConf.register_resolver(f"labrl.{resolver.__name__}", resolver, replace=True)


class Groups(SearchPathPlugin):
    """The folders in which Hydra looks for groups: labrl's own and the user's."""

    folders: ClassVar[Sequence[Path]] = ()
    """Absolute folders, in order of priority. It is empty while another application uses Hydra."""

    @classmethod
    @contextmanager
    def searched(cls, config_dir: str | os.PathLike[str] | None) -> Iterator[None]:
        """Context manager: let Hydra look into labrl's groups and then into the user's, `config_dir`."""
        before, own = cls.folders, [] if config_dir is None else [Path(config_dir).absolute()]
        cls.folders = [config_folder(), *own]
        try:
            yield
        finally:
            cls.folders = before

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folders to Hydra's search path."""
        for folder in self.folders:
            search_path.append(provider="labrl", path=f"{SCHEME}://{folder}")


class FileSource(ConfigSource):
    """A folder of YAML files in Hydra's search path. It also provides games and presets, and its errors name
    the file and line."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the folders in Hydra's search path."""
        return SCHEME

    def available(self) -> bool:
        """Return whether the folder exists."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether `config_path` is a folder."""
        return Path(self.path, config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether there is a configuration at `config_path`."""
        place = self._place(config_path)
        return self._file(place).is_file() or self._made(place) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration at `config_path`. Raises InputError if its file cannot be read."""
        config_path = self._place(config_path)
        file = self._file(config_path)
        group, _, name = config_path.rpartition("/")
        try:
            if (made := self._made(config_path)) is not None:
                config, package = ConfigNode(made), "_global_" if group == "preset" else None
            elif not file.is_file():
                raise ConfigLoadError(f"no such file: {file}")
            else:
                if not file.is_relative_to(config_folder()):
                    _check_own(read(file), group, name)
                # Hydra changes the nodes that it is given.
                config, package = pickle.loads(_nodes(file, file.stat().st_mtime_ns))
            return ConfigResult(self.provider, self.full_path(), config, {"package": package})
        except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
            raise wrong_file(file, error) from error  # includes the line number

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """Return the options of a group; those of `env` include the games."""
        options: builtins.list[str] = []
        for one in Path(self.path, config_path).iterdir():
            self._list_add_result(options, f"{config_path}/{one.name}".strip("/"), one.name, results_filter)
        own = Path(self.path) == config_folder() and config_path.strip("/") == "env"
        return sorted([*options, *(games() if own and results_filter is not ObjectType.GROUP else ())])

    def _file(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path))

    def _place(self, config_path: str) -> str:
        is_labrls = Path(self.path) == config_folder()
        return config_path if is_labrls else config_path.replace(f"preset/{OWN}", "preset/")

    def _made(self, config_path: str) -> dict[str, Any] | None:
        """Return the content of a configuration that has no file of its own; None if there is no such
        configuration."""
        group, _, name = config_path.partition("/")
        folder = Path(self.path)
        is_env = folder == config_folder() and is_labrls("env", name)
        if group == "preset" and (is_env or sections(folder, name)):
            return {"defaults": [f"${{agent}}:{name}"]}  # the presets of the agent in this environment
        if group == "preset" and (found := section(folder, name)):
            return found[2]
        return generated(config_path) if folder == config_folder() else None


def refuse_same_names(config_dir: str | os.PathLike[str]) -> None:
    """Raise InputError if an option in the user's folder has the name of one of labrl's, which would be used
    instead. Presets of the same name apply one after the other."""
    for group in (one.name for one in config_folder().iterdir() if one.is_dir() and one.name != "preset"):
        for file in sorted(Path(config_dir, group).rglob("*.yaml")):
            path = file.relative_to(config_dir)
            own, option = config_folder() / path, path.with_suffix("").relative_to(group).as_posix()
            if own.is_file() or (group == "env" and option in games()):
                there = own if own.is_file() else f"{config_folder() / 'env'}, which has every game"
                fix = f"Rename the file, and write {path.parent}={option.rpartition('/')[2]}_mine"
                why = f"labrl has an option of this name ({there})"
                raise InputError.about(file, why, fix, code="usage")


def _check_own(content: Any, group: str, name: str) -> None:
    """Raise ValueError if a user's file `<group>/<name>.yaml` has no keys or extends itself."""
    if not isinstance(content, dict) and (content is not None or group in ("agent", "env")):
        raise ValueError("the file contains no keys. Write `name: value`")
    if isinstance(content, dict) and name in (content.get("defaults") or ()):
        raise ValueError("the defaults list contains the file itself")
    node = content.get("hydra") if isinstance(content, dict) else None
    if other := sorted(set(node if isinstance(node, dict) else ()) - {"run", "sweep", "sweeper", "launcher"}):
        raise ValueError(f"of the node hydra, labrl reads run, sweep, sweeper and launcher, not {other[0]}")


@cache
def _nodes(file: Path, changed: int) -> bytes:
    """Return the pickled nodes and package of a YAML file, which the trials of an experiment share.

    changed: time of the file's last change.
    """
    content, package = read_with_package(file)
    return pickle.dumps((ConfigNode(content or {}), package))


# --- resolvers: `${labrl.<name>:...}` in YAML files ---


def slug(name: Any) -> str:
    """Return `name` in a form that is valid in file names: `ALE/Pong-v5` becomes `ALE-Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", str(name)).strip("-.") or "run"


def whole(number: Any, otherwise: Any) -> Any:
    """Return `number` rounded up, or `otherwise` if it is null. Other values are returned unchanged."""
    if number is None:
        return otherwise
    return math.ceil(number) if isinstance(number, float) and math.isfinite(number) else number


def trials_at_once(num_gpus: Any, trials_per_job: Any) -> int:
    """Return how many trials a cluster job runs at the same time: as many as share its GPU, otherwise 1."""
    shares = isinstance(num_gpus, float) and 0 < num_gpus < 1 and isinstance(trials_per_job, int)
    return max(1, min(trials_per_job, int(1 / num_gpus + 1e-9))) if shares else 1


def job_cores(num_cpus: Any, sessions: Any, num_gpus: Any, trials_per_job: Any) -> Any:
    """Return the number of cores of a cluster job: those of a trial times the number of trials at once."""
    cores = whole(num_cpus, sessions)
    return cores * trials_at_once(num_gpus, trials_per_job) if isinstance(cores, int) else cores


def horizon(frames: Any, num_envs: Any, batch_size: Any) -> Any:
    """Return the number of steps per environment of a rollout with at most `frames` frames.

    The rollout consists of complete minibatches, at least one.
    """
    if not all(isinstance(number, int) and number > 0 for number in (num_envs, batch_size)):
        return frames  # validation will refuse num_envs or batch_size
    step = batch_size // math.gcd(batch_size, num_envs)
    return max(1, frames // (num_envs * step)) * step


def budget(share: Any, _root_: DictConfig) -> Any:
    """Return the number of frames in a share, such as 0.1, of a session's budget, as a schedule's horizon."""
    frames = _root_.env.max_frame
    numbers = all(isinstance(number, int | float) for number in (share, frames))
    return max(round(share * frames), 1) if numbers else frames  # validation will refuse max_frame


def dev_frames(agent: Mapping[str, Any], num_envs: Any) -> int:
    """Return the number of frames before learning starts, plus the frames of two further rollouts.

    Rollouts that are short, or that an agent does not have, count as 32 steps of each environment.
    """
    starts = ("learning_starts", "batch_size") if "learning_starts" in agent else ()
    numbers: list[Any] = [agent.get("horizon") or 0, num_envs, *(agent.get(name) for name in starts)]
    if not all(isinstance(number, int | float) for number in numbers):
        return 1  # validation will refuse the value
    horizon, envs, *earliest = numbers
    return int(max(earliest, default=0)) + int(max(2 * horizon, 64) * envs)
