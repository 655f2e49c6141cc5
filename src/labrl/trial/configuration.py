"""The second step of every run: from overrides, or an earlier run and edits, to a checked configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.compose import compose, naming_file, prepare, resolve, to_plain, unresolved
from labrl.config.edit import edit
from labrl.config.keys import is_hydras, key_of, override_of, split_override, walk
from labrl.errors import InputError
from labrl.processes.output import doing
from labrl.processes.secrets import MASK
from labrl.run.provenance import Origin
from labrl.run.run import Run

if TYPE_CHECKING:
    from labrl.config.schema import TrialConfig
    from labrl.run.provenance import Repositories, Typed


@dataclass(frozen=True)
class Configuration:
    """The checked configuration of a trial, in two forms, and what it comes from."""

    plain: dict[str, Any]
    """The configuration with all references resolved, as it is saved and passed to processes."""
    config: TrialConfig
    """The configuration as typed dataclasses."""
    origin: Origin


def compose_run(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, typed: Typed
) -> tuple[Configuration, str]:
    """Compose and check the configuration of a new run. Return it with the run folder. Raises LabrlError."""
    from labrl.config.presets import choices_of  # imports Hydra

    cfg = compose(list(overrides), config_dir, with_hydra=True)
    folder = os.path.abspath(config_dir) if config_dir else None
    origin = Origin(list(overrides), choices_of(cfg.hydra), folder, typed)
    try:
        return configure(cfg, origin), cfg.hydra.run.dir
    except OmegaConfBaseException as error:  # of the name of the run folder
        raise unresolved(error) from error


def configure(cfg: DictConfig | Mapping[str, Any], origin: Origin) -> Configuration:
    """Resolve and check a composed or an edited configuration. Raises InputError."""
    plain = resolved(cfg, origin.choices.get("agent", ""))
    check_start_from(plain["start_from"]["run"], origin.overrides)
    with naming_file(origin.overrides, origin.config_dir):
        if "torch" not in sys.modules:
            doing("loading PyTorch")
        from labrl.trial.contradictions import check_keys  # imports PyTorch

        config = resolve(cfg, plain)
        check_keys(config)
        return Configuration(plain, config, origin)


def edit_run(
    past: Run,
    edits: Sequence[str],
    config_dir: str | os.PathLike[str] | None = None,
    typed: Typed = "",
    repositories: Repositories | None = None,
) -> tuple[dict[str, Any], Origin]:
    """Return the recorded configuration of an earlier run with edits, unchecked, and what it comes from.

    edits: overrides that change the configuration; config_dir: folder with the user's own groups; None: the
    folder that the run used; typed, repositories: see `Origin`. Raises InputError as `edit` does.
    """
    # An option that the run has, such as env=pong beside +resume=latest, changes nothing.
    chosen = {f"{group}={option}" for group, option in past.choices.items()}
    edits = [one for one in edits if not is_hydras(one) and one not in chosen]
    config_dir = past.config_dir if config_dir is None else os.path.abspath(config_dir)
    prepare(config_dir, edits)
    recorded, before = past.read_config(), overrides_of(past)
    keys = {key_of(one) for one in edits}
    overrides = [*(one for one in before if key_of(one) not in keys), *edits]
    # Secrets are not recorded, but references to them are, as in env.kwargs.key=${oc.env:MY_KEY}.
    masked = {key for key, value in walk(recorded) if isinstance(value, str) and MASK in value}
    references = [
        one
        for one in before
        if "${" in one and any(f"{key}.".startswith(f"{key_of(one)}.") for key in masked)
    ]
    plain = edit(recorded, [*references, *edits], before, config_dir)
    check_start_from(plain["start_from"]["run"], overrides)
    if plain["seed"] is None:
        plain["seed"] = past.config["seed"]
    choices = dict(past.choices)
    choices |= {key: value for key, value in map(split_override, edits) if key in choices}
    return plain, Origin(overrides, choices, config_dir, typed, repositories)


def overrides_of(run: Run) -> list[str]:
    """Return the overrides that reproduce the configuration of a run, without those for Hydra."""
    overrides = [override for override in run.overrides if not is_hydras(override)]
    if not any(override.startswith("seed=") for override in overrides):
        overrides.append(override_of("seed", run.config["seed"]))
    return overrides


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
    from labrl.agents.make import check_actions, named_agents
    from labrl.component import Component
    from labrl.config.validate import dataclass_of
    from labrl.envs.make import describe

    if (kind := named_agents().get(agent)) is not None:
        check_actions(agent, kind, describe(dataclass_of(Component, env, "env"))[1])


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
