"""Tests of `seed=auto`: seeds are added in stages until groups are decided, and a resume does the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from one_process import ONE_PROCESS
from refusals import refused

import labrl
from labrl.analysis.adastop import Stages
from labrl.cli import report
from labrl.errors import DONE, Code
from labrl.experiment.stages import next_stage
from labrl.run.experiment import Experiment

QUICK = [
    *("agent=random", "env=cartpole", "env.num_envs=1", "env.max_frame=256", ONE_PROCESS),
    *("meta.log_frequency=128", "meta.progress=false", "meta.tensorboard=false", "meta.videos=false"),
    "meta.report=false",
]
# Random play lasts about 22 steps, so that the last two groups have the same returns.
GROUPS = ["env.max_episode_steps=10,400,500", "seed=auto:5:10"]
SHORT, LONG, LONGEST = (f"random max_episode_steps={steps}" for steps in (10, 400, 500))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> labrl.SweepResult:
    """Return the result of a comparison of three groups, two of which are equal."""
    folder = tmp_path_factory.mktemp("stages") / "e"
    return labrl.sweep([*QUICK, *GROUPS, f"hydra.sweep.dir={folder}"])


@pytest.fixture
def copied(finished: labrl.SweepResult, tmp_path: Path) -> Path:
    """Return a copy of the experiment folder."""
    return Path(shutil.copytree(finished.folder, tmp_path / "e"))


def planned(folder: Path) -> list[tuple[int, list[str], str]]:
    """Return the number, the own overrides and the folder of each trial."""
    trials = Experiment.open(folder).trials()
    return [
        (one.number, [own for own in one.overrides if own.startswith(("seed", "env.max_e"))], one.folder)
        for one in trials
    ]


def forget_trials(folder: Path, first: int) -> None:
    """Remove the trials from number `first` on, as if the command had been killed before it planned them."""
    content = json.loads((folder / "experiment.json").read_text())
    for trial in content["trials"][first:]:
        shutil.rmtree(folder / trial["folder"])
    experiment = Experiment.open(folder)
    experiment.replace_trials(experiment.trials()[:first])
    experiment.set_status("running")


@pytest.mark.extended
def test_undecided_groups_get_more_seeds_and_decided_ones_do_not(finished: labrl.SweepResult) -> None:
    assert finished.exit_code == DONE
    seeds = [(one["env.max_episode_steps"], one["seed"]) for one in finished.trials]
    first = [(steps, seed) for steps in (10, 400, 500) for seed in range(5)]
    assert seeds == [*first, *((steps, seed) for steps in (400, 500) for seed in range(5, 10))]
    (entry,) = finished.statistics["envs"]
    found = entry["stages"]
    assert (found["size"], found["most"], found["alpha"]) == (5, 10, 0.05)
    assert [tuple(pair.values()) for pair in found["pairs"]] == [
        (SHORT, LONG, LONG, 5),
        (SHORT, LONGEST, LONGEST, 5),
        (LONG, LONGEST, None, 10),
    ]
    assert found["next_stage"] == found["more"] == {}
    assert entry["best"] is None


@pytest.mark.extended
def test_killed_experiment_goes_on_with_the_same_stages(finished: labrl.SweepResult, copied: Path) -> None:
    before = planned(copied)
    forget_trials(copied, 15)
    result = labrl.sweep([f"+resume={copied}"])
    assert result.exit_code == DONE
    assert planned(copied) == before
    pairs = [one.statistics["envs"][0]["stages"]["pairs"] for one in (result, finished)]
    assert pairs[0] == pairs[1]
    assert Experiment.open(copied).recorded_status == "finished"


@pytest.mark.extended
def test_seed_without_a_return_lets_no_stage_follow(copied: Path) -> None:
    forget_trials(copied, 15)
    stages = Stages(5, 10)
    assert len(next_stage(Experiment.open(copied), stages)) == 10
    (record,) = [one for one in Experiment.open(copied).trials() if one.number == 14]
    shutil.rmtree(copied / record.folder)
    assert next_stage(Experiment.open(copied), stages) == []


def test_command_knows_whether_seeds_were_planned_in_stages(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_trials(copied, 15)
    trials = [str(copied / trial.folder) for trial in Experiment.open(copied).trials()]
    for folders, limited in (([str(copied)], True), (trials[:11], False)):
        assert report([*folders, "--adaptive"]) == DONE
        shown = capsys.readouterr().out
        assert ("seed=auto" not in shown) == limited
        assert "at most 10 of each" in shown if limited else "4 of" in shown, "the plan, or the missing seeds"


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (["seed=auto"], "contradiction", "seed"),
        (["agent=dqn,random", "env=pendulum", "env.max_frame=2000", "seed=auto"], "contradiction", "seed"),
        (["env.num_envs=1,2", "seed=auto,1"], "contradiction", "seed"),
        (["env.num_envs=1,2", "seed=auto", "meta.max_session=2"], "contradiction", "meta.max_session"),
        (["env.num_envs=1,2", "seed=auto", "meta.max_trial=20"], "contradiction", "meta.max_trial"),
        (["env.num_envs=1,2", "seed=auto:1:3"], "range", "seed"),
        (["env.num_envs=1,2", "seed=auto:5:4"], "range", "seed"),
        (["env.num_envs=1,2", "seed=auto:five"], "syntax", "seed"),
        (["hydra/sweeper=optuna", "search=ppo", "agent=ppo", "seed=auto"], "usage", "seed"),
    ],
)
def test_comparison_that_cannot_be_made_is_refused(
    overrides: list[str], code: Code, key: str, tmp_path: Path
) -> None:
    with refused(code, key):
        labrl.sweep([*QUICK, f"hydra.sweep.dir={tmp_path}/e", *overrides])
    assert not (tmp_path / "e").exists()


def test_fork_is_refused_because_all_its_trials_have_one_seed(
    finished: labrl.SweepResult, tmp_path: Path
) -> None:
    fork = [f"+fork={finished.trials[0]['folder']}", "at=256", "env.max_frame=512", "seed=auto"]
    with refused("contradiction", "seed", "+fork"):
        labrl.sweep([*fork, "env.max_episode_steps=10,20", f"hydra.sweep.dir={tmp_path}/e"])


def test_single_run_is_refused() -> None:
    with refused("usage", "seed", "-m"):
        labrl.train(["seed=auto"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", "auto:5:20"), ("seed", "0,1,2"), ("env.max_episode_steps", "10,20")],
)
def test_stages_and_groups_are_fixed(finished: labrl.SweepResult, key: str, value: str) -> None:
    with refused("changed-past", key):
        labrl.sweep([f"+resume={finished.folder}", f"{key}={value}"])


def test_seeds_of_a_grid_do_not_become_stages(tmp_path: Path) -> None:
    labrl.sweep([*QUICK, "env.max_episode_steps=10,20", "seed=0,1", f"hydra.sweep.dir={tmp_path}/e"])
    with refused("changed-past", "seed"):
        labrl.sweep([f"+resume={tmp_path}/e", "seed=auto"])
