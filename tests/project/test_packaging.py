"""Tests of the package: the wheel, installed commands, dependencies, and the list of make targets."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
TOOLS = [one for group in PYPROJECT["dependency-groups"].values() for one in group if isinstance(one, str)]
"""Requirements of those who change labrl."""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the PYTHON* variables, which could point it to the checkout."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | environment
    completed = subprocess.run(
        list(map(str, command)), cwd=cwd, env=variables, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files of the checkout that are needed to build the wheel."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    for folder in ("src", "configs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """Build the wheel from the sdist, as `python -m build` does."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", source / "dist", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment outside the checkout; return the folder of its commands."""
    return environment_with(wheel, tmp_path_factory.mktemp("fresh") / "venv")


def environment_with(package: Path | str, home: Path, *how: str) -> Path:
    """Create an environment, install `package` into it, and return the folder of its commands.

    A path file makes the dependencies of the tests' environment importable: installing PyTorch again would
    take minutes and prove nothing about the wheel. Python does not read further path files in the folders
    that a path file lists, so the editable labrl of the checkout stays invisible.
    """
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    packages = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=home).stdout.strip()
    )
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", *how, package, cwd=home.parent)
    return home / "bin"


def test_wheel_contains_the_package_and_every_configuration(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "labrl"
    files = [f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    assert {f"labrl/{f.relative_to(package)}" for f in files} <= names
    groups = {str(f.relative_to(ROOT)) for f in (ROOT / "configs").rglob("*.yaml")}
    own = {str(f.relative_to(package)) for f in files if f.suffix == ".yaml"}
    assert {name.removeprefix("labrl/") for name in names if name.endswith(".yaml")} == groups | own
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_installed_commands_run_and_train(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import labrl; print(labrl.__file__)", cwd=tmp_path).stdout
    assert Path(where.strip()).is_relative_to(installed.parent), "the checkout is imported"
    assert "env=" in run(installed / "labrl", "--help", cwd=tmp_path).stdout
    assert PROJECT["version"] in run(installed / "labrl", "--version", cwd=tmp_path).stdout
    assert "pong" in run(installed / "labrl-envs", "pong", cwd=tmp_path).stdout
    run(installed / "labrl", "meta=dev", "seed=1", cwd=tmp_path, WANDB_MODE="disabled")
    (rows,) = tmp_path.rglob("train.csv")
    assert len(rows.read_text().splitlines()) > 1


def test_editable_install_reads_the_checkouts_yaml(source: Path, tmp_path: Path) -> None:
    commands = environment_with(source, tmp_path / "venv", "--no-build-isolation", "--editable")
    file = source / "configs" / "agent" / "random.yaml"
    file.write_text(f"{file.read_text()}\nname_of_this_test: 7\n")
    printed = run(commands / "labrl", "agent=random", "--cfg", "job", cwd=tmp_path).stdout
    assert "name_of_this_test: 7" in printed
    assert not list((tmp_path / "venv").rglob("config.yaml")), (
        "the install copied YAML files, which could go stale"
    )


@pytest.mark.parametrize("editable", [True, False], ids=["editable", "folder"])
def test_command_that_a_message_gives_for_an_extra_installs_it(
    editable: bool, source: Path, tmp_path: Path
) -> None:
    """Regression test: messages gave a name that no package index has."""
    how = ("--no-build-isolation", *(("--editable",) if editable else ()))
    python = environment_with(source, tmp_path / "venv", *how) / "python"
    code = "from labrl.errors import install_command; print(install_command('export'))"
    typed = shlex.split(run(python, "-c", code, cwd=tmp_path).stdout)
    assert typed[:2] == ["pip", "install"]
    assert "[export]" in typed[-1]
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    checks = ("--dry-run", "--no-deps", "--no-index", "--no-build-isolation")
    assert "Would install labrl" in run(*pip, *typed[1:], *checks, cwd=tmp_path).stdout


def test_every_dependency_is_pinned_in_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = chain.from_iterable(PROJECT["optional-dependencies"].values())
    wanted = [*PROJECT["dependencies"], *extras, *TOOLS]
    names = {re.split(r"[\[<>=~! ]", requirement)[0].lower() for requirement in wanted}
    assert names <= set(pins)
    assert "+" not in pins["torch"], (
        "the pin of torch has a local version (such as +cpu), which other machines cannot install"
    )


IMPORTED_AS = {
    "hydra-core": "hydra",
    "hydra-optuna-sweeper": "hydra_plugins",
    "pyyaml": "yaml",
    "gymnasium[classic-control]": "pygame",  # pygame is a dependency of this extra
}
"""Names of the modules of requirements that are imported under another name."""


def test_every_imported_package_is_a_dependency_or_in_an_extra() -> None:
    wanted = [*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values())]
    # Only a notebook's process imports IPython, which it runs in.
    known = {"labrl", "IPython"}
    for requirement in wanted:
        named = re.split(r"[<>=~! ]", requirement)[0].lower()
        bare = named.partition("[")[0]
        known |= {
            bare.replace("-", "_"),
            *(IMPORTED_AS[name] for name in (named, bare) if name in IMPORTED_AS),
        }
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
            assert roots <= known, f"{file.relative_to(ROOT)} imports {sorted(roots - known)}"


def test_declared_extras_are_those_of_the_documentation_and_messages() -> None:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    for folder, suffix in (("docs", "*.md"), ("src", "*.py"), ("configs", "*.yaml")):
        files += (ROOT / folder).rglob(suffix)
    installed = re.compile(r"(?:\.|\blabrl)\[([a-z0-9, ]+)\]")  # such as .[box2d,mujoco]
    named = {
        extra.strip()
        for file in files
        for extras in installed.findall(file.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    extras = PROJECT["optional-dependencies"]
    assert named == set(extras)
    assert all(extras.values()), "an extra is empty"
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras)


SHORTER = {
    "git clone <URL of this repository> labrl": f"git clone --quiet {ROOT} labrl",
    "env.max_frame=6e4": "env.max_frame=2e4",
    "env=lunar_lander ": "env=lunar_lander env.max_frame=2e4 ",
    "meta.max_wall=60": "meta.max_wall=10",
    "meta=fast_atari env=pong": "meta=fast_atari env=pong meta.max_session=1 meta.max_wall=10",
}
"""Parts of README's commands, and what the test runs instead."""


@pytest.mark.slow
def test_blocks_of_the_readme_run_one_after_the_other_in_a_fresh_clone(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    script = "set -e\n" + "".join(blocks)
    for shown, short in SHORTER.items():
        assert shown in script, shown
        script = script.replace(shown, short)
    script = script.replace("make run ", f"make run PYTHON={sys.executable} ")
    run("bash", "-c", script, cwd=tmp_path, WANDB_MODE="disabled")
    assert (tmp_path / "labrl" / "runs" / "first" / "report.html").exists()
    assert (tmp_path / "labrl" / "runs" / "fork" / "report.html").exists()
