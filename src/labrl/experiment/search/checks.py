"""Checks of a search that do not import Optuna or PyTorch, so that a wrong command line is refused at
once."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from labrl.config.compose import resolve, to_plain
from labrl.config.schema import TrialConfig
from labrl.config.validate import dataclass_of
from labrl.errors import InputError
from labrl.experiment.search.options import MedianPruner, NoPruner, Pruner, Settings, start_of
from labrl.trial.contradictions import check_keys


def check_search(config: DictConfig) -> None:
    """Raise InputError for a wrong configuration of a search, except for keys that the search space may add.

    config: configuration that Hydra has composed.
    """
    try:
        check_keys(resolve(config, to_plain(config)))
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


def check_pruner(pruner: Pruner, config: TrialConfig, total: int) -> None:
    """Raise InputError for a pruner that could not stop any of the `total` trials with this configuration."""
    if isinstance(pruner, NoPruner):
        return
    budget, every = config.env.config.max_frame, config.eval_frames
    _, frame = start_of(pruner, total, budget, every)
    last = (budget - 1) // every * every
    if frame > last or last == 0:
        key = "n_warmup_steps" if isinstance(pruner, MedianPruner) else "min_resource"
        setting = f"meta.eval_frequency={every}" if last == 0 else f"search.pruner.{key}={frame}"
        raise InputError.contradiction(
            setting,
            f"search/pruner={pruner.kind}",
            f"the last evaluation before the end of the budget, env.max_frame={budget}, is at frame {last}, "
            "so no trial could be stopped",
            f"meta.eval_frequency={max(1, budget // 10)}, search.pruner.{key}=null or search/pruner=none",
        )
