"""Tests of searches by the command line: pruned, failed and confirmed trials, and what the folder records."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from optuna.exceptions import StorageInternalError
from run_cases import rising, write_run
from search_cases import OVERRIDES, study

import labrl
import labrl.session.callbacks.pruning
from labrl.analysis.listing import best_trial, ranked_trials
from labrl.analysis.search_result import SearchResult
from labrl.cli import main
from labrl.errors import WRONG_INPUT
from labrl.experiment.search.confirmation import confirmed
from labrl.experiment.search.study import Study
from labrl.run.checkpoint import CheckpointStore
from labrl.run.lock import FolderLock
from labrl.run.run import Run
from labrl.session.callbacks.pruning import ReportToSearch, write_answer
from labrl.trial import reporting

pytestmark = pytest.mark.extended

SEARCH = ["-m", "hydra/sweeper=optuna", "hydra.launcher.n_jobs=1"]


Searched = tuple[Path, str, dict[str, Any]]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Run a search of six trials, one after the other, so that it always prunes the same ones.

    Returns its folder, what it has printed, and the content of `experiment.json`.
    """
    home, output = tmp_path_factory.mktemp("search") / "experiment", io.StringIO()
    overrides = [
        override for override in OVERRIDES if not override.startswith(("search.confirm", "meta.report"))
    ]
    overrides += ["meta.max_trial=6", "search.confirm.top=2", "search.confirm.sessions=1"]
    overrides += ["agent.batch_size=choice(64, 77)", "search.pruner.min_resource=256"]
    with contextlib.redirect_stdout(output):
        assert main([*SEARCH, *overrides, "search.pruner.n_startup_trials=0", f"hydra.sweep.dir={home}"]) == 0
    return home, output.getvalue(), json.loads((home / "experiment.json").read_text())


def test_failed_trials_are_recorded_and_do_not_end_the_search(searched: Searched) -> None:
    home, _, info = searched
    assert info["status"] == "finished"
    assert len(info["trials"]) == 6
    failed = [trial for trial in info["trials"] if trial["status"] == "failed"]
    assert failed
    assert all(trial["params"]["agent.batch_size"] == 77 for trial in failed)
    assert all("agent.batch_size" in trial["error"] for trial in failed)
    seeds = {override for trial in info["trials"] for override in trial["overrides"] if "seed=" in override}
    assert len(seeds) == 6
    for trial in info["trials"]:
        if trial["status"] != "failed":
            config = yaml.safe_load((home / trial["folder"] / "config.yaml").read_text())
            assert config["agent"]["lr"] == trial["params"]["agent.lr"]
            assert f"seed={config['seed']}" in trial["overrides"]
            assert config["search"]["space"] == {}


def test_pruned_trial_has_status_pruned_and_keeps_a_checkpoint(searched: Searched) -> None:
    home, _, info = searched
    pruned = [trial for trial in info["trials"] if trial["status"] == "pruned"]
    assert pruned
    for trial in pruned:
        run = Run.open(home / trial["folder"])
        frame, value = trial["intermediate"][-1]
        assert run.recorded_status == "pruned"
        assert trial["values"] == [value]
        (session,) = run.sessions
        assert frame < 1024
        assert CheckpointStore(session.checkpoints, keep_last=1).frames()[0] == frame
        assert json.loads(session.result_json.read_text())["status"] == "pruned"


def test_best_trial_is_confirmed_beside_the_default_and_the_recommended_one_is_a_recipe(
    searched: Searched,
) -> None:
    home, output, info = searched
    confirm = info["search"]["confirm"]
    candidates, best = confirm["candidates"], info["search"]["best"]
    assert candidates[-1]["trial"] is None
    assert all((home / folder / "run.json").exists() for one in candidates for folder in one["folders"])
    # One fresh seed does not decide against the default.
    assert (best["trial"], best["searched"], best["params"]) == (None, None, {})
    assert best["confirmed"]["mean"] == candidates[-1]["mean"]
    assert best["confirmed"]["seeds"] == len(confirm["seeds"])
    (winner,) = (one for one in candidates if one["trial"] == confirm["winner"])
    assert winner["mean"] == max(one["mean"] for one in candidates if one["trial"] is not None)
    assert winner["mean"] != winner["searched"][0]
    assert best["command"].startswith("labrl agent=ppo env=cartpole ")
    assert f"agent.lr={winner['params']['agent.lr']}" in output.partition("best configuration")[2]
    recipe = yaml.safe_load((home / "experiment" / "best.yaml").read_text())
    assert "lr" not in recipe.get("agent", {})
    results = yaml.safe_load((home / "optimization_results.yaml").read_text())
    assert set(results) == {"name", "best_params", "best_value"}


@pytest.mark.parametrize("env", ["cartpole", "mountain_car"])
def test_recipe_is_the_best_trial_unless_all_values_are_equal(env: str, tmp_path: Path) -> None:
    """Regression test: of trials that all have -200, the first one was saved as the best configuration."""
    home = tmp_path / "experiment"
    confirm = ["search.confirm={top: 1, sessions: 1, default: false}", "search/pruner=none"]
    own = ("env=", "search.confirm", "meta.eval_frequency")
    overrides = [one for one in OVERRIDES if not one.startswith(own)]
    overrides += [f"env={env}", "env.num_envs=2", "meta.max_trial=2", f"hydra.sweep.dir={home}"]
    assert main([*SEARCH, *overrides, *confirm]) == 0
    info = json.loads((home / "experiment.json").read_text())
    recipe = yaml.safe_load((home / "experiment" / "best.yaml").read_text())
    best, values = info["search"]["best"], [trial["values"] for trial in info["trials"]]
    if env == "mountain_car":
        assert values == [[-200.0]] * 2
        assert (best["trial"], best["params"]) == (None, {})
        assert "lr" not in recipe.get("agent", {})
    else:
        assert values[best["trial"]] == max(values) == [best["searched"]]
        assert recipe["agent"]["lr"] == info["trials"][best["trial"]]["params"]["agent.lr"]
        assert len(info["trials"][best["trial"]]["intermediate"]) >= 9, "a small budget has ten evaluations"


def test_best_run_is_of_the_default_if_the_fresh_seeds_recommend_it_or_else_of_their_best_trial(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: latest meant the best trial of a search that recommends to keep the default."""
    home, _, info = searched
    kept = best_trial(home, lambda run: True)
    assert kept is not None
    assert kept.run.path.name in info["search"]["confirm"]["candidates"][-1]["folders"]
    monkeypatch.setattr(SearchResult, "is_better", lambda search, x, y: x.trial is not None)
    best = best_trial(home, lambda run: True)
    assert best is not None
    assert best.run.path.name == info["trials"][info["search"]["confirm"]["winner"]]["folder"]
    pruned = {trial["folder"] for trial in info["trials"] if trial["status"] == "pruned"}
    ranked = ranked_trials(home)
    assert ranked[0].run.path == best.run.path
    assert pruned.isdisjoint(one.run.path.name for one in ranked if one.comparable)
    assert pruned <= {one.run.path.name for one in ranked}


def test_resuming_a_finished_search_adds_no_trial_and_makes_its_report(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Path] = []
    monkeypatch.setattr(reporting, "make_report", lambda folder, **options: reported.append(folder))
    home, before = searched[0], searched[2]["trials"]
    result = labrl.sweep([f"+resume={home}", "search.confirm=null"])
    assert result.exit_code == 0
    assert [one["agent.lr"] for one in result.trials] == [one["params"]["agent.lr"] for one in before]
    assert result.statistics["search"]
    assert result.to_polars().height == 6
    assert reported == [home], "the search made no report because its trials make none"
    assert not list(home.glob("*/report.html"))
    after = json.loads((home / "experiment.json").read_text())["trials"]
    assert after == before


@pytest.mark.parametrize("place", ["moved", "copied"])
def test_resuming_a_finished_search_with_a_larger_total_adds_trials(place: str, tmp_path: Path) -> None:
    original, home = tmp_path / "experiment", tmp_path / "elsewhere"
    assert main([*SEARCH, *OVERRIDES, f"hydra.sweep.dir={original}", "meta.max_trial=1"]) == 0
    before = json.loads((original / "experiment.json").read_text())
    assert (before["status"], len(before["trials"])) == ("finished", 1)
    shutil.copytree(original, home)
    if place == "moved":
        shutil.rmtree(original)
    assert main(["-m", f"+resume={home}", "meta.max_trial=2"]) == 0
    after = json.loads((home / "experiment.json").read_text())
    assert after["status"] == "finished"
    assert after["trials"][:1] == before["trials"]
    if place == "copied":
        assert json.loads((original / "experiment.json").read_text()) == before
    (added,) = after["trials"][1:]
    assert added["status"] in ("finished", "pruned")
    assert added["folder"] == "1_ppo_cartpole"
    assert Run.open(home / added["folder"]).recorded_status == added["status"]


def test_resume_of_a_search_with_another_study_is_refused(
    searched: Searched, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (searched[0] / "experiment.json").read_bytes()
    assert main(["-m", f"+resume={searched[0]}", "hydra.sweeper.study_name=another"]) == WRONG_INPUT
    assert "hydra.sweeper.study_name=another" in capsys.readouterr().err
    assert (searched[0] / "experiment.json").read_bytes() == before


def test_confirmation_run_counts_only_if_it_finished(tmp_path: Path) -> None:
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder, status in zip(folders, ("finished", "interrupted"), strict=True):
        write_run(folder, [rising(100)], status=status)
    one = {"trial": 0, "params": {}, "searched": [1.0], "folders": ["whole", "killed", "never"]}
    (found,) = confirmed({"seeds": [1, 2, 3], "candidates": [one]}, tmp_path, study(tmp_path))["candidates"]
    assert found["values"][0] is not None
    assert found["values"][1:] == [None, None]
    assert found["mean"] is None


def test_session_does_not_wait_for_a_search_that_has_ended_or_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labrl.session.callbacks.pruning, "PATIENCE", 0.05)
    stopping = False
    session: Any = SimpleNamespace(folder=SimpleNamespace(path=tmp_path), stopping=lambda: stopping)
    (tmp_path / "home").mkdir()
    callback = ReportToSearch(str(tmp_path / "home"))
    with FolderLock(tmp_path / "home"):
        write_answer(tmp_path, 50, False)
        late = threading.Timer(0.5, write_answer, (tmp_path, 100, True))
        late.start()
        callback.row(session, "eval", {"frame": 100})
        assert callback.gives_up, "it must wait for the answer to its own evaluation"
        callback, stopping = ReportToSearch(str(tmp_path / "home")), True
        callback.row(session, "eval", {"frame": 200})
        assert not callback.gives_up
    stopping = False
    for frame in (300, 400):
        callback.row(session, "eval", {"frame": frame})
        assert not callback.gives_up


def test_search_whose_storage_fails_keeps_its_trials_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "experiment"
    should_prune = Study.should_prune

    def failing(study: Study, number: int, folder: Path) -> bool:
        if number == 1:
            raise StorageInternalError("in general") from OSError("the disk is full")
        return should_prune(study, number, folder)

    monkeypatch.setattr(Study, "should_prune", failing)
    assert main([*SEARCH, *OVERRIDES, "meta.max_trial=2", f"hydra.sweep.dir={home}"]) == 1
    output = capsys.readouterr().err
    assert "the disk is full" in output
    assert f"labrl -m +resume={home}" in output
    assert json.loads((home / "experiment.json").read_text())["status"] == "interrupted"
    (session,) = Run.open(home / "1_ppo_cartpole").sessions
    assert session.checkpoint_frames()
    monkeypatch.setattr(Study, "should_prune", should_prune)
    assert main(["-m", f"+resume={home}"]) == 0
    trials = json.loads((home / "experiment.json").read_text())["trials"]
    assert [trial["status"] in ("finished", "pruned") for trial in trials] == [True, True]
