"""A user's own YAML files, looked at before Hydra reads them: its complaints name neither file nor line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from labrl.errors import InputError

_MUST_SAY = ("agent", "env")
"""Groups in which a file without a key means nothing."""


def check_own_files(config_dir: str | os.PathLike[str] | None, words: Sequence[str]) -> None:
    """Raises InputError for a file below `config_dir` that `words` choose and that cannot be read."""
    if config_dir is None:
        return
    for word in words:
        group, _, value = word.lstrip("+").partition("=")
        for option in value.strip("[]").split(","):
            _check(Path(config_dir), group.partition("@")[0], option.strip(), [])


def _check(folder: Path, group: str, option: str, above: list[Path]) -> None:
    """Of one option, and of those on which it builds. above: the files that led here."""
    path = folder / group / f"{option}.yaml"
    if not option or not os.path.isfile(path):
        return
    if path in above:
        chain = " -> ".join(map(str, [*above, path]))
        raise InputError(
            f"{path}: its defaults lead back to itself: {chain}", code="contradiction", key=str(path)
        )
    content = _read(path)
    if content is None and group not in _MUST_SAY:
        return
    if not isinstance(content, dict):
        held = {list: "a list", type(None): "nothing"}.get(type(content), "a value")
        raise InputError(
            f"{path}: it holds {held}, and must hold keys, such as `name: value`.",
            code="type",
            key=str(path),
        )
    for group_below, below in _defaults(content, group):
        _check(folder, group_below, below, [*above, path])


def _read(path: Path) -> Any:
    """What a file holds. Raises InputError with the line in which it is wrong."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: its byte {error.start} is not UTF-8. Save the file as UTF-8 text.",
            code="syntax",
            key=str(path),
        ) from None
    try:
        content = yaml.safe_load(text)
        OmegaConf.create(text)  # which knows of keys that are there twice
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(
            f"{path}{line}: {error.problem or error.context}. (YAML: `key: value`, indented by blanks, each "
            "key once.)",
            code="syntax",
            key=str(path),
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}", code="syntax", key=str(path)) from None
    return content


def _defaults(content: dict[Any, Any], group: str) -> Iterator[tuple[str, str]]:
    """Groups and options of which the list `defaults` of a file in `group` is made."""
    entries = content.get("defaults")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str):
            place, option = "", entry
        elif isinstance(entry, dict) and len(entry) == 1 and isinstance(next(iter(entry.values())), str):
            ((place, option),) = entry.items()
        else:
            continue
        place = re.sub(r"^(override|optional) ", "", str(place)).partition("@")[0]
        if not isinstance(entry, str):
            yield (place[1:] if place.startswith("/") else f"{group}/{place}".strip("/")), option
        elif option != "_self_":
            yield ("", option[1:]) if option.startswith("/") else (group, option)
