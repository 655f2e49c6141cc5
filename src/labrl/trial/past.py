"""An earlier run: found by name or as the latest, with its configuration and differences from new values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.keys import (
    ABSENT,
    Change,
    changes,
    contradictions,
    is_hydras,
    typed_override,
    walk,
    written,
)
from labrl.errors import DamagedFileError, InputError, LabrlError
from labrl.storage.provenance import (
    Command,
    as_yaml,
    damages,
    differences,
    known_provenance,
    read_command,
    recorded_config,
    write_provenance,
)
from labrl.storage.run_folder import PROVENANCE, RunFolder

_MEND = f"Correct it, or delete it: {PROVENANCE} has the configuration that was run"


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

    def record(
        self, run: RunFolder, plain: Mapping[str, Any], command: Command, resume: int | None = None
    ) -> tuple[dict[str, Any], list[str] | None]:
        """Write into `run` the provenance of what continues this run; resume: its number there.

        Returns the provenance, and what differs from the code, the packages and the machine of the past; None
        where those are not known.
        """
        before = known_provenance(self.folder)
        now = write_provenance(run, plain, command, resume=resume)
        return now, differences(before, now) if before else None

    def check(
        self, cfg: DictConfig, plain: Mapping[str, Any], asked: str, edited: Collection[str] = ()
    ) -> None:
        """Raise InputError, with a table, where other values contradict the past of the run.

        cfg: with them, references to other keys still in it; plain: the same resolved; asked: who wants it;
        edited: keys that were changed in `config.yaml`.
        """
        contradicting = contradictions(self.changes(plain))
        if contradicting:
            told = refusal(contradicting, unresolved(cfg), edited)
            raise InputError(f"{asked}: {told}", code="changed-past", key=contradicting[0].key)

    @property
    def overrides(self) -> list[str]:
        """Return the command line that composes the run again, wherever its folder may lie."""
        overrides = [override for override in self.command.overrides if not is_hydras(override)]
        if not any(override.startswith("seed=") for override in overrides):
            overrides.append(f"seed={self.config['seed']}")
        return overrides


def unresolved(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain data, with references to other keys still in it."""
    plain = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


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


def refusal(contradicting: Sequence[Change], now: Mapping[str, Any], edited: Collection[str] = ()) -> str:
    """Return a table of the keys with their old and new values, and what to type instead.

    now: the new configuration, `unresolved`, so that the keys that follow another one can be told from those
    that were typed; edited: those that were changed in the run's `config.yaml`.
    """
    lines = ["with these values the past of the run would have been another one:"]
    lines += table([("key", "then", "now", ""), *(row_of(one, now, edited) for one in contradicting)])
    pinned = {one.key: one.old for one in contradicting if one.pinnable}
    return "\n".join([*lines, *ways_out(contradicting, [typed_override(*pin) for pin in pinned.items()])])


def described(change: Change) -> str:
    """Return key, old and new value in a line."""
    return f"{change.key} {written(change.old)} -> {written(change.new)}"


def row_of(change: Change, now: Mapping[str, Any], edited: Collection[str] = ()) -> tuple[str, str, str, str]:
    """Return a row of the table: key, old and new value, and why it is new; now, edited: as in `refusal`."""
    follows = re.fullmatch(r"\$\{([\w.]+)\}", str(dict(walk(now)).get(change.key)))
    source = "edited in config.yaml" if change.key in edited else f"follows {follows[1]}" if follows else ""
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
