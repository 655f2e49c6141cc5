"""Checks of a search that do not import Optuna or PyTorch, so that a wrong command line is refused at
once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

from labrl.config import config_folder
from labrl.config.compose import resolve, to_plain
from labrl.config.keys import split_override, walk
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.errors import InputError
from labrl.experiment.search.options import Settings
from labrl.experiment.search.pruners import Halving, NoPruner, Pruner, WilcoxonPruner


def check_search(config: DictConfig, overrides: Sequence[str]) -> None:
    """Raise InputError for a wrong configuration of a search, except for keys that the search space may add.

    config: configuration that Hydra has composed; overrides: the overrides of the command line.
    """
    try:
        plain = to_plain(config)
        resolve(config, plain)
        check_ready_keys(plain, config.hydra.runtime.choices, overrides)
    except InputError as error:
        # The search space may add a missing key, as in ~agent.lr '+agent.lr=interval(1e-4, 1e-3)'.
        if wrong := [mistake for mistake in error.mistakes if mistake.code != "missing"]:
            raise InputError.of(wrong) from None


def settings_of(config: DictConfig) -> Settings:
    """Return the settings of `hydra.sweeper`. Raises InputError for wrong values."""
    own = {key: value for key, value in config.hydra.sweeper.items() if key != "_target_"}
    plain = {
        str(key): OmegaConf.to_container(value, resolve=key == "sampler")
        if OmegaConf.is_config(value)
        else value
        for key, value in own.items()
    }
    return dataclass_of(Settings, plain, "hydra.sweeper")


def check_ready_keys(plain: Mapping[str, Any], choices: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise InputError if the agent lacks keys of the ready-made space.

    plain: the configuration without searched values; choices: the option of each group; overrides: the
    overrides of the command line. If options of groups are searched too, `check_space` checks this later.
    """
    typed = dict(map(split_override, overrides))
    space = plain["search"]["space"]
    searched = [key for key, value in typed.items() if "." not in key and ("," in value or "(" in value)]
    if searched or any("." not in key for key in space):
        return
    known = dict(walk(plain))
    if lacking := [key for key in space if key not in known and key not in typed]:
        raise not_its(str(choices["search"]), lacking, str(choices["agent"]))


def not_its(ready: str, lacking: Sequence[str], agent: str) -> InputError:
    """Return the error for a ready-made space that searches keys which the agent does not have."""
    fits = (config_folder() / "search" / f"{agent}.yaml").is_file()
    instead = f"Set search={agent}, " if fits else "Either "
    return InputError.contradiction(
        f"search={ready}",
        f"agent={agent}",
        f"its space has {', '.join(lacking)}, which this agent does not have",
        f"{instead}leave out agent={agent}, or give your own ranges, such as "
        "'agent.lr=tag(log, interval(1e-5, 1e-2))'",
    )


def check_pruner(pruner: Pruner, config: TrialConfig, total: int) -> None:
    """Raise InputError for a pruner that could not stop any of the `total` trials with this configuration."""
    if isinstance(pruner, NoPruner):
        return
    budget, every = config.env.config.max_frame, config.eval_frames
    rows = (budget - 1) // every  # before the end
    if rows == 0:
        raise InputError.contradiction(
            f"meta.eval_frequency={every}",
            f"search/pruner={pruner.kind}",
            "the pruner stops trials at evaluation checkpoints, but the only one is at the end of the "
            f"budget, env.max_frame={budget}",
            f"meta.eval_frequency={max(1, budget // 10)} or search/pruner=none",
        )
    begins = {"n_startup_rows": (pruner.n_startup_rows or 0, rows)}
    if isinstance(pruner, Halving):
        begins["grace_period"] = (pruner.first_rung(budget), rows * every)
    for name, (value, most) in begins.items():
        if value > most:
            key = f"search.pruner.{name}"
            why = (
                f"no trial could ever be pruned, because the last of the {rows} evaluations before the end "
                f"is at frame {rows * every} (meta.eval_frequency={every}, env.max_frame={budget})"
            )
            fix = f"{key}={most} or less, a smaller meta.eval_frequency, or search/pruner=none"
            raise InputError.about(f"{key}={value}", why, fix, code="contradiction")
    if pruner.n_startup_trials is not None and pruner.n_startup_trials >= total:
        raise InputError.value(
            "search.pruner.n_startup_trials",
            pruner.n_startup_trials,
            f"be less than {total}, the number of trials of the search",
            why="otherwise no trial would be stopped",
            fix="search.pruner.n_startup_trials=null, or search/pruner=none",
            code="contradiction",
        )
    if not isinstance(pruner, WilcoxonPruner):
        return
    sessions = config.meta.max_session
    if sessions < pruner.fewest_sessions:
        raise InputError.contradiction(
            f"meta.max_session={sessions}",
            "search/pruner=wilcoxon",
            "the pruner compares trials seed by seed, and with so few sessions no p-value can be below "
            f"search.pruner.p_threshold={pruner.p_threshold:g}",
            f"meta.max_session={pruner.fewest_sessions} or more, or search/pruner=asha",
        )
    if find_spec("scipy") is None:
        raise InputError.not_installed("search/pruner=wilcoxon", "SciPy", "search")
