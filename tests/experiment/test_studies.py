"""Tests of the published searches of presets: what is stored of a search and what the results page states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, studies
from benchmarks.published import cells
from labrl.config.compose import compose
from labrl.run.experiment import Experiment

pytestmark = pytest.mark.extended

KEPT = studies.read(results.PAGE.with_suffix("") / "studies")

CELL = next(cell for cell in cells() if cell.name == "pendulum_a2c")

RECORDED = results.PAGE.with_suffix("") / "studies" / f"{CELL.name}.json"


def experiment(
    path: Path, overrides: Sequence[str] = (), winner: Mapping[str, Any] | None = None
) -> Experiment:
    """Write the finished search of the cell to `path`, with `overrides` in the command of its best trial.

    winner: values that the winner of the fresh seeds had in addition to the recorded ones.
    """
    info = json.loads(RECORDED.read_text())
    info |= {"format_version": Experiment.FORMAT_VERSION, "status": "finished", "overrides": CELL.overrides}
    for trial in info["trials"]:
        trial |= {"overrides": [f"hydra.run.dir={path}"], "folder": "0", "status": "finished", "host": "here"}
    info["trials"][0]["intermediate"] = [[500 * (1 + row), -1000.0 + row / 3] for row in range(100)]
    info["search"] |= {"storage": f"sqlite:///{path}/study.db", "study_name": "labrl"}
    for candidate in info["search"]["confirm"]["candidates"]:
        candidate["folders"] = [f"{path}/a"]
        if candidate["trial"] == info["search"]["confirm"]["winner"]:
            candidate["params"] |= winner or {}
    command = ["labrl", *CELL.overrides, "meta.num_cpus=1", *overrides]
    info["search"]["best"]["command"] = " ".join(command)
    path.mkdir(parents=True)
    (path / "experiment.json").write_text(json.dumps(info))
    return Experiment(path)


def kept(
    tmp_path: Path, overrides: Sequence[str] = (), winner: Mapping[str, Any] | None = None
) -> studies.Study:
    """Store and read back the study of `experiment`."""
    studies.keep(experiment(tmp_path / "elsewhere", overrides, winner), CELL, tmp_path / "kept")
    (study,) = studies.read(tmp_path / "kept")
    return study


def line_of(study: studies.Study) -> str:
    """Return the line of the study in the table of the results page."""
    (line,) = (
        line for line in studies.section([study]).splitlines() if line.startswith(f"| {study.cell.name[:4]}")
    )
    return line


def test_stored_study_contains_no_paths_or_hosts(tmp_path: Path) -> None:
    study = kept(tmp_path)
    text = (tmp_path / "kept" / "pendulum_a2c.json").read_text()
    assert str(tmp_path) not in text.replace(str(tmp_path / "kept"), "")
    assert '"here"' not in text
    assert study.info["command"].startswith("labrl -m hydra/sweeper=optuna experiment=slm_lab/pendulum")
    before = json.loads(RECORDED.read_text())
    assert [one.state for one in study.search.trials] == [one["state"] for one in before["trials"]]
    rows = study.search.trials[0].intermediate
    assert 10 <= len(rows) <= 11
    assert max(rows) == 50_000
    assert study.info["search"]["confirm"] == before["search"]["confirm"]
    study.info["search"]["confirm"]["candidates"][-1]["mean"] = None
    assert "| −213.7 | – |" in studies.section([study])


@pytest.mark.parametrize(
    ("winner", "is_preset"),
    [
        (lambda lr: {}, True),
        (lambda lr: {"agent.lr.start": 1.02 * lr}, True),  # a preset is rounded
        (lambda lr: {"agent.lr.start": 1.1 * lr}, False),
        (lambda lr: {"agent/optimizer": "ppo_adam"}, False),
    ],
)
def test_results_page_states_whether_a_preset_has_the_values_of_its_study(
    tmp_path: Path, winner: Callable[[float], dict[str, Any]], is_preset: bool
) -> None:
    study = kept(tmp_path, winner=winner(compose(CELL.overrides).agent.lr.start))
    assert study.is_preset() == is_preset
    line = line_of(study)
    assert line.startswith("| pendulum\\_a2c | 300,000 | 30 | 24 | −213.7 | −445.9 | `agent.")
    assert line.endswith("| has its values |" if is_preset else "| keeps its own |")


def test_results_page_states_the_frames_of_a_search_that_is_shorter_than_its_cell(tmp_path: Path) -> None:
    study = kept(tmp_path, ["env.max_frame=3e4"])
    assert study.is_preset()
    line = line_of(study)
    assert line.startswith("| pendulum\\_a2c | 30,000 | 30 | 24 | −213.7 | −445.9 | `agent.")
    assert line.endswith("| has its values |")


def test_results_page_states_the_winner_where_the_search_recommends_the_default() -> None:
    (study,) = (study for study in KEPT if study.cell.name == "lunar_lander_ppo")
    search = study.search
    assert search.confirmed_best is search.default
    assert "| 251.8 | 211.8 |" in line_of(study)
    assert study.is_preset()


def test_study_is_started_resumed_and_added_to_the_results_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(results, "README", tmp_path / "README.md")
    root, name = tmp_path / "runs", "study_pendulum_a2c"
    overrides = studies.overrides()[name]
    assert results.command(overrides, root / name) == [*overrides, f"hydra.sweep.dir={root / name}"]
    results.write_page(root)
    assert "# Studies" not in (tmp_path / "results.md").read_text()
    experiment(root / name)
    assert results.command(overrides, root / name) == ["-m", f"+resume={root / name}"]
    asked: list[Any] = []
    monkeypatch.setattr(results, "uncommitted", str)
    monkeypatch.setattr(results, "_train", lambda overrides, seconds: asked.append(overrides) or 0)
    assert results.main([name, "--root", str(root)]) == 0
    assert asked == []
    page = (tmp_path / "results.md").read_text()
    assert "# Studies" in page
    results.write_page(tmp_path / "another machine")
    assert (tmp_path / "results.md").read_text() == page


@pytest.mark.parametrize("study", KEPT, ids=lambda study: study.cell.name)
def test_results_page_agrees_with_each_stored_study(study: studies.Study) -> None:
    line = line_of(study)
    expected = line.split("|")
    (on_page,) = (row.split("|") for row in results.PAGE.read_text().splitlines() if row[:30] == line[:30])
    assert (on_page[1:7], on_page[-2]) == (expected[1:7], expected[-2])
