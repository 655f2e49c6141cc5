"""Tests of the source code: imports follow docs/explanation/architecture.md, and conventions hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "labrl"
FILES = sorted(SOURCE.rglob("*.py"))
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
VOCABULARY = (
    "errors",
    "component",
    "types",
    "analysis.formats",
    "config.keys",
    "config.schema",
    "config.traits",
    "experiment.search.options",
    "dashboards.options",
    "session.options",
    "mistakes.spelling",
    "processes.script",
    "processes.secrets",
)


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text())


def table() -> dict[str, set[str]]:
    """Return the parts that each part may import, according to the page."""
    section = PAGE.split("## Parts and their imports")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*?\|(.*?)\|$", section, re.MULTILINE)
    return {part: set(re.findall(r"`(\w+)`", imports)) for part, imports in rows}


def part_of(module: str) -> str:
    """Return the part to which a module belongs, given its dotted name below labrl."""
    if module.startswith(VOCABULARY) or module == "config":
        return "vocabulary"
    return module.split(".")[0] or "labrl"


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path, types: bool = True) -> Iterator[str]:
    """Yield the absolute names of all imports of a file, including those in functions.

    types: whether to include those under TYPE_CHECKING.
    """
    for node in nodes(parsed(file), types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            for alias in node.names:
                below = SOURCE.joinpath(*(node.module or "").split(".")[1:], alias.name)
                is_module = below.is_dir() or below.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module or ""


def nodes(node: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree; types: whether to include those under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if types or not isinstance(child, ast.If) or "TYPE_CHECKING" not in ast.unparse(child.test):
            yield child
            yield from nodes(child, types)


def circles() -> set[frozenset[str]]:
    """Return each set of files in which every file imports every other one, directly or through others."""
    files = {module_of(file): file for file in FILES}
    graph = {
        module: {name.removeprefix("labrl").removeprefix(".") for name in imports(file, types=False)}
        & set(files)
        for module, file in files.items()
    }
    reached = {module: reachable(module, graph) for module in graph}
    return {
        frozenset({module, *(other for other in others if module in reached[other])})
        for module, others in reached.items()
        if module in others
    }


def imported_parts(file: Path) -> set[str]:
    names = (name for name in imports(file) if name == "labrl" or name.startswith("labrl."))
    return {part_of(name.removeprefix("labrl").removeprefix(".")) for name in names}


def reachable(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Return everything that `start` imports, directly or through others."""
    found: set[str] = set()
    left = [start]
    while left:
        for other in graph[left.pop()] - found:
            found.add(other)
            left.append(other)
    return found


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.extended
def test_files_import_only_what_their_part_may() -> None:
    allowed = table()
    parts = {file: part_of(module_of(file)) for file in FILES}
    forbidden = {
        named(file): found
        for file, part in parts.items()
        if (found := imported_parts(file) - allowed[part] - {part})
    }
    assert not forbidden, "docs/explanation/architecture.md does not allow these imports"


def test_page_names_every_part() -> None:
    parts = {part_of(module_of(file)) for file in FILES}
    assert set(table()) == parts, "docs/explanation/architecture.md and src/labrl have different parts"


def test_picture_shows_only_arrows_of_the_table() -> None:
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text()
    arrows = re.findall(r'<path id="(\w+)-(\w+)"', picture)
    assert len(arrows) == picture.count("<path") > 10
    assert not [(a, b) for a, b in arrows if b not in table()[a]]


def test_imports_of_parts_have_no_cycle() -> None:
    cycles = [part for part in table() if part in reachable(part, table())]
    assert not cycles


def test_files_have_no_circle_of_imports() -> None:
    """Check files as the table checks parts. An import inside a function counts, too."""
    assert not circles()


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("agents", "envs session run trial experiment config analysis"),
        ("envs", "agents networks memory session run trial experiment"),
        ("analysis", "agents networks memory envs session trial experiment"),
    ],
)
def test_table_keeps_agents_environments_and_analysis_apart(part: str, forbidden: str) -> None:
    assert not reachable(part, table()) & set(forbidden.split())


OPENS = re.compile(r"(.*\.)?(read_text|write_text|FileHandler|open|fdopen|NamedTemporaryFile|TemporaryFile)")
TEXT, BINARY = re.compile(r"(mode=)?'[rwaxt+]+'"), re.compile(r"'[rwaxt+]*b[rwaxt+]*'")
"""Modes of files, as arguments."""


def without_encoding(file: Path) -> Iterator[int]:
    """Yield the lines that read, write or open text in the encoding of the locale."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call) and OPENS.fullmatch(name := ast.unparse(node.func)):
            given = ", ".join(map(ast.unparse, [*node.args, *node.keywords]))
            # Path.open has no argument or a mode; others are methods of labrl's classes.
            other = name == "os.open" or (name.endswith(".open") and given and not TEXT.match(given))
            if not other and "encoding=" not in given and not BINARY.search(given):
                yield node.lineno


def test_text_files_are_opened_as_utf8() -> None:
    """Check that every call gives an encoding.

    Without one, reports failed with a UnicodeDecodeError under LC_ALL=C. Ruff's rule PLW1514 finds a third of
    such calls only.
    """
    without = {named(file): lines for file in FILES if (lines := list(without_encoding(file)))}
    assert not without, "these lines do not pass encoding='utf-8'"
