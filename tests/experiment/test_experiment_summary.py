"""Tests of the summary of an experiment on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_cases import write_experiment, write_long_run

from labrl.analysis.formats import brackets
from labrl.analysis.groups import group_runs
from labrl.analysis.statistics import compare, rank_groups
from labrl.experiment.summary import print_experiment
from labrl.run.atomic import write_json
from labrl.run.experiment import Experiment
from labrl.run.run import Run

SCHEDULE = {"kind": "linear", "start": 1e-3, "end": 0.0, "horizon": 1000, "warmup": 0}


def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Print the summary of an experiment, and return its lines."""
    records = Experiment.load(folder).trials()
    print_experiment(folder, records, "finished")
    return capsys.readouterr().out.splitlines()


def test_groups_are_those_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trials of one group may have their overrides in any order, and a schedule in any form."""
    written = [
        ("a", "linear:1e-3:0:1000", 15.0),
        ("b", "{kind: linear, start: 1e-3, end: 0, horizon: 1000}", 15.0),
    ]
    written += [(name, "3e-4", 20.0) for name in ("c", "d", "e")]
    trials = []
    for noise, (name, rate, to) in enumerate(written):
        own = [f"seed={noise}", f"agent.lr={rate}"][:: -1 if noise % 2 else 1]
        changes = {"agent__lr": 3e-4 if rate == "3e-4" else SCHEDULE, "seed": noise}
        write_long_run(tmp_path / name, 1, 40, to, noise, typed=own, **changes)
        trials.append((name, {"overrides": own}))
    folder = write_experiment(tmp_path, trials)
    lines = printed(folder, capsys)
    (entry,) = compare(group_runs(Experiment.load(folder).runs))["envs"]
    ranked = rank_groups(entry["groups"])
    assert [group["counted"] for _, group in ranked] == [3, 2]
    shown = [line for line in lines if any(line.rstrip().endswith(group["name"]) for _, group in ranked)]
    for line, (found, group) in zip(shown, ranked, strict=True):
        assert line.strip().split("  ")[0] == brackets(found.value, found.low, found.high)
        assert f" {group['counted']} " in line
    assert not [line for line in lines if "kind" in line], "a schedule is not in short form"


def test_groups_show_the_numbers_of_infos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = []
    for seed in range(4):
        changes = {"agent__lr": [3e-4, 1e-3][seed // 2], "seed": seed}
        run = Run.open(write_long_run(tmp_path / str(seed), 1, 40, 20.0, seed, **changes))
        table = run.session(0).eval_csv
        head, *rows = table.read_text().splitlines()
        reached = ["0.25", "0.75"][seed // 2]
        table.write_text("\n".join([f"{head},info/success", *(f"{row},{reached}" for row in rows)]) + "\n")
        trials.append((str(seed), {"overrides": [f"agent.lr={changes['agent__lr']}", f"seed={seed}"]}))
    lines = printed(write_experiment(tmp_path, trials), capsys)
    (head,) = [line for line in lines if "info/success" in line]
    found = {
        line.split()[-1]: line[: head.index("info/success") + len("info/success")] for line in lines if line
    }
    assert found["lr=0.0003"].endswith(" 0.25")
    assert found["lr=0.001"].endswith(" 0.75")


def test_error_of_several_lines_is_its_first_one_and_the_log_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "ValueError: first\nsecond"
    session = Run.open(write_long_run(tmp_path / "a", 1, 40)).session(0)
    write_json(session.result_json, {**session.result, "status": "failed", "error": error})
    session.log.write_text("Traceback")
    folder = write_experiment(tmp_path, [("a", {"status": "failed", "error": error})])
    lines = printed(folder, capsys)
    (told,) = [line for line in lines if "ValueError: first" in line]
    assert str(session.log) in " ".join(lines[lines.index(told) :])
    assert "second" not in " ".join(lines + Experiment.load(folder).runs[0].session(0).warnings)
