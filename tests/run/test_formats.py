"""Tests of folders of other versions of labrl: they are read, or every command refuses them before it does
anything else, with the version to install. `format_1` is a run that commit 5036a2a has written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exact_cases import QUIET
from refusals import refused
from run_cases import files_of

import labrl
from labrl.cli import export_policy, list_runs, main, replay, report, send_to_wandb
from labrl.errors import WRONG_INPUT, InputError
from labrl.run import checkpoint, episodes
from labrl.run.experiment import Experiment
from labrl.run.run import Run

OLD = Path(__file__).parent / "format_1"
COMMIT = "b3a5dac52c"

COMMANDS: list[tuple[Callable[[list[str]], int], list[str]]] = [
    (main, ["+enjoy=run", "episodes=1", "videos=0"]),
    (main, ["+enjoy=latest"]),
    (main, ["+fork=run", "at=256", "env.max_frame=512"]),
    (main, ["+resume=run", "env.max_frame=512"]),
    (main, ["+resume=run", "env.max_frame=512", "+force=true"]),
    (main, ["+resume=latest", "env.max_frame=512"]),
    (main, ["+rerun=run"]),
    (main, ["start_from.run=run"]),
    (main, ["agent=dqn", "agent/offline=run", "agent.offline.folder=run"]),
    (main, ["-m", "+resume=experiment"]),
    (main, ["-m", "+resume=experiment", "+force=true"]),
    (main, ["-m", "+resume=latest"]),
    (main, ["-m", "+fork=run", "at=256", "env.max_frame=512", "seed=1,2"]),
    (export_policy, ["run", "--format", "torch"]),
    (replay, ["run"]),
    (send_to_wandb, ["run"]),
    (report, ["run"]),
    (report, ["experiment"]),
    (report, ["run", "experiment"]),
    (list_runs, ["--root", "run"]),
    (list_runs, ["--root", "experiment"]),
    (list_runs, []),
]


def as_earliest_format(run: Path) -> Path:
    """Change the files by which a run of format 0 is recognized, although `run.json` contains 1."""
    path = run / "provenance.json"
    facts = json.loads(path.read_text())
    del facts["config"]
    facts["git"]["labrl"]["commit"] = COMMIT + "0" * 30
    path.write_text(json.dumps(facts))
    return run


def as_later_format(run: Path) -> Path:
    """Change the number in `run.json` to one that no version has used."""
    as_earliest_format(run)
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "format_version": 99}))
    return run


def without_run_json(run: Path) -> Path:
    """Remove `run.json` of a run of format 0, which must not be rebuilt."""
    (as_earliest_format(run) / "run.json").unlink()
    return run


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("change", [as_earliest_format, as_later_format, without_run_json])
def test_every_command_refuses_a_folder_of_another_version_and_leaves_it_unchanged(
    change: Callable[[Path], Path], own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [
        {"number": number, "overrides": [f"seed={number}"], "folder": f"{number}_ppo", "status": "finished"}
        for number in range(2)
    ]
    for place in ("run", "experiment/0_ppo", "experiment/1_ppo", "runs/a", "runs/e/0_ppo", "runs/e/1_ppo"):
        change(Path(shutil.copytree(OLD, place)))
    for place in ("experiment", "runs/e"):
        content = {
            "format_version": 1,
            "kind": "grid",
            "status": "finished",
            "overrides": [],
            "trials": trials,
        }
        (Path(place) / "experiment.json").write_text(json.dumps(content))
    before = files_of(own_folder)
    for command, arguments in COMMANDS:
        if change is without_run_json and "latest" in str(arguments):
            continue  # a folder without run.json is never the latest
        assert command(arguments) == WRONG_INPUT, arguments
        stderr = capsys.readouterr().err
        assert COMMIT in stderr, (arguments, stderr)
        assert stderr.startswith("labrl: "), (arguments, stderr)
        assert stderr.count("\n") == 1, (arguments, stderr)
        assert files_of(own_folder) == before, arguments
    for call in (lambda: labrl.load("run"), lambda: labrl.runs("run"), lambda: labrl.runs("experiment")):
        with pytest.raises(InputError) as error:
            call()
        assert error.value.code == "not-installed"
        assert COMMIT in str(error.value)
    assert files_of(own_folder) == before


WITHOUT_COMMIT = {"git": {}, "packages": {"labrl": "0.0.7"}, "started": "2025-12-24T00:00:00"}


@pytest.mark.parametrize("facts", [{}, {"config": []}, WITHOUT_COMMIT])
def test_folder_without_a_commit_is_refused_with_what_is_known(
    facts: dict[str, Any], own_folder: Path
) -> None:
    run = as_later_format(Path(shutil.copytree(OLD, "run")))
    (run / "provenance.json").write_text(json.dumps(facts))
    known = ["0.0.7", "2025-12-24"] if "packages" in facts else []
    with refused("not-installed", run.absolute(), *known):
        Run.open(run)


def test_experiment_of_the_present_format_with_an_older_trial_is_refused(own_folder: Path) -> None:
    assert main(["-m", "agent=random", "env.max_frame=64", *QUIET, "seed=1,2", "hydra.sweep.dir=e"]) == 0
    shutil.rmtree("e/1_random_cartpole")
    trial = as_earliest_format(Path(shutil.copytree(OLD, "e/1_random_cartpole")))
    before = files_of(own_folder)
    with refused("not-installed", trial.absolute(), COMMIT):
        Experiment.open("e")
    assert main(["-m", "+resume=e", "env.max_frame=128", "+force=true"]) == WRONG_INPUT
    assert files_of(own_folder) == before
    assert list_runs(["--root", "e"]) == 0, "the readable trial is not listed"


@pytest.mark.extended
def test_run_of_format_1_is_read_by_every_command(own_folder: Path) -> None:
    run = Path(shutil.copytree(OLD, "run"))
    assert main(["+enjoy=run", "episodes=1", "videos=0"]) == 0
    assert main(["+fork=run", "at=256", "env.max_frame=384", *QUIET[:-2], "hydra.run.dir=fork"]) == 0
    start = ["start_from.run=run", "agent.network.torso.mlp.hidden=[4]", "env.max_frame=2048", *QUIET]
    assert main([*start, "hydra.run.dir=new"]) == 0
    assert export_policy(["run", "--format", "torch"]) == 0
    assert list_runs(["--root", "run"]) == 0
    assert report(["run"]) == 0
    assert labrl.load("run").frame == 256
    assert Run.open(run).read_info()["format_version"] == 1
    assert main(["+resume=run", "env.max_frame=384", "agent.lr=1e-3", "agent.clip_range=0.2"]) == 0
    info = Run.open(run).read_info()
    assert (info["format_version"], info["status"]) == (Run.FORMAT_VERSION, "finished")


def test_reference_lists_every_format() -> None:
    page = (OLD.parents[2] / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (folder|checkpoint|episode) (\d+) \|.*\| (yes|no) \|$", page, re.MULTILINE)
    read: dict[str, set[int]] = {"folder": set(), "checkpoint": set(), "episode": set()}
    for kind, number, is_read in rows:
        if is_read == "yes":
            read[kind].add(int(number))
    assert read["folder"] == set(Run.READS) == set(Experiment.READS)
    assert max(read["folder"]) == Run.FORMAT_VERSION == Experiment.FORMAT_VERSION
    assert read["checkpoint"] == {checkpoint.FORMAT_VERSION}
    assert read["episode"] == {episodes.FORMAT_VERSION}
