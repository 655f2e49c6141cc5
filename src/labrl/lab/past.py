"""A run as its folder tells it: found by name or as the latest, and what was asked of it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config.consistency import ABSENT, Change, changes, contradictions, only_watches, refusal
from labrl.config.errors import ConfigError, nearest
from labrl.storage.experiment_folder import is_experiment, one_of_its_trials
from labrl.storage.provenance import Command, as_yaml, damages, read_command, recorded_config
from labrl.storage.run_folder import MARKER, PROVENANCE, RunFolder

_MEND = f"Mend it, or delete it: {PROVENANCE} has the configuration that was run"

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
        return cls(folder, read_command(folder), recorded_config(folder))

    def changes(self, plain: Mapping[str, Any]) -> list[Change]:
        """What differs in another resolved configuration; numbers as keys are compared as JSON has them."""
        then, now = (json.loads(json.dumps(config, default=str)) for config in (self.config, plain))
        return changes(then, now)

    def edited(self) -> dict[str, Any]:
        """The configuration as `config.yaml` has it now, which somebody may have edited; where there is none,
        the one that was run. Raises ConfigError where it cannot be read or keys are missing from it."""
        path = self.folder.config
        try:
            text = path.read_text(encoding="utf-8")
            if text == as_yaml(self.config):
                return self.config
            edited = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
            if not isinstance(edited, dict) or not edited:
                raise ValueError("it holds no keys")
        except FileNotFoundError:
            return self.config
        except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
            told = " ".join(str(error).split())
            if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
                told = f"line {error.problem_mark.line + 1}: {error.problem}"
            raise ConfigError(f"{path} cannot be read: {told}. {_MEND}") from None
        plain = {str(key): value for key, value in edited.items()}
        gone = [change.key for change in self.changes(plain) if change.new is ABSENT]
        if gone:
            more = f" and {len(gone) - 5} more keys" if len(gone) > 5 else ""
            raise ConfigError(f"{path} lacks {', '.join(gone[:5])}{more}. {_MEND}")
        return plain

    def usable(self) -> dict[str, Any]:
        """The same, and where it cannot be used the configuration that was run, which is then said."""
        from labrl.lab.summary import say

        try:
            return self.edited()
        except ConfigError as damage:
            say(str(damage))
            return self.config

    def check(
        self, cfg: DictConfig, plain: Mapping[str, Any], asked: str, edited: Collection[str] = ()
    ) -> None:
        """Raises ConfigError, with a table, where the run would have another past with other values.

        cfg: with them, references to other keys still in it; plain: the same resolved; asked: who wants it;
        edited: keys that were changed in `config.yaml`.
        """
        contradicting = contradictions(self.changes(plain))
        if contradicting:
            unresolved = OmegaConf.to_container(cfg, resolve=False)
            assert isinstance(unresolved, dict)
            told = refusal(contradicting, {str(key): value for key, value in unresolved.items()}, edited)
            raise ConfigError(f"{asked}: {told}")

    @property
    def words(self) -> list[str]:
        """The command line that composes the run again, wherever its folder may lie."""
        words = [word for word in self.command.overrides if not _is_hydras(word)]
        if not any(word.startswith("seed=") for word in words):
            words.append(f"seed={self.config['seed']}")
        return words


def tell_damages(folder: RunFolder) -> None:
    """Say which of the files that describe a run are missing or damaged, and that others stand in."""
    from labrl.lab.summary import say

    for damage in damages(folder):
        say(f"{folder.path}: {damage}; the other files of the run stand in for it")


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
        if not run.unrecorded and (not wanted or _agrees(run, wanted)):
            return run
    told = " ".join(f"{group}={option}" for group, option in wanted.items())
    agrees = f" that agrees with {told}" if found and told else ""
    raise ConfigError(f"there is no run under {RUNS.absolute()}{agrees}: name a run folder")


def chosen(command: Command) -> dict[str, str]:
    """Option by group; where the provenance is lost, only what was typed."""
    return {**choices(command.overrides), **command.choices}


def _agrees(run: RunFolder, wanted: Mapping[str, str]) -> bool:
    try:
        return wanted.items() <= chosen(read_command(run)).items()
    except ConfigError:
        return False


def _runs() -> Iterable[RunFolder]:
    """Every run under ./runs, those of experiments included; damaged ones are nobody's latest."""
    for marker in (*RUNS.glob(f"*/{MARKER}"), *RUNS.glob(f"*/*/{MARKER}")):
        try:
            yield RunFolder.open(marker.parent)
        except ConfigError:
            continue


def _named(path: Path, resumes: bool) -> RunFolder:
    if (path / MARKER).exists() or RunFolder(path).has_lost_marker:
        return RunFolder.open(path, rebuilt=not resumes)
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
    groups = resources.files("labrl.configs")
    return {
        name: value
        for name, value in pairs
        if not _is_hydras(name) and not only_watches(name) and groups.joinpath(name).is_dir()
    }


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))
