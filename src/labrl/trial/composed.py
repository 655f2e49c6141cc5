"""The checked configuration of a trial that is about to start."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from labrl.config.compose import naming_preset, resolve, to_plain
from labrl.config.keys import key_of
from labrl.errors import InputError
from labrl.processes.output import doing
from labrl.run.provenance import Command
from labrl.run.trust import check_composed

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig


@dataclass(frozen=True)
class Composed:
    """The checked configuration of a trial that is about to start, in two forms, with its run folder and
    command."""

    plain: dict[str, Any]
    """The configuration with all references resolved, as it is saved and passed to processes."""
    config: TrialConfig
    """The configuration as typed dataclasses."""
    folder: str
    """The run folder."""
    command: Command
    elsewhere: bool = False
    """Whether another machine will train the trial, so that the cores and GPUs of this machine do not
    matter."""

    @classmethod
    def of(
        cls, cfg: DictConfig | Mapping[str, Any], folder: str, command: Command, elsewhere: bool = False
    ) -> Composed:
        """Resolve and check a configuration, and return it with its folder and command. Raises InputError."""
        plain = resolved(cfg, command.choices.get("agent", ""))
        check_composed(plain)
        check_start_from(plain["start_from"]["run"], command.overrides)
        with naming_preset(command.choices, command.overrides, command.config_dir):
            if "torch" not in sys.modules:
                doing("loading PyTorch")
            config = resolve(cfg, plain)
        return cls(plain, config, folder, command, elsewhere)


def resolved(cfg: DictConfig | Mapping[str, Any], agent: str) -> dict[str, Any]:
    """Convert `cfg` to the form of config.yaml, as `to_plain` does.

    agent: the option of the group `agent`. Raises InputError. If an agent does not fit the environment and
    also lacks required values, such as `agent.value.v_min`, the error is about the environment.
    """
    try:
        return to_plain(cfg)
    except InputError as error:
        if all(one.code == "missing" and (one.key or "").startswith("agent.") for one in error.mistakes):
            env = cfg["env"]
            check_fit(OmegaConf.to_container(env, resolve=True) if OmegaConf.is_config(env) else env, agent)
        raise


def check_fit(env: Any, agent: str) -> None:
    """Raise InputError if `agent` does not support the environment's actions, or if the environment cannot be
    made.

    env: the group `env` of a configuration as plain data; agent: the option of the group `agent`.
    """
    # Imported late: a misspelled key must not wait for environments.
    from labrl.agents.make import check_actions
    from labrl.component import Component
    from labrl.config.validate import dataclass_of
    from labrl.envs.make import describe

    check_actions(agent, describe(dataclass_of(Component, env, "env"))[1])


def check_start_from(run: str | None, overrides: Sequence[str]) -> None:
    """Raise InputError if the `overrides` of a trial set other keys of `start_from` but name no run.

    A trial with an explicit `start_from.run=null` may have such keys, because a grid may compare it with
    trials that name a run.
    """
    keys = [key_of(override) for override in overrides]
    lone = [override for override, key in zip(overrides, keys, strict=True) if key.startswith("start_from.")]
    if run is None and lone and not {"start_from", "start_from.run"} & set(keys):
        why = "it has no effect without start_from.run, the run whose weights the agent starts from"
        fix = "Add start_from.run=<run folder>, or leave out the other keys of start_from"
        raise InputError.about(" ".join(lone), why, fix, code="contradiction", key=key_of(lone[0]))
