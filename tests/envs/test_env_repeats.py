"""Tests of the check whether seed and actions repeat the episodes of an environment."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import repeating_envs
import torch
from env_cases import own_env
from exact_cases import QUIET
from refusals import refused
from repeating_envs import (
    ByEpisode,
    GlobalGenerator,
    Line,
    OneSimulator,
    OwnGenerator,
    OwnSimulator,
    Reseeds,
)

import labrl
from labrl.envs.description import description_of
from labrl.envs.make import make_env
from labrl.envs.protocol import Repeats
from labrl.run.find import load_run

FOUND_BEFORE: list[tuple[type, dict[str, Any], Repeats]] = [
    (Line, {}, "always"),
    (OwnSimulator, {}, "always"),
    (Reseeds, {"repeats": True}, "always"),
    (Reseeds, {"repeats": False}, "never"),
    (OwnGenerator, {}, "unseeded"),
    (OwnGenerator, {"is_global": True}, "unseeded"),
    (GlobalGenerator, {"kind": "numpy"}, "alone"),
    (GlobalGenerator, {"kind": "python"}, "alone"),
    (GlobalGenerator, {"kind": "torch"}, "alone"),
]

FOUND_DURING: list[tuple[type, dict[str, Any]]] = [
    (GlobalGenerator, {"quiet_steps": 25}),
    (ByEpisode, {}),
]


def overrides(cls: type, folder: Path, *more: str, **settings: Any) -> list[str]:
    small = ["agent=ppo", "agent.horizon=20", "agent.batch_size=40", "agent.epochs=1"]
    small += ["agent.network.torso.mlp.hidden=[8]", "preset=none"]
    made = [f"+env.make._target_=repeating_envs.{cls.__name__}"]
    made += [f"+env.make.{name}={value}" for name, value in settings.items()]
    env = ["env=gymnasium", "env.id=null", "env.name=own", "env.num_envs=2", "env.max_frame=280"]
    rows = ["meta.log_frequency=20", "meta.eval_frequency=140"]
    return [*QUIET, *small, *env, *rows, *made, f"hydra.run.dir={folder}", *more]


def inexact(run: Path) -> list[str]:
    found: list[str] = json.loads((run / "run.json").read_text()).get("inexact", [])
    return found


def rows(run: Path) -> list[dict[str, str]]:
    """Return the rows of a run without measured times."""
    with (run / "session_0" / "train.csv").open() as file:
        found = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if name not in ("wall", "fps")} for row in found]


@pytest.mark.parametrize(("cls", "settings", "repeats"), FOUND_BEFORE)
def test_comparison_before_the_run_finds_when_episodes_repeat(
    cls: type, settings: dict[str, Any], repeats: Repeats
) -> None:
    assert description_of(own_env(cls, settings).config).repeats == repeats


def test_comparison_before_the_run_keeps_the_global_generators() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), np.random.random(), float(torch.rand(()))

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    wanted = drawn()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    for kind in ("numpy", "python", "torch"):
        description_of(own_env(GlobalGenerator, {"kind": kind, "quiet_steps": 1}).config)
    assert drawn() == wanted


def test_environment_that_ignores_its_seed_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = make_env(own_env(OwnGenerator), seed=0, num_threads=1, num_envs=1)
    first, starts = env.reset(), []
    while len(starts) < 5:
        if (step := env.step(np.ones(1, np.int64))).episode_over.any():
            starts.append(float(step.observation[0, 0]))
    assert len({*starts, float(first[0, 0])}) == 6, "episodes start alike"
    run = labrl.train(overrides(OwnGenerator, tmp_path / "run", "env.max_frame=80")).folder
    assert capsys.readouterr().out.count("not reproducible") == 1
    assert inexact(run) == ["env"]
    assert "fresh_env_per_episode" not in json.loads((run / "run.json").read_text())


@pytest.mark.parametrize(("cls", "settings"), FOUND_DURING)
def test_check_during_the_run_finds_what_the_comparison_misses(
    cls: type, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert description_of(own_env(cls, settings).config).repeats == "always"
    run = labrl.train(overrides(cls, tmp_path / "run", **settings)).folder
    assert inexact(run) == ["env"]
    assert (run / "session_0" / "session.log").read_text().count("not reproducible") == 1
    assert sum("not reproducible" in warning for warning in load_run(run).warnings) == 1
    capsys.readouterr()
    labrl.train([f"+resume={run}", "env.max_frame=320"])
    assert capsys.readouterr().out.count("not reproducible") == 1, "the resume does not say it once"


@pytest.mark.parametrize("cls", [Line, OwnSimulator])
def test_check_says_nothing_of_environments_that_repeat(
    cls: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = labrl.train(overrides(cls, tmp_path / "run")).folder
    output = capsys.readouterr()
    assert "reproducible" not in output.out + output.err
    assert inexact(run) == []


@pytest.mark.parametrize(
    ("cls", "more"),
    [
        (Line, []),
        (GlobalGenerator, ["env.fresh_env_per_episode=false", "env.num_envs=1", "agent.batch_size=20"]),
    ],
)
def test_rows_do_not_depend_on_the_check(cls: type, more: list[str], tmp_path: Path) -> None:
    folders = {
        check: labrl.train(overrides(cls, tmp_path / check, *more, f"env.check={check}")).folder
        for check in ("true", "false")
    }
    assert rows(folders["true"]) == rows(folders["false"]) != []


def test_run_goes_on_if_no_further_environment_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneSimulator, "made", 0)
    run = labrl.train(overrides(OneSimulator, tmp_path / "run", most=4))
    assert run.exit_code == 0
    assert inexact(run.folder) == []
    assert (run.folder / "session_0" / "session.log").read_text().count("env.check") == 1


@pytest.mark.parametrize("check", [True, False])
def test_second_environment_is_made_before_the_run_only_for_the_check(
    check: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneSimulator, "made", 0)
    config = own_env(OneSimulator, {"most": 1}, check=check).config
    if check:
        with refused("environment", "env.make", "env.check=false"):
            description_of(config)
    else:
        assert description_of(config).repeats == "always"
    assert repeating_envs.OneSimulator.made == 1 + check
