"""Tests of experiments: every trial is recorded, a failed or killed trial does not stop the others, and
missing or unfinished trials can be run later.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from exact_cases import differences
from one_process import ONE_PROCESS
from paced import PACED, UNPACED, last_row
from trial_processes import (
    QUICK,
    experiment_running,
    fails_with_seed,
    frame,
    needs_proc,
    trial_statuses,
    wait_for,
    worker_of,
)

from labrl.cli import main, replay, send_to_wandb
from labrl.config.compose import hydra_initialized
from labrl.errors import DONE, WRONG_INPUT
from labrl.experiment.grid import combinations
from labrl.run.experiment import Experiment
from labrl.run.signature import signed
from labrl.session.devices import available_cpus

two_at_once = pytest.mark.skipif(available_cpus() < 2, reason="two trials at once need two cores")


pytestmark = pytest.mark.usefixtures("own_folder")


def the_experiment() -> Path:
    (folder,) = Path("runs").glob("*_experiment_*")
    return folder.resolve()


def test_overrides_with_one_value_reach_the_trials_as_typed() -> None:
    """Regression test: Hydra's own text of the value of json_str(...) cannot be read again."""
    fixed = ["~agent.lr", "+agent.lr=linear:1e-3:0", "+env.kwargs.x={a: 1}", "wandb.name='a, b'"]
    with hydra_initialized(None):
        assert combinations([*fixed, "seed=1,2"]) == [[*fixed, "seed=1"], [*fixed, "seed=2"]]


def test_trial_in_a_worker_equals_the_same_run_alone() -> None:
    """Run three trials in two processes, so that one process runs two of them."""
    assert main(["-m", *QUICK, "hydra.launcher.n_jobs=2", "seed=1,2,3"]) == 0
    for seed in (1, 2, 3):
        assert main([*QUICK, f"seed={seed}", f"hydra.run.dir=alone_{seed}"]) == 0
        assert differences(Path(f"alone_{seed}"), the_experiment() / f"{seed - 1}_random_cartpole") == []


def test_failed_trial_is_listed_with_its_error_and_the_others_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, fails_with_seed(1), "seed=0,1,2", "hydra.launcher.n_jobs=1"]) == 1
    output = capsys.readouterr()
    assert "trial 1" in output.out
    assert "RuntimeError: a wheel came off" in output.out
    assert f"labrl -m +resume={the_experiment()}" in output.out
    assert trial_statuses(the_experiment()) == ["finished", "failed", "finished"]
    assert Experiment.open(the_experiment()).recorded_status == "failed"


@pytest.mark.extended
@two_at_once
def test_killed_worker_fails_only_its_own_trial_and_sigusr2_saves_the_others(tmp_path: Path) -> None:
    overrides = [*QUICK, "meta.log_frequency=1e8", "hydra.launcher.n_jobs=2", "seed=0,1,2"]
    first, second, third = (tmp_path / "e" / f"{number}_random_cartpole" for number in range(3))
    with experiment_running(*overrides, PACED, "env.max_frame=1e9") as process:
        wait_for(lambda: frame(first) and frame(second), process)
        os.kill(worker_of(first), signal.SIGKILL)
        wait_for(lambda: frame(third), process)
        wait_for(lambda: trial_statuses(tmp_path / "e") == ["failed", "running", "running"], process)
        os.kill(process.pid, signal.SIGUSR2)
        checkpoints = "session_0/checkpoints/frame_*/manifest.json"
        wait_for(lambda: all(list(folder.glob(checkpoints)) for folder in (second, third)), process)
        reached = frame(second), frame(third)
        wait_for(lambda: frame(second) > reached[0] and frame(third) > reached[1], process)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 143
    assert "SIGKILL" in output
    assert trial_statuses(tmp_path / "e") == ["failed", "interrupted", "interrupted"]
    assert json.loads((first / "run.json").read_text())["status"] == "failed"


@pytest.mark.extended
@needs_proc
@two_at_once
def test_killed_and_resumed_experiment_equals_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, endless = "meta.log_frequency=200", "env.max_frame=1e9"
    overrides = [*QUICK, PACED, every, endless, "hydra.launcher.n_jobs=2", "seed=0,1,2"]
    first, second = (tmp_path / "e" / f"{number}_random_cartpole" for number in range(2))
    with experiment_running(*overrides) as process:
        wait_for(lambda: last_row(first) and last_row(second), process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()  # returns when the last worker has closed its output
    folder = Experiment.open("e")
    for run in (first, second):
        assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
        assert list((run / "session_0" / "checkpoints").glob("frame_*"))
    monkeypatch.setenv(UNPACED, "1")
    end = f"env.max_frame={max(last_row(first), last_row(second)) + 200}"
    assert main(["-m", f"+resume={tmp_path / 'e'}", end, "hydra.launcher.n_jobs=1"]) == 0
    assert (folder.recorded_status, trial_statuses(folder.path)) == ("finished", ["finished"] * 3)
    assert main([*QUICK, PACED, every, end, "seed=1", "hydra.run.dir=uninterrupted"]) == 0
    assert differences(Path("uninterrupted"), second) == []


def test_resume_runs_missing_trials_and_leaves_finished_ones_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1"]) == 0
    folder = the_experiment()
    before = {path: path.read_bytes() for path in folder.glob("*/**/*") if path.is_file()}
    capsys.readouterr()

    def resumed() -> list[int]:
        """Return the numbers in the first line of the output: finished trials and trials left to run."""
        line = capsys.readouterr().out.splitlines()[0]
        return [int(number) for number in re.findall(r"\d+", line.partition(str(folder))[2])]

    (folder.parent / "killed_before_its_start").mkdir()  # an empty folder, as Hydra creates it
    assert main(["-m", "+resume=latest"]) == 0
    assert resumed() == [2, 0]

    # The state after a kill while a trial that had finished training was making its report.
    info = json.loads((folder / "experiment.json").read_text())
    info["trials"][1]["status"] = "running"
    (folder / "experiment.json").write_text(json.dumps(signed(info)))
    assert main(["-m", "+resume=latest"]) == 0
    assert resumed() == [2, 0]
    assert trial_statuses(folder) == ["finished"] * 2

    assert main(["-m", "+resume=latest", "seed=1,5,0"]) == 0
    assert resumed() == [2, 1]
    after = {path: path.read_bytes() for path in before}
    assert after == before
    *_, added = Experiment.open(folder).trials()
    assert (added.number, added.folder, added.status) == (2, "2_random_cartpole", "finished")
    assert "seed=5" in added.overrides


@pytest.mark.extended
def test_resume_distinguishes_trials_by_budget_or_drawn_seed_and_keeps_the_seed() -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "env.max_frame=256,512", "seed=0", "hydra.sweep.dir=e"]) == 0
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=null,null", "hydra.sweep.dir=f"]) == 0
    for folder in ("e", "f"):
        before = {path: path.read_bytes() for path in Path(folder).glob("*/**/*") if path.is_file()}
        assert main(["-m", f"+resume={folder}"]) == 0
        assert trial_statuses(Path(folder)) == ["finished", "finished"]
        assert {path: path.read_bytes() for path in Path(folder).glob("*/**/*") if path.is_file()} == before
    seeds = [json.loads(path.read_text())["seed"] for path in sorted(Path("f").glob("*/provenance.json"))]
    assert main(["-m", "+resume=f", "env.max_frame=512"]) == 0
    again = [json.loads(path.read_text())["seed"] for path in sorted(Path("f").glob("*/resumes/1/*.json"))]
    assert again == seeds
    assert seeds[0] != seeds[1]


LEARNING = [*QUICK[2:], "env.num_envs=4", "hydra.sweep.dir=e", ONE_PROCESS]
PPO = ["agent.horizon=32", "agent.batch_size=128", "agent.epochs=1"]


def overrides_of(folder: Path) -> list[dict[str, str]]:
    """Return the latest overrides of each run in `folder` as a dictionary, in the order of the run names."""
    found = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*/overrides.yaml"))]
    return [dict(override.split("=", 1) for override in overrides) for overrides in found]


@pytest.mark.extended
def test_experiment_is_extended_with_the_overrides_that_labrl_suggests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *LEARNING, *PPO, "seed=0,1"]) == 0
    before = (Path("e") / "experiment.json").read_bytes()
    for budget, refused in (("512", True), ("640", False)):
        longer = ["-m", "+resume=e", f"env.max_frame={budget}"]
        if refused:
            capsys.readouterr()
            assert main(longer) == 2
            assert (Path("e") / "experiment.json").read_bytes() == before
            (typed,) = re.findall(rf": env\.max_frame={budget} (.*)", capsys.readouterr().err)
            longer += typed.split()
        assert main(longer) == 0
        assert trial_statuses(Path("e")) == ["finished", "finished"]
        assert [frame(path) for path in sorted(Path("e").glob("*_ppo_cartpole"))] == [int(budget)] * 2
    assert main(["-m", "+resume=e", "seed=0,1,2"]) == 0
    assert [(overrides["seed"], overrides["env.max_frame"]) for overrides in overrides_of(Path("e"))] == [
        (str(seed), "640") for seed in range(3)
    ]
    info = json.loads((Path("e") / "experiment.json").read_text())
    assert info["command"] == ["labrl", "-m", *LEARNING, *PPO, "seed=0,1"]
    edits = ["env.max_frame=512", "env.max_frame=640", "seed=0,1,2"]
    assert [entry["edits"][0] for entry in info["resumes"]] == edits
    run = json.loads((Path("e") / "0_ppo_cartpole" / "run.json").read_text())
    assert [entry["command"][:3] for entry in run["resumes"]] == [["labrl", "-m", "+resume=e"]] * 2
    assert run["resumes"][1]["edits"] == ["env.max_frame=640"]


@pytest.mark.extended
def test_edits_apply_to_every_trial_and_new_seeds_add_trials() -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1,2", "hydra.sweep.dir=e"]) == 0
    # The state after an interruption before two of the trials had started.
    info = json.loads((Path("e") / "experiment.json").read_text())
    for trial in info["trials"][1:]:
        shutil.rmtree(Path("e") / trial["folder"])
        trial["status"] = "waiting"
    (Path("e") / "experiment.json").write_text(json.dumps(signed({**info, "status": "interrupted"})))
    assert main(["-m", "+resume=e", "seed=0", "env.max_frame=384"]) == 0
    assert trial_statuses(Path("e")) == ["finished"] * 3
    assert [overrides["env.max_frame"] for overrides in overrides_of(Path("e"))] == ["384"] * 3
    assert main(["-m", "+resume=e", "seed=7"]) == 0
    assert main(["-m", "+resume=e", "env.max_frame=512"]) == 0
    assert [(overrides["seed"], overrides["env.max_frame"]) for overrides in overrides_of(Path("e"))] == [
        (seed, "512") for seed in "0127"
    ]


@pytest.mark.extended
def test_key_of_swept_agents_may_be_unknown_to_the_default_agent() -> None:
    assert main(["-m", *LEARNING, "agent=dqn,double_dqn", "agent.learning_starts=192", "seed=0"]) == 0
    assert [overrides["agent.learning_starts"] for overrides in overrides_of(Path("e"))] == ["192", "192"]


def returns_in(folder: str) -> dict[str, float]:
    """Return the mean return of each run on CartPole in a folder by its path."""
    runs = Path(folder).glob("*_cartpole/run.json")
    return {str(run.parent): json.loads(run.read_text())["sessions"][0]["return_mean"] for run in runs}


def test_command_for_a_run_refuses_an_experiment_and_lists_its_trials(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error lists the trials with their returns and suggests the command for the best one."""
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1,2", "hydra.sweep.dir=e"]) == 0
    returns = returns_in("e")
    best = max(returns, key=lambda path: returns[path])
    for command in ("labrl +resume=", "labrl +enjoy=", "labrl +rerun=", "labrl-replay "):
        capsys.readouterr()
        assert (replay(["e"]) if "replay" in command else main([f"{command.split()[1]}e"])) == 2
        message = capsys.readouterr().err
        for path, value in returns.items():
            assert any(path in line and f"{value:,.1f}" in line for line in message.splitlines())
        assert f"{command}{best}\n" in message
        assert ("labrl -m +resume=e" in message) == ("resume" in command)
    assert send_to_wandb(["e"]) == 2


def test_latest_of_an_experiment_is_its_best_trial(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [*QUICK, "env=cartpole,acrobot", ONE_PROCESS, "seed=0,1,2", "hydra.sweep.dir=runs/e"]
    assert main(["-m", *overrides]) == 0
    returns = returns_in("runs/e")
    best = max(returns, key=lambda path: returns[path])
    capsys.readouterr()
    assert main(["env=cartpole", "+enjoy=latest", "episodes=1", "videos=0"]) == 0
    output = capsys.readouterr().out
    assert best in output
    assert f"{returns[best]:,.1f}" in output
    assert (Path(best) / "enjoy").exists()
    assert main(["env=cartpole", "+rerun=latest"]) == 0
    assert best in capsys.readouterr().out

    for run in Path("runs").glob("*/run.json"):  # the rerun, which is now the newest run
        shutil.rmtree(run.parent)
    assert main(["+enjoy=latest", "episodes=1"]) == 2, "returns of two environments must not be compared"
    message = capsys.readouterr().err
    assert best in message
    assert "_acrobot" in message
    assert main(["+resume=latest"]) == 2
    assert "labrl -m +resume=runs/e" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+resume=nowhere"], ["nowhere"]),
        (["+resume=latest"], ["runs", "labrl -m +resume="]),
        (["+resume=alone"], ["alone", "-m", "labrl +resume=alone"]),
        (["+resume=e/0_random_cartpole"], ["e/0_random_cartpole", ", e\n"]),
        (["+resume=e", "hydra.sweep.dir=f"], ["hydra.sweep.dir=f"]),
        (["hydra.sweep.dir=e", *QUICK, "seed=1"], ["hydra.sweep.dir", "labrl -m +resume="]),
        ([*QUICK, "seed=interval(0,1)"], ["seed=interval(0,1)", "hydra/sweeper=optuna", "seed=1,2,3"]),
        ([*QUICK, "seed=1,2", "hydra.launcher.n_jobs=0"], ["hydra.launcher.n_jobs", "-1"]),
        ([*QUICK, "seed=1,2,3,4", "meta.max_trial=2"], ["meta.max_trial=2", "4"]),
        ([*QUICK, "+resume=e", "seed=0,1", "meta.max_trial=1"], ["meta.max_trial=1", "2"]),
        ([*QUICK, "seed=0,x,1"], ["seed=x"]),
        ([*QUICK, "env.max_frame=256,0", "seed=0"], ["env.max_frame=0"]),
        ([*QUICK, "seed=0,1,0"], ["seed=0"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_wrong_input_is_refused_before_any_trial_runs(
    overrides: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if any("e" in override.split("=")[-1].split("/")[:1] for override in overrides):
        assert main(["-m", *QUICK, ONE_PROCESS, "seed=0", "hydra.sweep.dir=e"]) == 0
    if "+resume=alone" in overrides:
        assert main([*QUICK, "hydra.run.dir=alone"]) == 0
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(["-m", *overrides]) == WRONG_INPUT
    message = capsys.readouterr()
    assert [part for part in named if part not in message.err] == [], message.err
    assert "Traceback" not in message.err + message.out
    assert sorted(Path().rglob("*")) == before


def test_grid_accepts_presets_and_max_trial_is_only_an_upper_limit() -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "meta=fast_atari", "meta.max_session=1", "seed=0,1"]) == DONE
    assert main(["-m", *QUICK, ONE_PROCESS, "meta.max_trial=3", "seed=0,1", "hydra.sweep.dir=e"]) == DONE
    assert main(["-m", "+resume=e", "seed=2,3"]) == WRONG_INPUT
    assert main(["-m", "+resume=e", "seed=2,3", "meta.max_trial=4"]) == DONE
    assert trial_statuses(Path("e")) == ["finished"] * 4
