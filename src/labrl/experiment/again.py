"""The experiment that `-m +resume` names, and the command line that composes it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labrl.config.keys import is_hydras, quoted, split_override, values_of
from labrl.errors import InputError
from labrl.run.trust import check_experiment
from labrl.trial.find import find_experiment
from labrl.trial.fork import Fork
from labrl.trial.request import Request

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader


@dataclass(frozen=True)
class ExperimentAgain:
    """An experiment to resume in its folder, with missing, unfinished and new trials."""

    path: Path
    overrides: list[str]
    """The overrides of the experiment, then those of the current command, which replace earlier ones of the
    same keys."""
    edits: list[str]
    """The overrides of the current command, except those for Hydra; of several with the same key, only the
    last."""
    swept: set[str]
    """Keys that identify the trials: those with several values in any command of the experiment, and the
    seed."""
    config_dir: str | None
    """Folder with the user's own groups."""
    force: bool
    """Whether new values may contradict the past of the trials."""
    fork: Fork | None
    """The run from which the trials fork; None if they do not fork."""

    @classmethod
    def of(cls, request: Request) -> ExperimentAgain:
        """Return the experiment that `-m +resume` names.

        Raises InputError if the experiment does not exist, and for the reasons of `check_experiment`.
        """
        folder = find_experiment(request.which)
        config_dir = check_experiment(folder)
        info = folder.read_info()
        own = [str(override) for override in info.get("overrides", [])]
        typed = [*map(str, info.get("hydra_overrides", [])), *own]
        edits = list({split_override(override)[0]: override for override in request.edits}.values())
        return cls(
            path=folder.path,
            overrides=[
                *replaced(typed, edits),
                f"hydra.sweep.dir={quoted(str(folder.path))}",
            ],
            edits=[override for override in edits if not is_hydras(override)],
            swept={"seed", *map(str, info.get("swept", []))},
            config_dir=config_dir,
            force=request.force,
            fork=Fork.recorded(info),
        )


def replaced(overrides: Sequence[str], edits: Sequence[str]) -> list[str]:
    """Return `overrides` without those that `edits` replace, followed by `edits`. Omits the experiment's
    folder."""
    keys = {split_override(override)[0] for override in edits} | {"hydra.sweep.dir"}
    return [*(override for override in overrides if split_override(override)[0] not in keys), *edits]


def swept_keys(overrides: Iterable[str]) -> set[str]:
    """Return the keys for which `overrides` give several values."""
    # Imported late: single runs do not need the parser.
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(
        [override for override in overrides if not is_hydras(override)]
    )
    return {one.key_or_group for one in parsed if one.is_sweep_override()}


def first_options(overrides: Sequence[str], loader: ConfigLoader) -> dict[str, str]:
    """Return the override of the first option for each override with several options of a group.

    Hydra composes the experiment itself from these, because other overrides may be of keys that only the
    given options have, such as agent.double with agent=dqn,c51. loader: Hydra's, for patterns of options.
    Raises InputError for several values of a key of Hydra.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create(loader).parse_overrides(list(overrides))
    for one in parsed:
        if one.is_sweep_override() and is_hydras(one.key_or_group):
            raise InputError.usage(str(one.input_line), "all trials of an experiment have one value of it")
    return {
        str(one.input_line): values[0]
        for one in parsed
        if "." not in one.key_or_group and (values := values_of(one))
    }
