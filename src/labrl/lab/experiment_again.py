"""Going on with an experiment in its folder: what is missing, what is unfinished, what is new."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labrl.config.consistency import quoted, split_word
from labrl.config.errors import ConfigError
from labrl.lab.past import RUNS, near
from labrl.lab.request import request_of
from labrl.storage.experiment_folder import EXPERIMENT_MARKER, ExperimentFolder, is_experiment
from labrl.storage.run_folder import MARKER


@dataclass(frozen=True)
class ExperimentAgain:
    """An experiment that `-m +resume` names, and the command line that composes it again."""

    path: Path
    words: list[str]
    """Its own words, those that were typed now in the place of those with the same key."""
    config_dir: str | None
    """Where it had its user's own groups from."""
    force: bool
    """Whether its trials may have had another past."""

    @classmethod
    def asked_for(cls, words: Sequence[str]) -> ExperimentAgain | None:
        """What `words` go back to, or None. Raises ConfigError where no experiment is there."""
        request = request_of(words, multirun=True)
        if request is None:
            return None
        folder = _latest() if request.which == "latest" else _named(Path(os.path.expanduser(request.which)))
        info = folder.info()
        typed = [str(word) for word in (*info.get("hydra_overrides", []), *info.get("overrides", []))]
        return cls(
            folder.path,
            [*replaced(typed, request.edits), f"hydra.sweep.dir={quoted(str(folder.path))}"],
            _text(info.get("config_dir")),
            request.force,
        )


def replaced(words: Sequence[str], edits: Sequence[str]) -> list[str]:
    """`words` and `edits`, of two with the same key only the edit; no folder of an experiment."""
    keys = {split_word(word)[0] for word in edits} | {"hydra.sweep.dir"}
    return [*(word for word in words if split_word(word)[0] not in keys), *edits]


def _latest() -> ExperimentFolder:
    found = []
    for marker in RUNS.glob(f"*/{EXPERIMENT_MARKER}"):
        try:
            folder = ExperimentFolder.open(marker.parent)
            found.append((str(folder.info().get("created")), folder.path, folder))
        except ConfigError:
            continue  # damaged ones are nobody's latest
    if not found:
        raise ConfigError(
            f"there is no experiment under {RUNS.absolute()}: name a folder, as labrl -m +resume=<folder>"
        )
    return max(found)[2]


def _named(path: Path) -> ExperimentFolder:
    if is_experiment(path):
        return ExperimentFolder.open(path)
    if is_experiment(path.parent):
        raise ConfigError(f"{path} is one trial of an experiment: name the experiment, {path.parent}")
    if (path / MARKER).exists():
        raise ConfigError(f"{path} is a run of its own: leave out -m to go on with it: labrl +resume={path}")
    folders = [marker.parent for marker in RUNS.glob(f"*/{EXPERIMENT_MARKER}")]
    guess = near(path, folders) or f" Experiments lie in {RUNS}/; `latest` is the newest there."
    raise ConfigError(f"{path} holds no experiment of labrl (no {EXPERIMENT_MARKER} in it).{guess}")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
