"""The configuration of an earlier run, and how new values differ from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.keys import (
    ABSENT,
    RECORDED,
    Change,
    contradictions,
    is_hydras,
    typed_override,
    walk,
    written,
)
from labrl.errors import DamagedFileError, InputError
from labrl.run.folder import PROVENANCE
from labrl.run.provenance import as_yaml
from labrl.run.run import Run
from labrl.run.trust import check_recorded

_ORIGINAL = f"The configuration that was run is in {PROVENANCE}, under `config`"


def check_past(run: Run, composes: bool = False) -> Run:
    """Return an earlier run after a check of its description.

    composes: whether its overrides are composed again. Raises DamagedFileError if its folder is damaged or
    incomplete, and InputError if someone else has written it and it names code that is not part of labrl.
    """
    config = run.read_config()
    check_recorded(run, config, [one for one in run.overrides if not is_hydras(one)], composes)
    return run


def edited_config(run: Run) -> dict[str, Any]:
    """Return the configuration in `config.yaml` of a run, which the user may have edited.

    Raises DamagedFileError if the file is missing, cannot be read or lacks keys, and InputError if
    someone else has edited it so that it names code that is not part of labrl.
    """
    path = run.config_yaml
    try:
        text = path.read_text(encoding="utf-8")
        if text == as_yaml(run.config):
            return run.config
        edited = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
        if not isinstance(edited, dict) or not edited:
            raise ValueError("it contains no keys")
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"{path} is missing: restore it from a copy. {_ORIGINAL}", key=str(path)
        ) from error
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        told = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            told = f"line {error.problem_mark.line + 1}: {error.problem}"
        raise DamagedFileError(f"{path} cannot be read: {told}. {_ORIGINAL}", key=str(path)) from None
    plain = {str(key): value for key, value in edited.items()}
    found = run.changes(plain)
    gone = [change.key for change in found if change.new is ABSENT]
    if gone:
        more = f" and {len(gone) - 5} more keys" if len(gone) > 5 else ""
        new = [change.key for change in found if change.old is ABSENT]
        has = f" and has {', '.join(new[:5])}, which the run did not have" if new else ""
        raise DamagedFileError(f"{path} lacks {', '.join(gone[:5])}{more}{has}. {_ORIGINAL}", key=str(path))
    check_recorded(run, plain)
    return plain


def check_changes(
    run: Run, cfg: DictConfig, plain: Mapping[str, Any], asked: str, edited: Collection[str] = ()
) -> None:
    """Raise InputError with a table if new values conflict with how the run was trained so far.

    cfg: the new configuration with its interpolations; plain: the same, resolved; asked: the override
    that names the run; edited: keys that were changed in `config.yaml`.
    """
    contradicting = contradictions(run.changes(plain))
    if contradicting:
        told = refusal(contradicting, unresolved(cfg), edited)
        raise InputError(f"{asked}: {told}", code="changed-past", key=contradicting[0].key)


def overrides_of(run: Run) -> list[str]:
    """Return the overrides that compose a run again, without those for Hydra."""
    from labrl.config.presets import is_labrls  # imports Hydra

    overrides = [override for override in run.overrides if not is_hydras(override)]
    if not any(override.startswith("seed=") for override in overrides):
        overrides.append(f"seed={run.config['seed']}")
    recorded = run.provenance.get("choices", {})
    preset, *own = (recorded.get(group, "") for group in ("preset", "agent", "env"))
    # Agents and environments of the user inherited no presets when the run was new.
    if preset.startswith(RECORDED) and not all(map(is_labrls, ("agent", "env"), own)):
        overrides.append(f"preset={preset}")
    return overrides


def unresolved(cfg: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain data, with its interpolations."""
    plain = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def completed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run, completed by keys that are newer than the run.

    Only keys of `meta` and `start_from` are filled in, because they do not change how an agent acts.
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
    """Return a table of keys with their old and new values, and what to type instead.

    now: the new configuration, `unresolved`, which shows the keys that follow another key; edited: keys that
    were changed in the run's `config.yaml`.
    """
    lines = ["these values contradict the past of the run:"]
    lines += table([("key", "then", "now", ""), *(row_of(one, now, edited) for one in contradicting)])
    pinned = {one.key: one.old for one in contradicting if one.pinnable}
    return "\n".join([*lines, *ways_out(contradicting, [typed_override(*pin) for pin in pinned.items()])])


def described(change: Change) -> str:
    """Return the key with its old and new value in one line."""
    return f"{change.key} {written(change.old)} -> {written(change.new)}"


def row_of(change: Change, now: Mapping[str, Any], edited: Collection[str] = ()) -> tuple[str, str, str, str]:
    """Return the key, its old and new value, and why it changed. now, edited: as in `refusal`."""
    follows = re.fullmatch(r"\$\{([\w.]+)\}", str(dict(walk(now)).get(change.key)))
    source = "edited in config.yaml" if change.key in edited else f"follows {follows[1]}" if follows else ""
    return change.key, written(change.old), written(change.new), source


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def ways_out(contradicting: Sequence[Change], pins: Sequence[str]) -> Iterator[str]:
    """Yield lines that say what to type instead. pins: overrides that keep the old values."""
    if pins:
        yield f"To keep the old values: {' '.join(pins)}"
    if not all(change.pinnable for change in contradicting):
        yield "A key without an old or a new value belongs to another option or another version of labrl."
    yield "To continue anyway, which is recorded in the run folder: +force=true"


def say_differences(differs: Sequence[str]) -> None:
    """Print why the continuation may not be exact. differs: from the past."""
    from labrl.trial.summary import say

    if differs:
        say(f"This may not be exact bit for bit, because of differences since then: {'; '.join(differs)}")
