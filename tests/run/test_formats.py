"""Tests of folders of other versions of labrl: every command refuses them before it does anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report_cases import write_experiment
from run_cases import files_of, rising, write_run

import labrl
from labrl.cli import export_policy, list_runs, main, replay, report, send_to_wandb
from labrl.errors import WRONG_INPUT, InputError
from labrl.run.experiment import Experiment
from labrl.run.run import Run

COMMANDS: list[tuple[Callable[[list[str]], int], list[str]]] = [
    (main, ["+enjoy=run", "episodes=1", "videos=0"]),
    (main, ["+enjoy=latest"]),
    (main, ["+fork=run", "at=256", "env.max_frame=512"]),
    (main, ["+resume=run", "env.max_frame=512"]),
    (main, ["+resume=latest", "env.max_frame=512"]),
    (main, ["+rerun=run"]),
    (main, ["start_from.run=run"]),
    (main, ["agent=dqn", "agent/offline=run", "agent.offline.folder=run"]),
    (main, ["-m", "+resume=experiment"]),
    (main, ["-m", "+resume=latest"]),
    (main, ["-m", "+fork=run", "at=256", "env.max_frame=512", "seed=1,2"]),
    (export_policy, ["run", "--format", "torch"]),
    (replay, ["run"]),
    (send_to_wandb, ["run"]),
    (report, ["run"]),
    (report, ["experiment"]),
    (list_runs, ["--root", "run"]),
    (list_runs, ["--root", "experiment"]),
    (list_runs, []),
]


@pytest.mark.parametrize("version", [Run.FORMAT_VERSION - 1, 99])
def test_every_command_refuses_a_folder_of_another_version_and_leaves_it_unchanged(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("run", "experiment/0_ppo", "experiment/1_ppo", "runs/a", "runs/e/0_ppo", "runs/e/1_ppo"):
        write_run(Path(place), [rising(10)])
    for place in ("experiment", "runs/e"):
        write_experiment(Path(place), [("0_ppo", {}), ("1_ppo", {})])
    for marker in [*tmp_path.rglob("run.json"), *tmp_path.rglob("experiment.json")]:
        marker.write_text(json.dumps({**json.loads(marker.read_text()), "format_version": version}))
    before = files_of(tmp_path)
    for command, arguments in COMMANDS:
        assert command(arguments) == WRONG_INPUT, arguments
        stderr = capsys.readouterr().err
        assert f" {version} " in stderr, (arguments, stderr)
        assert stderr.startswith("labrl: "), (arguments, stderr)
        assert stderr.count("\n") == 1, (arguments, stderr)
        assert files_of(tmp_path) == before, arguments
    for call in (lambda: labrl.load("run"), lambda: labrl.runs("run"), lambda: labrl.runs("experiment")):
        with pytest.raises(InputError) as error:
            call()
        assert error.value.code == "not-installed"
    assert files_of(tmp_path) == before


def test_reference_names_the_present_format() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"
    assert f"folder's format, {Run.FORMAT_VERSION};" in page.read_text(encoding="utf-8")
    assert Run.FORMAT_VERSION == Experiment.FORMAT_VERSION
