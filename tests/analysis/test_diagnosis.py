"""Tests of the diagnosis: each sign is found in rows that show it, and in real runs that were made bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_cases import QUIET
from report_cases import ReportPage
from run_cases import config_with, rows_of, write_run

import labrl
from labrl.analysis.baselines import Baseline, baseline_path
from labrl.analysis.diagnosis import RULES, Evidence, diagnose, diagnose_run
from labrl.analysis.report.build import build
from labrl.cli import list_runs
from labrl.config.compose import compose, resolve, to_plain
from labrl.errors import DONE
from labrl.run.find import load_run

ROWS = 20
FRAMES = np.linspace(1000, 20_000, ROWS)
RISING = np.linspace(30, 300, ROWS)
RANDOM = Baseline(22.0, 12.0, 100, "measured")

Rows = dict[str, np.ndarray]


def healthy() -> Rows:
    """Return the rows of a run that learns."""
    return {
        "frame": FRAMES,
        "episode": np.linspace(20, 200, ROWS),
        "opt_step": np.linspace(50, 1000, ROWS),
        "return_mean": RISING,
        "length_mean": RISING,
        "entropy": np.linspace(0.69, 0.3, ROWS),
        "kl": np.full(ROWS, 0.008),
        "clip_fraction": np.full(ROWS, 0.12),
        "explained_variance": np.linspace(-0.1, 0.9, ROWS),
        "loss_value": np.linspace(5, 20, ROWS),
        "value_mean": np.linspace(0, 40, ROWS),
        "value_std": np.linspace(0.2, 10, ROWS),
        "grad_norm": np.full(ROWS, 3.0),
        "action_top_share": np.full(ROWS, 0.6),
    }


def names(
    rows: Rows, baseline: Baseline | None = RANDOM, solved: float | None = 475.0, **config: Any
) -> list[str]:
    """Return the names of the signs in `rows` of PPO, with changed values of the configuration."""
    return [sign.name for sign in diagnose(evidence(rows, baseline, solved, **config))]


def evidence(
    rows: Rows, baseline: Baseline | None = RANDOM, solved: float | None = 475.0, **config: Any
) -> Evidence:
    plain = config_with(**{"agent__max_grad_norm": 0.5, "env__max_frame": 20_000, **config})
    return Evidence(rows, plain, baseline, solved)


def half(before: float, after: float) -> np.ndarray:
    """Return a column that changes from one value to another in the middle."""
    return np.where(FRAMES <= 9000, before, after)


GAUSSIAN = {"action_bound_share": half(0.1, 0.95), "policy_std": np.full(ROWS, 0.5)}

BAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "episodes never end": ({"episode": np.zeros(ROWS), "return_mean": np.full(ROWS, np.nan)}, {}),
    "too few updates": ({"opt_step": np.linspace(1, 60, ROWS), "return_mean": np.full(ROWS, 22.0)}, {}),
    "returns not above random": ({"return_mean": np.full(ROWS, 21.0)}, {}),
    "entropy gone early": ({"entropy": half(0.6, 0.01)}, {}),
    "policy steps too large": ({"kl": np.where(FRAMES < 3000, 2.0, 0.0)}, {}),
    "explained variance below zero": ({"explained_variance": np.full(ROWS, -0.4)}, {}),
    "values constant": ({"value_mean": np.full(ROWS, -2.0), "value_std": half(0.3, 0.0)}, {}),
    "value loss growing": ({"loss_value": np.geomspace(1, 1e6, ROWS)}, {}),
    "actions at the bounds": (GAUSSIAN, {}),
    "gradient always clipped": (
        {"grad_norm": np.full(ROWS, 90.0)},
        {"transforms__observation": {"_target_": "x"}},
    ),
    "reward scale": (
        {},
        {"transforms__reward": {"_target_": "labrl.agents.transforms.ScaleReward", "scale": 1000}},
    ),
}
"""Changed rows and changed configuration that show exactly one sign."""


def test_healthy_rows_show_no_sign() -> None:
    assert names(healthy()) == []
    assert names(healthy(), baseline=None, solved=None) == []
    assert names({"frame": np.empty(0)}) == []
    assert names({"frame": FRAMES}) == ["episodes never end", "too few updates"]
    for column in ("entropy", "kl", "clip_fraction", "value_mean", "value_std", "action_top_share"):
        assert names({key: rows for key, rows in healthy().items() if key != column}) == []


@pytest.mark.parametrize("name", BAD)
def test_each_sign_is_found_alone_with_its_rows_and_an_override(name: str) -> None:
    columns, config = BAD[name]
    (sign,) = diagnose(evidence({**healthy(), **columns}, **config))
    assert sign.name == name
    assert FRAMES[0] <= sign.first <= sign.last <= FRAMES[-1]
    if name in ("entropy gone early", "actions at the bounds"):
        assert sign.first >= 9000
    if name == "policy steps too large":
        assert (sign.first, sign.last) == (1000, 2000)


def test_every_sign_is_tested() -> None:
    assert set(BAD) == {rule.name for rule in RULES}


def test_other_forms_of_a_sign_are_found() -> None:
    clipped = np.where(FRAMES < 6000, 0.6, 0.0)
    assert names({**healthy(), "clip_fraction": clipped}) == ["policy steps too large"]
    assert names({**healthy(), "q_mean": np.geomspace(1, 1e5, ROWS)}) == ["value loss growing"]
    narrow = {**healthy(), "policy_std": half(1.0, 0.01), "action_bound_share": np.zeros(ROWS)}
    del narrow["action_top_share"]
    assert names(narrow) == ["entropy gone early"]
    tiny = {**healthy(), "return_mean": RISING * 1e-6}
    assert names(tiny, baseline=Baseline(0.0, None, None, "published")) == ["reward scale"]
    assert names({**healthy(), "return_mean": RISING[::-1]}, baseline=None) == ["returns not above random"]
    assert names({**healthy(), "opt_step": np.zeros(ROWS)}) == ["too few updates"]


def test_repeated_numbers_of_one_update_count_once() -> None:
    """Rows between two updates repeat the numbers of the last one, so one large step is not many."""
    updates = np.repeat([50.0, 100, 150, 200], 5)
    kl = np.repeat([0.06, 0.004, 0.004, 0.004], 5)
    once = {**healthy(), "opt_step": updates, "kl": kl}
    assert names(once) == ["policy steps too large"], "one of four updates"


def test_solved_run_shows_no_sign() -> None:
    rows = {**healthy(), "return_mean": RISING + 200, "entropy": half(0.6, 0.0), "kl": np.full(ROWS, 1.0)}
    assert names(rows) == []
    assert names(rows, solved=600.0) == ["entropy gone early", "policy steps too large"]


def test_command_and_report_show_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [int(frame) for frame in FRAMES]
    columns = {"entropy": half(0.6, 0.001).tolist(), "action_top_share": [0.6] * ROWS}
    bad = rows_of(frames, RISING.tolist(), **columns)
    good = rows_of(frames, RISING.tolist())
    config = config_with(env__max_frame=20_000, agent__entropy_coef=0.0)
    write_run(tmp_path / "bad", [bad, good, bad], config=config)
    write_run(tmp_path / "good", [good], config=config)
    (finding,) = diagnose_run(load_run(tmp_path / "bad"))
    assert (finding.name, finding.sessions) == ("entropy gone early", (0, 2))
    assert list_runs(["--diagnose", str(tmp_path / "bad")]) == DONE
    shown = capsys.readouterr().out
    for text in ("entropy", "sessions 0 and 2", "10,000", "20,000", "agent.entropy_coef=0.01"):
        assert text in shown
    assert list_runs(["--diagnose", str(tmp_path)]) == DONE
    shown = capsys.readouterr().out
    assert shown.count("agent.entropy_coef=0.01") == 1
    assert str(tmp_path / "good") in shown
    build(tmp_path / "bad")
    page = ReportPage(tmp_path / "bad" / "report.html")
    assert "diagnosis" in page.sections
    assert page.table("diagnosis")[1][0] == "entropy gone early"
    build(tmp_path / "good")
    assert "diagnosis" not in ReportPage(tmp_path / "good" / "report.html").sections


CARTPOLE = ["agent=ppo", "env=cartpole", "env.max_frame=12000"]
TIMES_1000 = ["transforms/reward=scale", "transforms.reward.scale=1000"]

# Learning rates are far off, because with slightly wrong ones, it depends on the rounding of the processor
# whether a run is bad.
TRAINED: dict[str, tuple[list[str], set[str]]] = {
    "lr of PPO on CartPole": ([*CARTPOLE, "agent.lr=1"], {"entropy gone early", "policy steps too large"}),
    "reward of PPO on CartPole": ([*CARTPOLE, *TIMES_1000], {"reward scale", "gradient always clipped"}),
    "gamma of PPO on CartPole": ([*CARTPOLE, "agent.gamma=0"], {"returns not above random"}),
    "PPO on CartPole": (CARTPOLE, set()),
    "A2C on CartPole": (["agent=a2c", "env=cartpole", "env.max_frame=20000"], set()),
}
"""The overrides of runs that were made bad, and of good ones, with the signs that are found at least."""


@pytest.mark.extended
@pytest.mark.parametrize("case", TRAINED)
def test_run_shows_signs_only_if_it_was_made_bad(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))
    overrides, expected = TRAINED[case]
    folder = labrl.train([*overrides, *QUIET, f"hydra.run.dir={tmp_path / 'run'}"]).folder
    baseline = baseline_path(load_run(folder).config["env"])
    baseline.parent.mkdir(parents=True, exist_ok=True)
    baseline.write_text(json.dumps({"mean": 22.9, "std": 11.7, "episodes": 500}))
    found = {sign.name for sign in diagnose_run(load_run(folder))}
    assert expected <= found
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("agent", ["ppo", "a2c", "reinforce", "pqn", "dqn", "sac", "td3"])
def test_every_override_is_accepted(agent: str) -> None:
    chosen = [f"agent={agent}", "env=pendulum" if agent in ("sac", "td3") else "env=cartpole"]
    rows = {"frame": FRAMES, "action_bound_share": np.ones(ROWS), "opt_step": np.linspace(1, 10, ROWS)}
    low = {**rows, "episode": np.ones(ROWS), "length_mean": np.ones(ROWS), "return_mean": -np.full(ROWS, 1e6)}
    bad = {"kl": np.full(ROWS, 9.0), "explained_variance": -np.ones(ROWS), "grad_norm": np.full(ROWS, 1e4)}
    bad |= {"policy_std": half(1.0, 0.0), "loss_value": np.geomspace(1, 1e9, ROWS)}
    plain = to_plain(compose([*chosen, "env.max_frame=20000"]))
    few = Evidence({**low, **bad}, plain, RANDOM)
    endless = Evidence({"frame": FRAMES}, plain)
    learning = Evidence({**low, **bad, "opt_step": np.linspace(50, 5000, ROWS)}, plain, RANDOM)
    signs = [sign for one in (few, endless, learning) for sign in diagnose(one)]
    assert len({sign.name for sign in signs}) >= 7
    for override in {override for sign in signs for override in sign.overrides}:
        resolve(compose([*chosen, "env.max_frame=20000", override, "seed=0"]))
