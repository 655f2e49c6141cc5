"""Tests of +rerun: a run is repeated in a new folder and compared with the original."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from exact_cases import rows

import labrl
from labrl.agents.make import named_agents
from labrl.cli import main
from labrl.commands import find_past
from labrl.config.compose import resolve
from labrl.errors import WRONG_INPUT, LabrlError
from labrl.run.signature import Trust, trusting
from labrl.trial.command import command_of

QUICK = ["agent=random", "env.max_frame=512", "meta.log_frequency=128", "meta.progress=false"]
QUICK += ["meta.tensorboard=false"]


pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.extended]


@pytest.fixture
def first(capsys: pytest.CaptureFixture[str]) -> Path:
    """Make the original run, without a seed, so that a random one is drawn."""
    assert main([*QUICK, "hydra.run.dir=runs/first"]) == 0
    capsys.readouterr()
    return Path("runs/first")


def test_equal_rerun_is_recorded_as_equal(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("runs/first", "runs/first/config.yaml"):
        assert main([f"+rerun={place}", "hydra.run.dir=again"]) == 0
        assert str(first.absolute()) in capsys.readouterr().out
        info = json.loads(Path("again/run.json").read_text())
        assert (info["rerun_of"], info["equal"], info["status"]) == (str(first.absolute()), True, "finished")
        shutil.rmtree("again")


def test_first_difference_is_reported(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = first / "session_0" / "train.csv"
    lines = table.read_text().splitlines()
    column = lines[0].split(",").index("return_mean")
    cells = lines[3].split(",")
    cells[column] = "12.5"
    table.write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
    assert main(["+rerun=runs/first", "hydra.run.dir=second"]) == 1
    stdout = capsys.readouterr().out
    (line,) = [line for line in stdout.splitlines() if "session_0/train.csv" in line]
    assert all(word in line for word in ("384", "return_mean", "12.5"))
    assert not json.loads(Path("second/run.json").read_text())["equal"]


def test_missing_row_is_reported_as_a_difference(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = first / "session_0" / "eval.csv"
    table.write_text(table.read_text() + table.read_text().splitlines()[1].replace("512", "640") + "\n")
    assert main(["+rerun=runs/first"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "session_0/eval.csv" in line]
    assert "640" in line


def test_incomplete_run_is_compared_up_to_its_last_row(first: Path) -> None:
    table = first / "session_0" / "train.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:3]))
    assert main(["+rerun=latest", "meta.eval_frequency=512", "hydra.run.dir=again"]) == 0
    assert json.loads(Path("again/run.json").read_text())["equal"]


@pytest.mark.parametrize("budget", [300, 1000])
def test_rows_at_the_end_of_a_smaller_budget_are_not_compared(budget: int, first: Path) -> None:
    """Regression test: with another budget, the row at the end of the smaller one counted as a difference."""
    assert main(["+rerun=runs/first", "env.max_frame=720", "hydra.run.dir=runs/smaller"]) == 0
    last = rows(Path("runs/smaller/session_0/train.csv"))[-1]
    assert (last["frame"], last["end"]) == ("720", "budget")
    assert main(["+rerun=runs/smaller", f"env.max_frame={budget}"]) == 0


def test_rerun_with_edits_that_change_the_run_is_refused(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["+rerun=runs/first", "env.num_envs=4"]) == 2
    assert re.search(r"env\.num_envs +8 +4", capsys.readouterr().err)
    assert [path.name for path in Path("runs").iterdir()] == ["first"]


def test_saved_configuration_alone_reproduces_the_run(first: Path) -> None:
    Path("saved.yaml").write_text((first / "config.yaml").read_text())
    assert main(["+rerun=saved.yaml", "hydra.run.dir=again"]) == 0
    for table in ("train", "eval"):
        old, new = (rows(folder / "session_0" / f"{table}.csv") for folder in (first, Path("again")))
        assert new == old
    info = json.loads(Path("again/run.json").read_text())
    assert info.get("equal") is None, "there are no rows beside the file to compare with"


def test_each_published_configuration_is_accepted_and_says_its_command() -> None:
    published = [*(Path(__file__).parents[2] / "docs" / "results" / "configs").glob("*.yaml")]
    assert published
    for file in published:
        assert re.match(rf"# labrl \+rerun=(\S*/)?{file.name}\b", file.read_text())
        with trusting(Trust()):
            past = find_past(command_of([f"+rerun={file}"], None, "labrl"))
        config = resolve(past.read_config())
        assert past.choices["env"] == config.env.config.name
        kind = named_agents()[past.choices["agent"]]
        assert f"{kind.__module__}.{kind.__name__}" == config.agent.target


@pytest.mark.parametrize(
    ("content", "code", "key"),
    [
        ("agent: [1, 2", "damaged", "saved.yaml"),
        ("- agent=ppo", "damaged", "saved.yaml"),
        ("agent: {}\nenv: {}\nmeta: {}\nwandb: off", "missing", "wandb"),
        (lambda text: text.replace("  kernels: auto\n", ""), "missing", "meta.kernels"),
        (lambda text: text.replace("num_envs: 8", "num_envs: many"), "type", "env.num_envs"),
        (lambda text: text.replace("num_envs: 8", "num_envs: 8\n  extra: box2d"), "unknown-key", "env.extra"),
        (lambda text: text.replace("labrl.agents.", "antigravity."), "untrusted", "agent._target_"),
        (lambda text: text.replace(": labrl\n", ": ${oc.env:HOME}\n"), "untrusted", "wandb.project"),
    ],
)
def test_file_that_cannot_be_run_again_is_refused(
    content: str | Callable[[str], str], code: str, key: str, first: Path
) -> None:
    config = (first / "config.yaml").read_text()
    Path("saved.yaml").write_text(content if isinstance(content, str) else content(config))
    with pytest.raises(LabrlError) as caught:
        labrl.train(["+rerun=saved.yaml"])
    assert (caught.value.code, caught.value.exit_code) == (code, WRONG_INPUT)
    assert (caught.value.key or "").endswith(key)
    assert "saved.yaml" in str(caught.value)
    assert [path.name for path in Path("runs").iterdir()] == ["first"]
