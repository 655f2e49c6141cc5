"""Test of docs/reference/: the generated pages agree with the code and the YAML files."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_generated_reference_is_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "generate_reference.py"))["pages"]()
    home = DOCS / "reference"
    files = [*(home / "keys").glob("*.md"), home / "python.md"]
    written = {str(file.relative_to(home)): file.read_text(encoding="utf-8") for file in files}
    stale = sorted(name for name in pages.keys() | written.keys() if pages.get(name) != written.get(name))
    assert not stale, f"run `make reference`; out of date: {', '.join(stale)}"
