"""Let the test processes find out only once what each run records about its code and machine."""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path
from typing import Any

from labrl.storage import provenance

ROOT = Path(__file__).parents[1]


def remember_surroundings() -> None:
    """Let runs record labrl's own repository and the graphics cards as the first of them finds them.

    Git is not asked either where no folder above has a repository, such as those of tests. Nothing is forced
    onto the disk: that data survives a power failure is no promise that a test could check.
    """
    describe, ask = provenance.describe_repository, provenance._git
    describe_once, ask_once, path = functools.cache(describe), functools.cache(ask), os.environ.get("PATH")

    def described(root: Path) -> tuple[dict[str, Any], str]:
        return copy.deepcopy(describe_once(root)) if root == ROOT else describe(root)

    def asked(folder: Path, *arguments: str) -> str | None:
        if folder == ROOT / "src" / "labrl" and os.environ.get("PATH") == path:
            return ask_once(folder, *arguments)
        known = any((parent / ".git").exists() for parent in (folder, *folder.parents))
        return ask(folder, *arguments) if known else None

    provenance.describe_repository = described
    provenance._git = asked
    provenance._gpus = functools.cache(provenance._gpus)
    os.fsync = os.fstat  # type: ignore[assignment]  # which refuses the same descriptors


def look_around() -> None:
    """Find out all that is remembered."""
    for folder in provenance._repositories().values():
        provenance.describe_repository(folder)
    provenance.installed_packages()
    provenance.describe_machine()
