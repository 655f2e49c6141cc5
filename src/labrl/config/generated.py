"""Configurations that no file holds: one environment for each Atari game, and which presets fit a pair.

A Hydra config source, asked by name, so that starting labrl does not pay for a hundred games.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from labrl.config.folder import config_folder
from labrl.envs.games import games

AUTO = "auto_"
"""Beginning of the choices `preset=auto_<agent>_<env>`, which config.yaml makes by itself."""
OPTIMIZER = "agent/optimizer"
"""Group whose option a preset may choose, with one of its own name: a preset cannot replace another option's
keys, only change them. For that the agent's file says `optimizer: auto_<usual>.${preset}`."""
PARTS = ("value", "target", "memory", "exploration", "noise")
"""Groups below `agent/` whose options have presets: `preset/exploration/epsilon_greedy_cartpole`."""


class GeneratedSource(ConfigSource):
    """`env/<game>`: the Atari base with that game; `preset/auto_<agent>_<env>`: what presets fit it.

    An agent that is put together from parts gets those of its parts too:
    `preset/<part>/auto_<agent>.<option>_<env>`. `agent/optimizer/auto_<usual>.<preset>`: see OPTIMIZER.
    """

    @staticmethod
    def scheme() -> str:
        """As it stands in hydra.searchpath."""
        return "generated"

    def available(self) -> bool:
        """Always."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Whether files can lie there; the groups themselves come from the YAML folders."""
        return config_path.strip("/") in ("env", "preset", *(f"preset/{part}" for part in PARTS))

    def is_config(self, config_path: str) -> bool:
        """Whether `config_path` is a game or an automatic preset."""
        return any(kind(config_path) is not None for kind in (_game, _pair, _optimizer))

    def load_config(self, config_path: str) -> ConfigResult:
        """The configuration at `config_path`, with its defaults list."""
        game, pair, optimizer = _game(config_path), _pair(config_path), _optimizer(config_path)
        content: dict[str, Any]
        if game is not None:
            content = {"defaults": ["atari", "_self_"], "game": game}
        elif optimizer is not None:
            content = {"defaults": [optimizer]}
        else:
            assert pair is not None
            group = config_path.strip("/").rpartition("/")[0]
            whole = group == "preset"
            parts = _part_presets(pair) if whole else []
            names = preset_names(pair) if whole else part_preset_names(pair)
            content = {"defaults": [*parts, {f"optional /{group}@_global_": names}]}
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(content),
            header={"package": "_global_" if pair is not None else None},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """The games under `env`; automatic presets are nobody's to type."""
        listed = config_path.strip("/") == "env" and results_filter is not ObjectType.GROUP
        return games() if listed else []


def preset_names(pair: str) -> list[str]:
    """Presets for `<agent>_<env>`, the special after the general.

    First those of the agents that the agent builds on; of each those of the game's family before the game's.
    """
    owner, env = _split(pair)
    if env is None:
        return [pair]
    envs = ["atari", env] if env in games() else [env]
    return [f"{ancestor}_{one}" for ancestor in _lineage(owner) for one in envs]


def part_preset_names(pair: str) -> list[str]:
    """Presets for `<agent>.<option>_<env>`: of the option in any agent, then of the agents in turn."""
    agent, _, option = pair.partition(".")
    names = preset_names(option)
    return [*names, *(f"{ancestor}_{name}" for ancestor in _lineage(agent) for name in names)]


def _part_presets(pair: str) -> list[dict[str, str]]:
    """Entries of a defaults list: the automatic presets of the parts that an agent is put together from."""
    agent, env = _split(pair)
    chosen = _defaults(_lineage(agent)[0])
    parts = [part for part in PARTS if re.search(rf"^  - {part}:", chosen, re.MULTILINE)]
    return [{f"optional /preset/{part}": f"{AUTO}{agent}.${{agent/{part}}}_{env}"} for part in parts]


def _split(pair: str) -> tuple[str, str | None]:
    """Owner and environment of a preset, where one of the two is known by name."""
    # The longest name first: dqn must not take the end of double_dqn, nor checkers that of video_checkers.
    for agent in sorted(_agents(), key=len, reverse=True):
        if pair.startswith(f"{agent}_"):
            return agent, pair.removeprefix(f"{agent}_")
    for game in sorted(games(), key=len, reverse=True):
        if pair.endswith(f"_{game}"):
            return pair.removesuffix(f"_{game}"), game
    return pair, None


def _agents() -> builtins.list[str]:
    """Agents of labrl's own; a user's are not known here."""
    files = (config_folder() / "agent").glob("*.yaml")
    return [file.stem for file in files]


def _defaults(agent: str) -> str:
    """The defaults list of an agent's file as it is written; empty for what is no agent of labrl's."""
    file = config_folder() / "agent" / f"{agent}.yaml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(r"^defaults:\n((?:  - .*\n)*)", text, re.MULTILINE)
    return found[1] if found else ""


def _lineage(agent: str) -> builtins.list[str]:
    """The agents that the file of `agent` builds on, the first ancestor first, and itself."""
    parents = set(re.findall(r"^  - (\w+)$", _defaults(agent), re.MULTILINE)) - {"_self_"}
    return [*(name for parent in parents for name in _lineage(parent)), agent]


def _game(config_path: str) -> str | None:
    group, _, name = config_path.strip("/").rpartition("/")
    return name if group == "env" and name in games() else None


def _pair(config_path: str) -> str | None:
    """What an automatic preset is for, as in `preset/auto_<agent>_<env>`."""
    group, _, name = config_path.strip("/").rpartition("/")
    return name.removeprefix(AUTO) if group.split("/")[0] == "preset" and name.startswith(AUTO) else None


def choices_of(hydra: Any) -> dict[str, str]:
    """The option of each group, from Hydra's own node of a configuration, without those of Hydra itself."""
    options = hydra.runtime.choices.items()
    choices = {str(group): str(option) for group, option in options if not group.startswith("hydra/")}
    if optimizer := _chosen_optimizer(choices.get(OPTIMIZER, "")):
        choices[OPTIMIZER] = optimizer
    return choices


def _chosen_optimizer(option: str) -> str | None:
    """The option of agent/optimizer that `auto_<usual>.<preset>` stands for; None for one that is no such.

    It bears the name of the preset, of several the most special one, or else it is the usual one.
    """
    if not option.startswith(AUTO):
        return None
    usual, _, preset = option.removeprefix(AUTO).partition(".")
    names = preset_names(preset.removeprefix(AUTO)) if preset.startswith(AUTO) else [preset]
    known = config_folder() / OPTIMIZER
    return next((one for one in reversed(names) if (known / f"{one}.yaml").is_file()), usual)


def _optimizer(config_path: str) -> str | None:
    group, _, name = config_path.strip("/").rpartition("/")
    return _chosen_optimizer(name) if group == OPTIMIZER else None


def register() -> None:
    """Make `generated://` known to Hydra; again does no harm."""
    Plugins.instance().register(GeneratedSource)
