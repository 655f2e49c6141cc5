"""Test of the generated parts of docs/: they agree with the code, the YAML files and the measurements."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.extended
def test_generated_reference_is_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "generate_reference.py"))["pages"]()
    home = DOCS / "reference"
    files = [*(home / "keys").glob("*.md"), home / "python.md"]
    written = {str(file.relative_to(home)): file.read_text(encoding="utf-8") for file in files}
    stale = sorted(name for name in pages.keys() | written.keys() if pages.get(name) != written.get(name))
    assert not stale, f"run `make reference`; out of date: {', '.join(stale)}"


def test_generated_pages_and_blocks_are_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "generate_pages.py"))["pages"]()
    stale = [
        str(file) for file, text in made if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"run `make reference`; out of date: {', '.join(stale)}"
