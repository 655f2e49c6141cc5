"""An earlier run: found by name or as the latest, with its configuration and differences from new values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.keys import ABSENT, Change, changes, contradictions, traits, typed_override, written
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.mistakes.spelling import nearest
from labrl.storage.experiment_folder import experiment_of, is_experiment
from labrl.storage.provenance import Command, as_yaml, damages, read_command, recorded_config
from labrl.storage.run_folder import MARKER, PROVENANCE, RunFolder

_MEND = f"Correct it, or delete it: {PROVENANCE} has the configuration that was run"

RUNS = Path("runs")
"""Default folder of runs."""


@dataclass(frozen=True)
class Past:
    """A request to go back to a run."""

    folder: RunFolder
    command: Command
    config: dict[str, Any]
    """Resolved, as plain data, with the seed that was used."""

    @classmethod
    def of(cls, folder: RunFolder) -> Past:
        """Read the past of a run. Raises DamagedFileError where the folder is damaged or incomplete."""
        return cls(folder, read_command(folder), recorded_config(folder))

    def changes(self, plain: Mapping[str, Any]) -> list[Change]:
        """Return the differences from another resolved configuration; numeric keys are compared as in
        JSON."""
        then, now = (json.loads(json.dumps(config, default=str)) for config in (self.config, plain))
        return changes(then, now)

    def edited(self) -> dict[str, Any]:
        """Return the configuration in `config.yaml`, which may have been edited; without that file,
        the one that was run. Raises DamagedFileError where it cannot be read or keys are missing."""
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
            raise DamagedFileError(f"{path} cannot be read: {told}. {_MEND}", key=str(path)) from None
        plain = {str(key): value for key, value in edited.items()}
        found = self.changes(plain)
        gone = [change.key for change in found if change.new is ABSENT]
        if gone:
            more = f" and {len(gone) - 5} more keys" if len(gone) > 5 else ""
            new = [change.key for change in found if change.old is ABSENT]
            has = f" and has {', '.join(new[:5])}, which the run did not have" if new else ""
            raise DamagedFileError(f"{path} lacks {', '.join(gone[:5])}{more}{has}. {_MEND}", key=str(path))
        return plain

    def usable(self) -> dict[str, Any]:
        """Return the same, or, if it cannot be used, the configuration that was run, with a message."""
        try:
            return self.edited()
        except LabrlError as damage:
            from labrl.trial.summary import say

            say(str(damage))
            return self.config

    def check(
        self, cfg: DictConfig, plain: Mapping[str, Any], asked: str, edited: Collection[str] = ()
    ) -> None:
        """Raise InputError, with a table, where other values contradict the past of the run.

        cfg: with them, references to other keys still in it; plain: the same resolved; asked: who wants it;
        edited: keys that were changed in `config.yaml`.
        """
        contradicting = contradictions(self.changes(plain))
        if contradicting:
            unresolved = OmegaConf.to_container(cfg, resolve=False)
            assert isinstance(unresolved, dict)
            told = refusal(contradicting, {str(key): value for key, value in unresolved.items()}, edited)
            raise InputError(f"{asked}: {told}", code="changed-past", key=contradicting[0].key)

    @property
    def overrides(self) -> list[str]:
        """Return the command line that composes the run again, wherever its folder may lie."""
        overrides = [override for override in self.command.overrides if not is_hydras(override)]
        if not any(override.startswith("seed=") for override in overrides):
            overrides.append(f"seed={self.config['seed']}")
        return overrides


def completed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run with the keys that labrl has got since then.

    They are filled in where they say nothing of how an agent acts: in `meta` and `start_from`.
    """
    files = {"meta": "meta/default.yaml", "start_from": "config.yaml"}
    read = {
        part: yaml.safe_load((config_folder() / file).read_text(encoding="utf-8"))
        for part, file in files.items()
    }
    defaults = {"meta": read["meta"], "start_from": read["start_from"]["start_from"]}
    defaults["meta"].pop("defaults")
    return {**plain, **{part: {**defaults[part], **(plain.get(part) or {})} for part in files}}


def refusal(
    contradicting: Sequence[Change], unresolved: Mapping[str, Any], edited: Collection[str] = ()
) -> str:
    """Return a table of the keys with their old and new values, and what to type instead.

    unresolved: the new configuration with its references to other keys still in it, so that the keys
    that follow another one can be told from those that were typed; edited: those that were changed in
    the run's `config.yaml`.
    """
    lines = ["with these values the past of the run would have been another one:"]
    lines += table([("key", "then", "now", ""), *(row_of(one, unresolved, edited) for one in contradicting)])
    pinned = {one.key: one.old for one in contradicting if one.pinnable}
    return "\n".join([*lines, *ways_out(contradicting, [typed_override(*pin) for pin in pinned.items()])])


def described(change: Change) -> str:
    """Return key, old and new value in a line."""
    return f"{change.key} {written(change.old)} -> {written(change.new)}"


def row_of(
    change: Change, unresolved: Mapping[str, Any], edited: Collection[str] = ()
) -> tuple[str, str, str, str]:
    """Return a row of the table: key, old and new value, and the key that it follows, if any.

    edited: keys that were changed in the run's `config.yaml`.
    """
    follows = _reference(unresolved, change.key)
    source = "edited in config.yaml" if change.key in edited else f"follows {follows}" if follows else ""
    return change.key, written(change.old), written(change.new), source


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns stand one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def ways_out(contradicting: Sequence[Change], pins: Sequence[str]) -> Iterator[str]:
    """List what to type in place of what contradicts the past. pins: the overrides that keep it as it was."""
    if pins:
        yield f"To keep them as they were: {' '.join(pins)}"
    if not all(change.pinnable for change in contradicting):
        yield "A key that is not on both sides comes from another choice or from another version of labrl."
    yield "To resume anyway, which the run folder records: +force=true"


def _reference(unresolved: Mapping[str, Any], key: str) -> str:
    """Return the key that the value at `key` refers to, or nothing."""
    node: Any = unresolved
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    found = re.fullmatch(r"\$\{([\w.]+)\}", node) if isinstance(node, str) else None
    return found[1] if found else ""


Verb = Literal["resume", "rerun", "fork", "enjoy", "replay", "load", "start_from", "export"]
"""The commands and functions that go back to a run."""

_TYPED: dict[Verb, tuple[str, str]] = {
    "resume": ("+resume", "labrl +resume="),
    "rerun": ("+rerun", "labrl +rerun="),
    "fork": ("+fork", "labrl +fork="),
    "enjoy": ("+enjoy", "labrl +enjoy="),
    "replay": ("run", "labrl-replay "),
    "load": ("run", "labrl.load "),
    "export": ("run", "labrl-export "),
    "start_from": ("start_from.run", "labrl start_from.run="),
}
"""For each, what names a run there, for messages, and what stands before the folder."""


def report_damages(folder: RunFolder) -> None:
    """Print which of the files that describe a run are missing or damaged, and what replaces them."""
    from labrl.trial.summary import say

    for damage in damages(folder):
        say(f"{folder.path}: {damage}; the other files of the run stand in for it")


def say_differences(differs: Sequence[str] | None) -> None:
    """Say why what follows may not be exact. differs: from the past; None where nobody knows."""
    from labrl.trial.summary import say

    if differs:
        say(f"Not bit for bit as it would have been, because these differ: {'; '.join(differs)}")
    if differs is None:
        say("Without provenance.json it is unknown whether code, packages and machine are the same")


def find(which: str, edits: Sequence[str], verb: Verb) -> RunFolder:
    """Return the run folder `which`, or for `latest` the newest one in ./runs that matches `edits`.

    Of the edits only choices of a group count, such as env=pong. Where the newest is a trial of an
    experiment, the best of those that agree is meant, and one line says so; to go on, an experiment has a
    command of its own. Raises InputError if there is none.
    """
    if which != "latest":
        return _named(Path(os.path.expanduser(which)), verb)
    wanted = choices(edits)
    run = _latest(wanted, _override(verb))
    experiment = experiment_of(run.path)
    return run if experiment is None else _best_of(experiment, run, wanted, verb)


def _best_of(experiment: Path, newest: RunFolder, wanted: Mapping[str, str], verb: Verb) -> RunFolder:
    # Late: no override that is wrong waits for numpy.
    from labrl.analysis.listing import best_trial
    from labrl.trial.summary import say

    place = os.path.relpath(experiment)
    if verb == "resume":
        raise InputError(
            f"the newest is an experiment, {place}. Resume all of it with labrl -m +resume={place}, or "
            + _trials_of(experiment, verb),
            code="usage",
            key="+resume",
        )
    best = best_trial(experiment, lambda path: _chosen_as(RunFolder(path), wanted))
    if best is None:
        among = f" of those that agree with {_told(wanted)}" if wanted else ""
        say(f"{place}: no trial{among} has a return yet, so the newest is taken, {newest.path.name}")
        return newest
    say(f"{place} is the newest: its best trial is taken, {best.path.name}, with {best.told}")
    return RunFolder.open(best.path)


def newest_folder() -> Path:
    """Return the newest run in ./runs, or the experiment that it belongs to. Raises InputError without
    any."""
    run = _latest({}, "latest")
    return experiment_of(run.path) or run.path


def _override(verb: Verb) -> str:
    """Return the override that names a run."""
    return _TYPED[verb][0]


def _trials_of(experiment: Path, verb: Verb) -> str:
    """List the trials to name in place of an experiment, for a command that takes one run."""
    from labrl.analysis.listing import listed

    return listed(experiment, _TYPED[verb][1])


def near(path: Path, folders: Iterable[Path]) -> str:
    """` Did you mean <folder>?` with that of `folders` whose path or name is like `path`'s, if any is."""
    typed = {os.path.relpath(folder): folder.name for folder in folders}
    by_name = {name: folder for folder, name in typed.items()}
    matches = nearest(os.path.relpath(path), typed) or [by_name[name] for name in nearest(path.name, by_name)]
    return "".join(f" Did you mean {match}?" for match in matches)


def _latest(wanted: dict[str, str], override: str) -> RunFolder:
    found = sorted(_runs(), key=lambda run: (str(run.info().get("created")), run.path), reverse=True)
    for run in found:
        # a run that was killed before it was recorded has done nothing
        if not run.unrecorded and _chosen_as(run, wanted):
            return run
    agrees = f" that agrees with {_told(wanted)}" if found and wanted else ""
    raise InputError(
        f"there is no run under {RUNS.absolute()}{agrees}: name a run folder", code="not-found", key=override
    )


def _told(wanted: Mapping[str, str]) -> str:
    return " ".join(f"{group}={option}" for group, option in wanted.items())


def chosen(command: Command) -> dict[str, str]:
    """Option by group; where the provenance is lost, only what was typed."""
    return {**choices(command.overrides), **command.choices}


def _chosen_as(run: RunFolder, wanted: Mapping[str, str]) -> bool:
    """Return whether a run made these choices."""
    if not wanted:
        return True
    try:
        return wanted.items() <= chosen(read_command(run)).items()
    except LabrlError:
        return False


def _runs() -> Iterable[RunFolder]:
    """Return every run in ./runs, including those of experiments, without damaged ones."""
    for marker in (*RUNS.glob(f"*/{MARKER}"), *RUNS.glob(f"*/*/{MARKER}")):
        try:
            yield RunFolder.open(marker.parent)
        except LabrlError:
            continue


def _named(path: Path, verb: Verb) -> RunFolder:
    override = _override(verb)
    if (path / MARKER).exists() or RunFolder(path).has_lost_marker:
        return RunFolder.open(path, rebuilt=verb != "resume")
    if (path.parent / MARKER).exists():
        raise InputError(
            f"{path} is part of a run: name the run folder, {path.parent}", code="usage", key=override
        )
    if is_experiment(path):
        whole = f"resume all of it with labrl -m +resume={path}, or " if verb == "resume" else ""
        raise InputError(
            f"{path} is an experiment: {whole}{_trials_of(path, verb)}", code="usage", key=override
        )
    trials = sorted(marker.parent for marker in path.glob(f"*/{MARKER}"))
    if trials:
        listed = "\n".join(f"  {trial}" for trial in trials)
        raise InputError(
            f"{path} contains several runs: name one of them\n{listed}", code="usage", key=override
        )
    guess = (
        near(path, [run.path for run in _runs()])
        or f" Runs lie in {RUNS}/, and `latest` is the newest there."
    )
    raise InputError(
        f"{path} is not a run folder of labrl: it contains no {MARKER}.{guess}",
        code="not-found",
        key=str(path),
    )


def choices(edits: Sequence[str]) -> dict[str, str]:
    """Option by group, of the overrides that choose one; without those that only watch."""
    pairs = (override.split("=", 1) for override in edits if "=" in override)
    return {
        name: value
        for name, value in pairs
        if not is_hydras(name) and not traits(name).resume and (config_folder() / name).is_dir()
    }


def is_hydras(override: str) -> bool:
    """Return whether an override of the command line is for Hydra, not for a trial."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))
