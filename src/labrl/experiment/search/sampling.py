"""Optuna's samplers, with draws that depend only on the seed of the search and the number of the trial."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.utils import instantiate
from hydra_plugins.hydra_optuna_sweeper.config import TPESamplerConfig
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, NSGAIIISampler, NSGAIISampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from labrl.errors import Code, InputError, LabrlError, first_line, install_command
from labrl.experiment.search.space import Space
from labrl.seeding import derived_seed

TARGETS = ("hydra_plugins.hydra_optuna_sweeper.*", "optuna.samplers.*")
"""Targets that `hydra.sweeper.sampler` may name."""

SEQUENCES = ("GridSampler", "QMCSampler")
"""Samplers with a fixed sequence of values, which need the same seed for every trial."""


class NumberedSampler(BaseSampler):
    """A sampler that is created for each trial, and for each value that is drawn independently.

    A single sampler would have random state that the storage does not contain: after the process was killed,
    it would repeat the values of the first trials, and several machines would propose the same values.
    """

    def __init__(self, node: Mapping[str, Any], space: Space, seed: int) -> None:
        """node: `hydra.sweeper.sampler`, whose seed, if given, replaces `seed`.

        Raises InputError if the sampler cannot be created, is for several objectives, or is a grid over a
        continuous range.
        """
        self._node, self._space = node, space
        self._seed = seed if node.get("seed") is None else int(node["seed"])
        self.name = str(node["_target_"]).rpartition(".")[2].removeprefix("create_")
        self._sampler = self._made(self._seed, check=True)

    @property
    def is_grid(self) -> bool:
        """Whether the sampler tries every combination once."""
        return self.name == "GridSampler"

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Create the sampler of this trial."""
        if self.name not in SEQUENCES:
            self._sampler = self._made(derived_seed(self._seed, "sampler", trial.number))
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Ask the sampler of this trial."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Ask the sampler of this trial."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Ask a sampler whose seed is derived from the trial and the parameter's name, so that the order of
        draws has no effect."""
        sampler = self._sampler
        if not self.is_grid:
            sampler = self._made(derived_seed(self._seed, "sampler", trial.number, param_name))
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Tell the sampler the result, unless the sampler is a grid, which would end the study."""
        if not self.is_grid:
            self._sampler.after_trial(study, trial, state, values)

    def _made(self, seed: int, check: bool = False) -> BaseSampler:
        """Create a sampler. check: whether to check the types of its settings, which takes several
        milliseconds."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                if check and self._node["_target_"] == TPESamplerConfig._target_:
                    # labrl's option replaces this one, whose types Hydra would check.
                    OmegaConf.merge(OmegaConf.structured(TPESamplerConfig), dict(self._node))
                made = instantiate({**self._node, "seed": seed}, _execution_whitelist_=TARGETS)
                if isinstance(made, functools.partial):  # a grid of hydra-optuna-sweeper
                    made = made(self._space.grid())
        except LabrlError:
            raise
        except Exception as error:
            why = first_line(error)
            if isinstance(error, ImportError):
                why = f"a package is missing ({why}). Type {install_command('search')}"
            code: Code = "not-installed" if isinstance(error, ImportError) else "target"
            why = f"{self.name} cannot be created: {why}"
            raise InputError.about("hydra.sweeper.sampler", why, code=code) from error
        if isinstance(made, NSGAIISampler | NSGAIIISampler):
            why = f"{type(made).__name__} is for several objectives, but a search has one"
            raise InputError.unsupported("hydra.sweeper.sampler", why, "hydra/sweeper/sampler=tpe")
        assert isinstance(made, BaseSampler)
        return made
