"""Tests of the published searches of presets: what is stored of a search and what the results page states."""

from __future__ import annotations

import json
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


def experiment(path: Path, command: str) -> Experiment:
    """Write the finished search of the cell to `path`; `command` is that of its best trial."""
    info = json.loads(RECORDED.read_text())
    info |= {"format_version": Experiment.FORMAT_VERSION, "status": "finished", "overrides": CELL.overrides}
    for trial in info["trials"]:
        trial |= {"overrides": [f"hydra.run.dir={path}"], "folder": "0", "status": "finished", "host": "here"}
    info["trials"][0]["intermediate"] = [[500 * (1 + row), -1000.0 + row / 3] for row in range(100)]
    info["search"] |= {"storage": f"sqlite:///{path}/study.db", "study_name": "labrl"}
    for candidate in info["search"]["confirm"]["candidates"]:
        candidate["folders"] = [f"{path}/a"]
    info["search"]["best"]["command"] = command
    path.mkdir(parents=True)
    (path / "experiment.json").write_text(json.dumps(info))
    return Experiment(path)


def kept(tmp_path: Path, *overrides: str) -> studies.Study:
    """Store and read back a study whose best trial has the overrides of CELL and `overrides`."""
    command = " ".join(["labrl", *CELL.overrides, "meta.num_cpus=1", *overrides])
    studies.keep(experiment(tmp_path / "elsewhere", command), CELL, tmp_path / "kept")
    (study,) = studies.read(tmp_path / "kept")
    return study


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
    ("change", "is_preset"),
    [
        ("", True),
        ("agent.lr.start={other_lr}", False),
        ("agent/optimizer=ppo_adam", False),
        ("env.max_frame=3e4", True),  # a search may be shorter
    ],
)
def test_results_page_states_whether_a_preset_has_the_values_of_its_study(
    tmp_path: Path, change: str, is_preset: bool
) -> None:
    agent = compose(CELL.overrides).agent
    override = change.format(other_lr=agent.lr.start * 1.1)
    study = kept(tmp_path, *([override] if override else []))
    assert study.is_preset() == is_preset
    (line,) = (line for line in studies.section([study]).splitlines() if line.startswith("| pendulum"))
    frames = "30,000" if "max_frame" in change else "300,000"
    assert line.startswith(f"| pendulum\\_a2c | {frames} | 30 | 24 | −213.7 | −445.9 | `agent.")
    assert line.endswith("| has its values |" if is_preset else "| keeps its own |")


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
    experiment(root / name, " ".join(["labrl", *CELL.overrides]))
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
    (line,) = (
        line for line in studies.section([study]).splitlines() if line.startswith(f"| {study.cell.name[:4]}")
    )
    expected = line.split("|")
    (on_page,) = (row.split("|") for row in results.PAGE.read_text().splitlines() if row[:30] == line[:30])
    assert (on_page[1:7], on_page[-2]) == (expected[1:7], expected[-2])
