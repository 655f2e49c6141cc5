"""A user's own YAML files, checked before Hydra reads them: its errors do not always name the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from labrl.errors import InputError

_NEVER_EMPTY = ("agent", "env")
"""Groups in which a file without keys is a mistake."""


def check_own_files(config_dir: str | os.PathLike[str] | None, overrides: Sequence[str]) -> None:
    """Raise InputError for an unreadable file below `config_dir` that `overrides` choose or build on."""
    for word in overrides if config_dir is not None else ():
        group, _, value = word.lstrip("+").partition("=")
        for option in value.strip("[]").split(","):
            _check(Path(str(config_dir)), group.partition("@")[0], option.strip(), ())


def _check(folder: Path, group: str, option: str, above: tuple[Path, ...]) -> None:
    """Check the file of one option and those on which it builds. above: the files that build on it."""
    path = folder / group / f"{option}.yaml"
    if not option or not os.path.isfile(path):
        return
    if path in above:
        chain = " -> ".join(map(str, [*above, path]))
        raise InputError(f"{path}: its defaults lead back to itself: {chain}", code="syntax", key=str(path))
    content = _read(path)
    if content is None and group not in _NEVER_EMPTY:
        return
    if not isinstance(content, dict):
        held = {list: "a list", type(None): "nothing"}.get(type(content), "a value")
        raise InputError(
            f"{path}: it contains {held} instead of keys. Write `name: value`", code="syntax", key=str(path)
        )
    for group_below, below in _defaults(content, group):
        _check(folder, group_below, below, (*above, path))


def _read(path: Path) -> Any:
    """The content of a file. Raises InputError with the line in which it is wrong."""
    try:
        text = path.read_bytes().decode()
        OmegaConf.create(text)  # which refuses a key that is there twice
        return yaml.safe_load(text)
    except UnicodeDecodeError as error:
        where, reason = f"byte {error.start}", "not UTF-8. Save the file as UTF-8 text"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "YAML"
        reason = f"{error.problem or error.context}. Write `key: value`, indented by blanks, each key once"
    except Exception as error:  # OmegaConf's own, such as for an interpolation that does not end
        where, reason = "YAML", str(error).splitlines()[0]
    raise InputError(f"{path}, {where}: {reason}", code="syntax", key=str(path))


def _defaults(content: dict[Any, Any], group: str) -> Iterator[tuple[str, str]]:
    """Groups and options of which the list `defaults` of a file in `group` is made."""
    entries = content.get("defaults")
    for entry in entries if isinstance(entries, list) else ():
        place, option = next(iter(entry.items()), ("", "")) if isinstance(entry, dict) else (None, entry)
        if not isinstance(option, str) or option == "_self_":
            continue
        if place is None:
            yield ("", option[1:]) if option.startswith("/") else (group, option)
        else:
            below = re.sub(r"^(override|optional) ", "", str(place)).partition("@")[0]
            yield (below[1:] if below.startswith("/") else f"{group}/{below}".strip("/")), option
