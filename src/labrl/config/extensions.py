"""Extensions of Hydra and OmegaConf."""

from __future__ import annotations

import builtins
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.keys import CONSTANT
from labrl.config.presets import OWN, generated, is_labrls, read, section, sections, wrong_file
from labrl.envs.games import games
from labrl.schedules import expanded


def register() -> None:
    """Register labrl's source of files and resolvers in Hydra and OmegaConf. May be called repeatedly."""
    SourcesRegistry.instance().types["file"] = FileConfigSource
    OmegaConf.register_resolver("labrl.unique", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    for resolver in (slug, whole, job_cores, horizon, dev_frames, budget):
        OmegaConf.register_resolver(f"labrl.{resolver.__name__}", resolver, replace=True)


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's source of YAML files, with games and presets, and with errors that name the file and line."""

    def is_config(self, config_path: str) -> bool:
        """Return whether there is a configuration at `config_path`."""
        place = self._place(config_path)
        return super().is_config(place) or self._made(place) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration at `config_path`. Raises InputError if its file cannot be read."""
        config_path = self._place(config_path)
        path = Path(self.path, self._normalize_file_name(config_path))
        group, _, name = config_path.rpartition("/")
        try:
            if (own := self._made(config_path)) is not None:
                header = {"package": "_global_" if group == "preset" else None}
                return ConfigResult(self.provider, f"file://{self.path}", OmegaConf.create(own), header)
            if not path.is_relative_to(config_folder()):
                content = read(path)
                if not isinstance(content, dict) and (content is not None or group in ("agent", "env")):
                    raise ValueError("the file contains no keys. Write `name: value`")
                if isinstance(content, dict) and name in (content.get("defaults") or ()):
                    raise ValueError("the defaults list contains the file itself")
            return super().load_config(config_path)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
            raise wrong_file(path, error) from error  # includes the line number

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """Return the options of a group; those of `env` include the games."""
        options = super().list(config_path, results_filter)
        own = Path(self.path) == config_folder() and config_path.strip("/") == "env"
        return [*options, *games()] if own and results_filter is not ObjectType.GROUP else options

    def _place(self, config_path: str) -> str:
        is_labrls = Path(self.path) == config_folder()
        return config_path if is_labrls else config_path.replace(f"preset/{OWN}", "preset/")

    def _made(self, config_path: str) -> dict[str, Any] | None:
        """Return the content of a configuration without a file of its own; None if there is no such one."""
        group, _, name = config_path.partition("/")
        folder = Path(self.path)
        is_env = folder == config_folder() and is_labrls("env", name)
        if group == "preset" and (is_env or sections(folder, name)):
            return {"defaults": [f"${{agent}}:{name}"]}  # the presets of the agent in this environment
        if group == "preset" and (found := section(folder, name)):
            return found[2]
        return generated(config_path) if folder == config_folder() else None


# --- groups of keys with a `kind`, such as schedules ---


@contextmanager
def kinds_replace() -> Iterator[None]:
    """Context manager: make a group of keys with a `kind` replace an earlier group instead of being merged.

    OmegaConf would merge both and mix the keys of different schedules. Likewise, a transform, callback or
    optimizer with another `_target_` replaces the earlier one. Schedules in short form are expanded at once,
    so that `agent.lr.start=1e-3` can follow `agent.lr=linear:3e-4:0`, and `start_from=<run folder>` sets
    `start_from.run`. Hydra has no hook for merging, so this patches two methods of OmegaConf that all
    composition uses.
    """
    merge, set_item = BaseContainer._map_merge, BaseContainer._set_item_impl

    def merge_or_replace(dest: BaseContainer, src: BaseContainer, *options: Any, **named: Any) -> None:
        if _replaces(dest, src):
            dest._set_value(expanded(OmegaConf.to_container(src, resolve=False)))
        else:
            merge(dest, src, *options, **named)

    def set_expanded(self: BaseContainer, key: Any, value: Any) -> None:
        at_root = self._get_parent() is None
        if at_root and key == "start_from" and isinstance(value, str | None) and key in self:
            self[key].run = value
            return
        changed = expanded(value)
        if changed is not value and isinstance(self, DictConfig):
            value = value if str(self._get_full_key(key)).startswith(CONSTANT) else changed
        set_item(self, key, value)

    BaseContainer._map_merge = staticmethod(merge_or_replace)  # type: ignore[method-assign]
    BaseContainer._set_item_impl = set_expanded  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseContainer._map_merge = staticmethod(merge)  # type: ignore[method-assign]
        BaseContainer._set_item_impl = set_item  # type: ignore[method-assign]


def _replaces(dest: BaseContainer, src: BaseContainer) -> bool:
    """Return whether the node `src` replaces `dest` instead of being merged into it."""
    # The content of other nodes is a list, None or "${...}".
    if not all(isinstance(node._content, dict) for node in (dest, src)):
        return False
    parent = dest._get_parent_container()
    if dest._key() == "optimizer" or (parent is not None and parent._key() in ("transforms", "callbacks")):
        targets = [node._get_node("_target_") for node in (dest, src)]
        return None not in targets and targets[0] != targets[1]
    # In a component, `kind` is an ordinary key, such as `lstm`.
    return all("kind" in node and "_target_" not in node for node in (dest, src))


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
