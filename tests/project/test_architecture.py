"""Tests of the source code: imports follow docs/explanation/architecture.md, and conventions hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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


def test_agents_import_no_environments_sessions_or_files() -> None:
    assert not reachable("agents", table()) & {
        "envs",
        "session",
        "run",
        "trial",
        "experiment",
        "config",
        "analysis",
    }
    learners = [file for file in FILES if part_of(module_of(file)) in {"agents", "memory", "networks"}]
    learners.remove(SOURCE / "memory" / "workspace.py")  # the one place where arrays are in files
    for file in learners:
        assert not {name.split(".")[0] for name in imports(file)} & {"os", "pathlib", "shutil", "tempfile"}
        calls = [n for n in ast.walk(parsed(file)) if isinstance(n, ast.Call)]
        assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "open"], named(file)


def test_environments_import_no_agents() -> None:
    assert not reachable("envs", table()) & {
        "agents",
        "networks",
        "memory",
        "session",
        "run",
        "trial",
        "experiment",
    }


def test_clock_seeding_step_and_schedules_import_no_part() -> None:
    assert not table()["clock"] | table()["seeding"] | table()["step"] | table()["schedules"]


def test_analysis_imports_only_runs_and_vocabulary() -> None:
    assert reachable("analysis", table()) <= {"run", "vocabulary", "schedules"}


def test_only_the_command_line_reads_sys_argv() -> None:
    readers = set()
    for file in FILES:
        for node in ast.walk(parsed(file)):
            is_attribute = isinstance(node, ast.Attribute) and node.attr == "argv"
            if (is_attribute and isinstance(node.value, ast.Name) and node.value.id == "sys") or (
                isinstance(node, ast.ImportFrom)
                and node.module == "sys"
                and any(alias.name == "argv" for alias in node.names)
            ):
                readers.add(module_of(file))
    assert readers <= {"cli"}


def without_encoding(file: Path) -> Iterator[int]:
    """Yield the lines that read, write or open text in the encoding of the locale."""
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        owner = getattr(getattr(node.func, "value", None), "id", "")
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
        if name in ("read_text", "write_text", "FileHandler"):
            yield node.lineno
        elif name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile") and (owner, name) != (
            "os",
            "open",
        ):
            # Path.open, or a method of one of labrl's classes
            method = name == "open" and isinstance(node.func, ast.Attribute)
            modes = [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
            modes += node.args[0 if method else 1 :][:1]
            mode = getattr(modes[0], "value", None) if modes else None if method and node.args else "r"
            if isinstance(mode, str) and re.fullmatch("[rwaxt+]+", mode):
                yield node.lineno


def test_text_files_are_opened_as_utf8() -> None:
    """Check that every call gives an encoding.

    Without one, reports failed with a UnicodeDecodeError under LC_ALL=C. Ruff's rule PLW1514 finds a third of
    such calls only.
    """
    without = {named(file): lines for file in FILES if (lines := list(without_encoding(file)))}
    assert not without, "these lines do not pass encoding='utf-8'"


def test_no_test_file_uses_another() -> None:
    """What several test files use is in tests/support, which is in the path of every process."""
    files = {file.stem: file for file in (ROOT / "tests").rglob("test_*.py")}
    named = re.compile(r"(?:from|import) (test_\w+)|\b(test_\w+)\.[A-Z]")
    for stem, file in files.items():
        used = {one or other for one, other in named.findall(file.read_text())}
        assert not used & files.keys() - {stem}, file


def test_input_errors_have_a_code() -> None:
    """Check that each InputError has a code, which tests and programs use instead of its message."""
    raised = [
        (named(file), node.lineno, {keyword.arg for keyword in node.keywords})
        for file in FILES
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError"
    ]
    without = [(file, line) for file, line, keywords in raised if "code" not in keywords]
    assert not without, "these lines do not pass code=... with one of the codes in labrl.errors"


@pytest.mark.extended
def test_importing_an_agent_loads_few_modules() -> None:
    program = "import sys, labrl.agents.ppo; print(*[m for m in sys.modules if m.split('.')[0] == 'labrl'])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(loaded.stdout.split()) <= 20


def test_getattr_and_hasattr_are_rare() -> None:
    """Check that labrl's parts declare their capabilities, so that only foreign objects are probed."""
    probe = r"(?:get|has)attr\((?!self\._?network, name\))"  # wrappers delegate to the network
    probes = [line for file in FILES for line in re.findall(probe, file.read_text())]
    assert len(probes) <= 10


def test_commands_that_install_an_extra_come_from_one_function() -> None:
    """Regression test: messages named labrl[<extra>], which no package index has."""
    typed = [named(file) for file in FILES if "labrl[" in file.read_text(encoding="utf-8")]
    assert typed == ["src/labrl/errors.py"], "use InputError.not_installed or install_command"
