"""A run as its folder tells it: found by name or as the latest, and what was asked of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from labrl.config.consistency import changes, contradictions, only_watches, refusal
from labrl.config.errors import ConfigError, nearest
from labrl.config.folder import config_folder
from labrl.storage.experiment_folder import is_experiment, one_of_its_trials
from labrl.storage.provenance import Command, read_command, read_config
from labrl.storage.run_folder import MARKER, RunFolder

RUNS = Path("runs")
"""Where runs lie that were given no other folder."""


@dataclass(frozen=True)
class Past:
    """What was asked of a run."""

    folder: RunFolder
    command: Command
    config: dict[str, Any]
    """Resolved, as plain data, with the seed that was used."""

    @classmethod
    def of(cls, folder: RunFolder) -> Past:
        """Read it. Raises ConfigError where the folder was left before it was complete."""
        return cls(folder, read_command(folder), read_config(folder))

    def check(self, cfg: DictConfig, plain: Mapping[str, Any], asked: str) -> None:
        """Raises ConfigError, with a table, where the run would have another past with other values.

        cfg: with them, references to other keys still in it; plain: the same resolved; asked: who wants it.
        """
        contradicting = contradictions(changes(self.config, plain))
        if contradicting:
            unresolved = OmegaConf.to_container(cfg, resolve=False)
            assert isinstance(unresolved, dict)
            told = refusal(contradicting, {str(key): value for key, value in unresolved.items()})
            raise ConfigError(f"{asked}: {told}")

    @property
    def words(self) -> list[str]:
        """The command line that composes the run again, wherever its folder may lie."""
        words = [word for word in self.command.overrides if not _is_hydras(word)]
        if not any(word.startswith("seed=") for word in words):
            words.append(f"seed={self.config['seed']}")
        return words


def find(which: str, edits: Sequence[str], resumes: bool = False) -> RunFolder:
    """The run folder `which`, or for `latest` the newest under ./runs that agrees with `edits`.

    Of the edits only choices of a group count, such as env=pong. resumes: whether it is to go on, which an
    experiment can too. Raises ConfigError if there is none.
    """
    return _latest(choices(edits)) if which == "latest" else _named(Path(which).expanduser(), resumes)


def near(path: Path, folders: Iterable[Path]) -> str:
    """` Did you mean <folder>?` with that of `folders` whose path or name is like `path`'s, if any is."""
    typed = {os.path.relpath(folder): folder.name for folder in folders}
    match = nearest(os.path.relpath(path), typed)
    if match is None:
        by_name = {name: folder for folder, name in typed.items()}
        match = by_name.get(nearest(path.name, by_name) or "")
    return f" Did you mean {match}?" if match else ""


def _latest(wanted: dict[str, str]) -> RunFolder:
    found = sorted(_runs(), key=lambda run: (str(run.info().get("created")), run.path), reverse=True)
    for run in found:
        # a run that was killed before it was recorded has done nothing
        if run.provenance.exists() and wanted.items() <= read_command(run).choices.items():
            return run
    told = " ".join(f"{group}={option}" for group, option in wanted.items())
    agrees = f" that agrees with {told}" if found and told else ""
    raise ConfigError(f"there is no run under {RUNS.absolute()}{agrees}: name a run folder")


def _runs() -> Iterable[RunFolder]:
    """Every run under ./runs, those of experiments included; damaged ones are nobody's latest."""
    for marker in (*RUNS.glob(f"*/{MARKER}"), *RUNS.glob(f"*/*/{MARKER}")):
        try:
            yield RunFolder.open(marker.parent)
        except ConfigError:
            continue


def _named(path: Path, resumes: bool) -> RunFolder:
    if (path / MARKER).exists():
        return RunFolder.open(path)
    if (path.parent / MARKER).exists():
        raise ConfigError(f"{path} is part of a run: name the run folder, {path.parent}")
    if is_experiment(path):
        whole = f"go on with all of it by labrl -m +resume={path}, or " if resumes else ""
        raise ConfigError(f"{path} is an experiment: {whole}{one_of_its_trials(path)}")
    trials = sorted(marker.parent for marker in path.glob(f"*/{MARKER}"))
    if trials:
        listed = "\n".join(f"  {trial}" for trial in trials)
        raise ConfigError(f"{path} holds several runs: name one of them\n{listed}")
    guess = (
        near(path, [run.path for run in _runs()])
        or f" Runs lie in {RUNS}/, and `latest` is the newest there."
    )
    raise ConfigError(f"{path} holds no run of labrl (no {MARKER} in it).{guess}")


def choices(edits: Sequence[str]) -> dict[str, str]:
    """Option by group, of the words that choose one; without those that only watch."""
    pairs = (word.split("=", 1) for word in edits if "=" in word)
    return {
        name: value
        for name, value in pairs
        if not _is_hydras(name) and not only_watches(name) and (config_folder() / name).is_dir()
    }


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))
