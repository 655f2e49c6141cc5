"""A trial that is about to run, either new or from an earlier run, and how its processes start."""

from __future__ import annotations

import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from labrl.config.compose import check_environment, naming_preset, resolve, to_plain
from labrl.config.keys import key_of, walk
from labrl.errors import InputError
from labrl.processes import start_fork_server
from labrl.run.provenance import Command
from labrl.run.run import Run
from labrl.run.trust import check_composed
from labrl.session import callbacks
from labrl.steady_output import doing
from labrl.trial.past import overrides_of

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.trial.result import TrialResult


@dataclass(frozen=True)
class Composed:
    """The checked configuration of a trial about to start, in three forms, with its folder and command."""

    cfg: DictConfig
    """The configuration with its references to other keys."""
    plain: dict[str, Any]
    """The configuration with all references resolved, as it is saved and handed to processes."""
    config: TrialConfig
    """The configuration as typed dataclasses."""
    folder: str
    """The run folder of a new run."""
    command: Command

    @classmethod
    def of(cls, cfg: DictConfig, folder: str, command: Command) -> Composed:
        """Resolve and check a configuration. Raises InputError."""
        plain = resolved(cfg, command.choices.get("agent", ""))
        check_composed(plain)
        check_start_from(plain["start_from"]["run"], command.overrides)
        with naming_preset(command.choices):
            if "torch" not in sys.modules:
                doing("loading PyTorch")
            config = resolve(cfg, plain)
        return cls(cfg, plain, config, folder, command)

    def run(self, again: Again | None = None) -> TrialResult:
        """Run a new trial, or continue or repeat the earlier run `again`."""
        if again is None:
            check_environment(self.plain["env"], self.command.choices.get("env", ""))
        _start_session_server(self.plain)
        # Imported late: the server loads PyTorch meanwhile, and a misspelled key must not wait for it.
        from labrl.trial.trial import run_trial

        return run_trial(self) if again is None else again.run(self)


def resolved(cfg: DictConfig, agent: str) -> dict[str, Any]:
    """Return `cfg` in the form of config.yaml, as `to_plain` does.

    agent: the option of the group `agent`. Raises InputError. An agent that does not fit the environment is
    refused before its missing values, such as `agent.value.v_min`, are asked for.
    """
    try:
        return to_plain(cfg)
    except InputError as error:
        if all(one.code == "missing" and (one.key or "").startswith("agent.") for one in error.mistakes):
            check_fit(OmegaConf.to_container(cfg.env, resolve=True), agent)
        raise


def check_fit(env: Any, agent: str) -> None:
    """Raise InputError if `agent` does not support the actions of the environment, or if that cannot be made.

    env: the group `env` of a configuration as plain data; agent: the option of the group `agent`.
    """
    # Imported late: a misspelled key must not wait for environments.
    from labrl.agents.make import check_actions
    from labrl.component import Component
    from labrl.config.validate import dataclass_of
    from labrl.envs.make import describe

    check_actions(agent, describe(dataclass_of(Component, env, "env"))[1])


def check_start_from(run: str | None, overrides: Sequence[str]) -> None:
    """Raise InputError for keys of `start_from` among the `overrides` of a trial that name no run.

    A trial with `start_from.run=null` may have them, because a grid may compare it with others.
    """
    keys = [key_of(override) for override in overrides]
    lone = [override for override, key in zip(overrides, keys, strict=True) if key.startswith("start_from.")]
    if run is None and lone and not {"start_from", "start_from.run"} & set(keys):
        raise InputError(
            f"{' '.join(lone)} has no effect without start_from.run, the run whose weights the agent starts "
            "from. Add start_from.run=<run folder>, or leave it out.",
            code="contradiction",
            key=key_of(lone[0]),
        )


class Again(ABC):
    """An earlier run that is continued or repeated, in its own folder or in a new one."""

    def __init__(self, past: Run, edits: Sequence[str], force: bool = False) -> None:
        """edits: overrides that change the run's own; force: whether they may contradict its past."""
        self.past, self.edits, self.force = past, list(edits), force

    @property
    def overrides(self) -> list[str]:
        """The overrides that compose the trial: those of the run, followed by the edits."""
        return [*overrides_of(self.past), *self.edits]

    @property
    def config_dir(self) -> str | None:
        """The folder with the user's own groups that the run was started with."""
        return self.past.config_dir

    @abstractmethod
    def run(self, composed: Composed) -> TrialResult:
        """Run the trial that `overrides` compose.

        Raises InputError, before anything runs, if the configuration contradicts the past of the run.
        """


_SESSION = (
    "labrl.trial.worker",
    *(f"{callbacks.__name__}.{one.name}" for one in pkgutil.iter_modules(callbacks.__path__)),
)
"""Modules that every session imports."""


def _start_session_server(plain: Mapping[str, Any]) -> None:
    """Start the server from which sessions are forked, while this process checks the configuration.

    The server imports the modules of labrl that the sessions of `plain` need, and none of the user's. Without
    it, each session would import PyTorch itself, which takes seconds. A trial of one session needs no server.
    """
    if plain["meta"]["max_session"] > 1:
        targets = [str(value) for key, value in walk(plain) if key.endswith("_target_")]
        modules = {target.rpartition(".")[0] for target in targets if target.startswith("labrl.")}
        start_fork_server([*_SESSION, *sorted(modules)])
