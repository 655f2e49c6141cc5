"""Commands and examples of configuration.md, experiments.md, asynchronous.md and extending.md are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from exact_cases import differences

import labrl
from labrl.cli import main
from labrl.errors import WRONG_INPUT

DOCS = Path(__file__).parent.parent / "docs"
QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=1"]


def commands(page: str) -> list[str]:
    """The indented command lines of a page that begin with labrl."""
    text = (DOCS / page).read_text()
    return [line.strip().partition(" #")[0] for line in re.findall(r"^    (labrl .*)$", text, re.MULTILINE)]


def words_of(command: str) -> list[str]:
    return [word.replace("docs/examples", str(DOCS / "examples")) for word in shlex.split(command)[1:]]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", commands("extending.md"))
def test_commands_of_extending_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words_of(command), *QUIET]) == 0, capsys.readouterr().err
    if "episode_log" in command:
        (log,) = Path("runs").rglob("episodes.txt")
        frames = [int(line.split()[0]) for line in log.read_text().splitlines()]
        assert frames[-1] >= 4000
        assert len(frames) == 8


def test_the_agent_in_extending_is_its_file() -> None:
    shown = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    assert (DOCS / "examples" / "baseline_reinforce.py").read_text() in shown


def test_the_agent_in_extending_resumes_exactly() -> None:
    agent = ["--config-dir", str(DOCS / "examples"), "agent=baseline_reinforce", "env.num_envs=4", *QUIET]
    assert main([*agent, "env.max_frame=6000", "hydra.run.dir=runs/whole"]) == 0
    assert main([*agent, "env.max_frame=3100", "hydra.run.dir=runs/parts"]) == 0
    assert main(["+resume=runs/parts", "env.max_frame=6000"]) == 0
    assert differences(Path("runs/parts"), Path("runs/whole")) == []


def composing(page: str) -> list[str]:
    """Those commands of a page that begin something new."""
    return [command for command in commands(page) if "+resume" not in command]


PAGES = ("configuration.md", "experiments.md", "asynchronous.md")


@pytest.mark.parametrize("command", [command for page in PAGES for command in composing(page)])
def test_commands_of_configuration_compose(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(command)
    if "-m" in words:
        words.remove("-m")
        words = [word.partition(",")[0] for word in words]
    if "--cfg" not in words and "--info" not in words:
        words = ["--cfg", "job", *words]
    assert main(words) == 0, capsys.readouterr().err


def test_python_examples_of_extending_run(capsys: pytest.CaptureFixture[str]) -> None:
    *_, example = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    example = example.replace("docs/examples", str(DOCS / "examples"))
    scope: dict[str, object] = {}
    exec(example, scope)
    result = scope["result"]
    assert isinstance(result, labrl.trial.trial.TrialResult)
    assert result.exit_code == 0


def test_misspelt_option_of_ones_own_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config-dir", str(DOCS / "examples"), "agent=hill_climbing"]
    assert main([*words, "+agent.nois=1"]) == WRONG_INPUT
    told = capsys.readouterr().err
    assert "agent.nois" in told
    assert "agent.noise?" in told


def test_own_agent_refuses_environments_that_it_cannot_play(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config-dir", str(DOCS / "examples"), "agent=hill_climbing", "env=pendulum"]
    assert main([*words, *QUIET]) == WRONG_INPUT
    assert "agent=hill_climbing" in capsys.readouterr().err
