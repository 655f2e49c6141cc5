"""The experiment that `-m +resume` names, and the command line that composes it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from labrl.config.keys import is_hydras, quoted, split_override
from labrl.run.trust import check_experiment
from labrl.trial.command import Command
from labrl.trial.find import find_experiment
from labrl.trial.fork import ForkPoint


@dataclass(frozen=True)
class Earlier:
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
    fork: ForkPoint | None
    """The run from which the trials fork; None if they do not fork."""

    @classmethod
    def of(cls, command: Command) -> Earlier:
        """Return the experiment that `-m +resume` names.

        Raises InputError if the experiment does not exist, and for the reasons of `check_experiment`.
        """
        folder = find_experiment(command.which)
        config_dir = check_experiment(folder)
        info = folder.read_info()
        own = [str(override) for override in info.get("overrides", [])]
        typed = [*map(str, info.get("hydra_overrides", [])), *own]
        edits = list({split_override(override)[0]: override for override in command.overrides}.values())
        return cls(
            path=folder.path,
            overrides=[
                *replaced(typed, edits),
                f"hydra.sweep.dir={quoted(str(folder.path))}",
            ],
            edits=[override for override in edits if not is_hydras(override)],
            swept={"seed", *map(str, info.get("swept", []))},
            config_dir=config_dir,
            force=command.force,
            fork=ForkPoint.recorded(info),
        )


def replaced(overrides: Sequence[str], edits: Sequence[str]) -> list[str]:
    """Return `overrides` without those that `edits` replace, followed by `edits`. Omits the experiment's
    folder."""
    keys = {split_override(override)[0] for override in edits} | {"hydra.sweep.dir"}
    return [*(override for override in overrides if split_override(override)[0] not in keys), *edits]


def swept_keys(overrides: Iterable[str]) -> set[str]:
    """Return the keys for which `overrides` give several values."""
    parsed = OverridesParser.create().parse_overrides(
        [override for override in overrides if not is_hydras(override)]
    )
    return {one.key_or_group for one in parsed if one.is_sweep_override()}
