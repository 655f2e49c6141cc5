"""An experiment: every trial is accounted for, one that fails or is killed leaves the others, and what is
missing or unfinished can be run later."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command, start_labrl
from exact_cases import differences
from paced import PACED
from test_trial_processes import needs_proc, wait_for

from labrl.cli import main, replay, send_to_wandb
from labrl.config.compose import compose
from labrl.errors import DONE, WRONG_INPUT, InputError
from labrl.experiment.grid import plan_grid
from labrl.experiment.local import LabelledLines
from labrl.experiment.machine import Machine
from labrl.storage.experiment_folder import ExperimentFolder
from labrl.trial.devices import available_cpus

QUICK = [
    "agent=random",
    "env.num_envs=1",
    "env.max_frame=256",
    "meta.log_frequency=128",
    "meta.progress=false",
    "meta.report=false",
    "meta.videos=false",
    "meta.tensorboard=false",
]
ONE_PROCESS = "hydra/launcher=basic"
two_at_once = pytest.mark.skipif(available_cpus() < 2, reason="two trials at once need two cores")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def the_experiment() -> Path:
    (folder,) = Path("runs").glob("*_experiment_*")
    return folder.resolve()


def trials(folder: Path) -> dict[str, tuple[str, str]]:
    """Folder and status of each trial by the overrides in which it differs."""
    return {
        " ".join(
            override
            for override in trial.overrides
            if override.startswith(("seed", "agent", "env=", "env.num"))
        ): (
            trial.folder,
            trial.status,
        )
        for trial in ExperimentFolder.open(folder).trials()
    }


def statuses(folder: Path) -> list[str]:
    return [trial.status for trial in ExperimentFolder.open(folder).trials()]


def frame(folder: Path) -> int:
    try:
        return json.loads((folder / "session_0" / "progress.json").read_text())["frame"]
    except FileNotFoundError:
        return 0


@contextmanager
def started(*overrides: str) -> Iterator[Command]:
    """The command in a process group of its own, as a terminal starts it."""
    process = start_labrl("-m", "hydra.sweep.dir=e", *overrides)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def worker_of(trial: Path) -> int:
    """The process that runs a trial, as its lock says."""
    return int((trial / ".lock").read_text().split()[1])


def test_a_grid_runs_every_combination_in_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "env=cartpole,acrobot", "env.max_frame=512", "seed=1,2"]) == 0
    said = capsys.readouterr().out
    folder = the_experiment()
    info = json.loads((folder / "experiment.json").read_text())
    assert (info["kind"], info["status"]) == ("grid", "finished")
    assert "env=cartpole,acrobot" in info["overrides"]
    for trial in info["trials"]:
        assert trial["status"] == "finished"
        run = folder / trial["folder"]
        assert json.loads((run / "run.json").read_text())["status"] == "finished"
        name = "cartpole" if "env=cartpole" in trial["overrides"] else "acrobot"
        assert trial["folder"] == f"{trial['number']}_random_{name}"
    assert len(info["trials"]) == 4
    assert str(folder) in said
    rows = [line.split()[-2:] for line in said.splitlines() if "env=" in line]
    assert ["2", "env=acrobot"] in rows, "a row for each group, with the number of its seeds"
    assert ["2", "env=cartpole"] in rows


def test_trials_that_differ_only_in_the_seed_are_one_group_without_overrides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "env.max_frame=512", "seed=1,2"]) == 0
    heads = [line.split() for line in capsys.readouterr().out.splitlines() if "seeds" in line.split()]
    assert ["final", "return", "seeds"] in heads


def test_workers_give_each_trial_what_it_gets_alone() -> None:
    """Two processes at once, reused for the next trial: the same rows as in a run of its own."""
    assert main(["-m", *QUICK, "hydra.launcher.n_jobs=2", "seed=1,2,3"]) == 0
    for seed in (1, 2, 3):
        assert main([*QUICK, f"seed={seed}", f"hydra.run.dir=alone_{seed}"]) == 0
        assert differences(Path(f"alone_{seed}"), the_experiment() / f"{seed - 1}_random_cartpole") == []


def test_a_trial_that_fails_is_listed_with_its_error_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "breaking.py").write_text(
        "from labrl.session.callbacks import Callback\n"
        "class Break(Callback):\n"
        "    def step(self, session):\n"
        "        if session.config.seed == 1 and session.clock.frame == 100:\n"
        "            raise RuntimeError('a wheel came off')\n"
    )
    overrides = ["+callbacks.breaking._target_=breaking.Break", "seed=0,1,2", "hydra.launcher.n_jobs=1"]
    assert main(["-m", *QUICK, *overrides]) == 1
    said = capsys.readouterr()
    assert "trial 1" in said.out
    assert "RuntimeError: a wheel came off" in said.out
    assert f"labrl -m +resume={the_experiment()}" in said.out
    assert statuses(the_experiment()) == ["finished", "failed", "finished"]
    assert ExperimentFolder.open(the_experiment()).status == "failed"


@needs_proc
def test_an_edit_that_would_change_the_past_is_refused_before_any_trial_is_touched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=1,2"]) == 0
    record = (the_experiment() / "experiment.json").read_bytes()
    capsys.readouterr()
    assert main(["-m", "+resume=latest", "meta.episode_window=50"]) == 2
    said = capsys.readouterr().err
    (row,) = [line.split() for line in said.splitlines() if "meta.episode_window  " in line]
    assert row[1:] == ["meta.episode_window", "100", "50", "trials", "0,", "1"]
    assert (the_experiment() / "experiment.json").read_bytes() == record


@two_at_once
def test_a_killed_worker_takes_its_trial_and_no_other(tmp_path: Path) -> None:
    overrides = [*QUICK, "meta.log_frequency=1e6", "hydra.launcher.n_jobs=2", "seed=0,1,2"]
    first, second, third = (tmp_path / "e" / f"{number}_random_cartpole" for number in range(3))
    with started(*overrides, PACED, "env.max_frame=1e9") as process:
        wait_for(lambda: frame(first) and frame(second), process)
        os.kill(worker_of(first), signal.SIGKILL)
        wait_for(lambda: frame(third), process)
        reached = frame(second)
        wait_for(lambda: frame(second) > reached, process)
        assert statuses(tmp_path / "e") == ["failed", "running", "running"]
        os.kill(process.pid, signal.SIGTERM)
        said, _ = process.communicate()
    assert process.returncode == 143
    assert "SIGKILL" in said
    assert statuses(tmp_path / "e") == ["failed", "interrupted", "interrupted"]
    assert json.loads((first / "run.json").read_text())["status"] == "failed"


@needs_proc
@two_at_once
@pytest.mark.parametrize("how", [pytest.param("ctrl-c", marks=pytest.mark.slow), "kill -9"])
def test_a_stopped_experiment_goes_on_as_if_it_had_not_been(how: str, tmp_path: Path) -> None:
    every, endless = "meta.log_frequency=200", "env.max_frame=1e9"
    overrides = [*QUICK, PACED, every, endless, "hydra.launcher.n_jobs=2", "seed=0,1,2"]
    first, second = (tmp_path / "e" / f"{number}_random_cartpole" for number in range(2))
    with started(*overrides) as process:
        wait_for(lambda: frame(first) and frame(second), process)
        if how == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
        else:
            os.kill(process.pid, signal.SIGKILL)
        said, _ = process.communicate()  # until the last worker has let go of its output
    folder = ExperimentFolder.open("e")
    if how == "ctrl-c":
        assert process.returncode == 130
        assert "Traceback" not in said
        assert f"labrl -m +resume={tmp_path / 'e'}" in said
        assert (folder.status, statuses(folder.path)) == (
            "interrupted",
            ["interrupted", "interrupted", "waiting"],
        )
    for run in (first, second):
        assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
        assert list((run / "session_0" / "checkpoints").glob("frame_*"))
    end = f"env.max_frame={max(frame(first), frame(second)) + 200}"
    assert main(["-m", f"+resume={tmp_path / 'e'}", end, "hydra.launcher.n_jobs=1"]) == 0
    assert (folder.status, statuses(folder.path)) == ("finished", ["finished"] * 3)
    assert main([*QUICK, PACED, every, end, "seed=1", "hydra.run.dir=whole"]) == 0
    assert differences(Path("whole"), second) == []


def test_resume_runs_what_is_missing_and_leaves_alone_what_has_finished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1"]) == 0
    folder = the_experiment()
    before = {path: path.read_bytes() for path in folder.glob("*/**/*") if path.is_file()}
    capsys.readouterr()

    def resumed() -> list[int]:
        """The numbers in the first line: trials that have finished, and those that are left."""
        line = capsys.readouterr().out.splitlines()[0]
        return [int(number) for number in re.findall(r"\d+", line.partition(str(folder))[2])]

    (folder.parent / "killed_before_its_start").mkdir()  # as Hydra makes it
    assert main(["-m", "+resume=latest"]) == 0
    assert resumed() == [2, 0]

    # as a kill leaves it while a trial, whose run is over, makes its report
    info = json.loads((folder / "experiment.json").read_text())
    info["trials"][1]["status"] = "running"
    (folder / "experiment.json").write_text(json.dumps(info))
    assert main(["-m", "+resume=latest"]) == 0
    assert resumed() == [2, 0]
    assert statuses(folder) == ["finished"] * 2

    assert main(["-m", "+resume=latest", "seed=1,5,0"]) == 0
    assert resumed() == [2, 1]
    after = {path: path.read_bytes() for path in before}
    assert after == before
    assert {overrides: found for overrides, found in trials(folder).items() if "seed=5" in overrides} == {
        "agent=random env.num_envs=1 seed=5": ("2_random_cartpole", "finished")
    }
    assert len(statuses(folder)) == 3


def test_resume_with_a_larger_budget_goes_on_with_every_trial(tmp_path: Path) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1", "hydra.sweep.dir=e"]) == 0
    assert main(["-m", "+resume=e", "env.max_frame=512"]) == 0
    assert statuses(Path("e")) == ["finished", "finished"]
    assert [frame(tmp_path / "e" / f"{number}_random_cartpole") for number in (0, 1)] == [512, 512]


def test_trials_that_differ_in_their_budget_or_in_a_drawn_seed_alone_are_told_apart_on_resume() -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "env.max_frame=256,512", "seed=0", "hydra.sweep.dir=e"]) == 0
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=null,null", "hydra.sweep.dir=f"]) == 0
    for folder in ("e", "f"):
        before = {path: path.read_bytes() for path in Path(folder).glob("*/**/*") if path.is_file()}
        assert main(["-m", f"+resume={folder}"]) == 0
        assert statuses(Path(folder)) == ["finished", "finished"]
        assert {path: path.read_bytes() for path in Path(folder).glob("*/**/*") if path.is_file()} == before


LEARNING = [
    *QUICK[2:],
    "env.num_envs=4",
    "hydra.sweep.dir=e",
    ONE_PROCESS,
]
PPO = ["agent.horizon=32", "agent.batch_size=128", "agent.epochs=1"]


def overrides_of(folder: Path) -> list[dict[str, str]]:
    """Key and value of the overrides that each run below `folder` was composed with at last, by its name."""
    found = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*/overrides.yaml"))]
    return [dict(override.split("=", 1) for override in overrides) for overrides in found]


def the_config(run: str) -> dict[str, Any]:
    return yaml.safe_load((Path(run) / "config.yaml").read_text())


def advice(said: str) -> list[str]:
    """The overrides that a refusal offers to keep the past as it was: of keys in its table, or +pin=true."""
    keys = {line.removeprefix("labrl:").split()[0] for line in said.splitlines() if line.strip(" labr:")}
    overrides = dict.fromkeys(re.findall(r"\S+=\S+", said))
    return [
        override for override in overrides if override.partition("=")[0] in keys or override == "+pin=true"
    ]


def test_an_experiment_is_extended_by_the_very_words_that_the_refusal_offers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *LEARNING, *PPO, "seed=0,1"]) == 0
    before = (Path("e") / "experiment.json").read_bytes()
    for budget, pins in (("512", True), ("640", False)):  # an extension is extended, too
        longer = ["-m", "+resume=e", f"env.max_frame={budget}"]
        if pins:
            assert main(longer) == 2
            assert (Path("e") / "experiment.json").read_bytes() == before
            longer += advice(capsys.readouterr().err)
        assert main(longer) == 0
        assert statuses(Path("e")) == ["finished", "finished"]
        assert [frame(path) for path in sorted(Path("e").glob("*_ppo_cartpole"))] == [int(budget)] * 2
        assert [overrides["agent.lr.horizon"] for overrides in overrides_of(Path("e"))] == ["256", "256"]
    assert main(["-m", "+resume=e", "seed=0,1,2"]) == 0
    assert [
        (overrides["seed"], overrides["env.max_frame"], overrides["agent.clip_range.horizon"])
        for overrides in overrides_of(Path("e"))
    ] == [(str(seed), "640", "256") for seed in range(3)]
    info = json.loads((Path("e") / "experiment.json").read_text())
    assert info["command"] == ["labrl", "-m", *LEARNING, *PPO, "seed=0,1"]
    assert [entry["edits"][0] for entry in info["resumes"]] == [
        "env.max_frame=512",
        "env.max_frame=640",
        "seed=0,1,2",
    ]
    run = json.loads((Path("e") / "0_ppo_cartpole" / "run.json").read_text())
    assert [entry["command"][:3] for entry in run["resumes"]] == [["labrl", "-m", "+resume=e"]] * 2
    assert run["resumes"][1]["edits"] == ["env.max_frame=640"]


def test_in_a_mixed_grid_a_pin_is_given_to_the_trials_that_have_its_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """ppo has agent.clip_range.horizon, dqn has none, and neither has the keys of the other."""
    assert main(["-m", *LEARNING, "agent=dqn,ppo", "seed=0", "env.max_frame=1088"]) == 0
    assert main(["-m", "+resume=e", "env.max_frame=1152"]) == 2
    pins = advice(capsys.readouterr().err)
    own = f"agent.learning_starts={the_config('e/0_dqn_cartpole')['agent']['learning_starts']}"
    assert main(["-m", "+resume=e", "env.max_frame=1152", *pins, own]) == 0
    dqn, ppo = overrides_of(Path("e"))
    assert statuses(Path("e")) == ["finished", "finished"]
    assert (dqn["agent.lr.horizon"], ppo["agent.lr.horizon"]) == ("1088", "1088")
    assert "agent.clip_range.horizon" in ppo
    assert "agent.clip_range.horizon" not in dqn
    assert "agent.learning_starts" not in ppo
    assert main(["-m", "+resume=e", "seed=0,1"]) == 0  # new trials are composed in the same way
    assert len(overrides_of(Path("e"))) == 4
    assert main(["-m", "+resume=e", "agent.nonesuch=1"]) == 2
    assert "agent.nonesuch" in capsys.readouterr().err


def test_trials_that_need_different_pins_are_extended_by_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *LEARNING, *PPO, "env.max_frame=128,256", "seed=0"]) == 0
    assert main(["-m", "+resume=e", "env.max_frame=384"]) == 2
    pins = advice(capsys.readouterr().err)
    assert pins == ["+pin=true"]
    assert main(["-m", "+resume=e", "env.max_frame=384", *pins]) == 0
    assert [overrides["agent.lr.horizon"] for overrides in overrides_of(Path("e"))] == ["128", "256"]
    assert [frame(path) for path in sorted(Path("e").glob("*_ppo_cartpole"))] == [384, 384]


def test_edits_that_name_trials_are_for_these_alone_and_no_trial_is_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1,2", "hydra.sweep.dir=e"]) == 0
    # as a command leaves it that was interrupted before two of its trials had begun
    info = json.loads((Path("e") / "experiment.json").read_text())
    for trial in info["trials"][1:]:
        shutil.rmtree(Path("e") / trial["folder"])
        trial["status"] = "waiting"
    (Path("e") / "experiment.json").write_text(json.dumps({**info, "status": "interrupted"}))
    assert main(["-m", "+resume=e", "seed=0", "env.max_frame=384"]) == 0
    assert statuses(Path("e")) == ["finished"] * 3
    assert [overrides["env.max_frame"] for overrides in overrides_of(Path("e"))] == ["384", "256", "256"]
    assert main(["-m", "+resume=e", "seed=7"]) == 0
    assert main(["-m", "+resume=e", "env.max_frame=512"]) == 0
    assert [(overrides["seed"], overrides["env.max_frame"]) for overrides in overrides_of(Path("e"))] == [
        (seed, "512") for seed in "0127"
    ]
    capsys.readouterr()
    record = (Path("e") / "experiment.json").read_bytes()
    assert main(["-m", "+resume=e", "env.max_frame=300"]) == 2
    told = capsys.readouterr().err
    assert "env.max_frame=300" in told
    assert "512" in told
    assert (Path("e") / "experiment.json").read_bytes() == record


def test_a_key_of_swept_agents_need_not_be_one_of_the_default_agent() -> None:
    assert main(["-m", *LEARNING, "agent=dqn,double_dqn", "agent.learning_starts=192", "seed=0"]) == 0
    assert [overrides["agent.learning_starts"] for overrides in overrides_of(Path("e"))] == ["192", "192"]


def test_a_drawn_seed_is_kept_by_the_resumed_trial() -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "env.num_envs=1,2", "hydra.sweep.dir=e"]) == 0
    seeds = [json.loads(path.read_text())["seed"] for path in sorted(Path("e").glob("*/provenance.json"))]
    assert main(["-m", "+resume=e", "env.max_frame=512"]) == 0
    again = [json.loads(path.read_text())["seed"] for path in sorted(Path("e").glob("*/resumes/1/*.json"))]
    assert again == seeds
    assert seeds[0] != seeds[1]


def test_an_experiment_is_not_taken_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A command for one run lists the trials with their returns, the best first, and what to type."""
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0,1,2", "hydra.sweep.dir=e"]) == 0
    returns = {
        f"e/{seed}_random_cartpole": json.loads(Path(f"e/{seed}_random_cartpole/run.json").read_text())[
            "sessions"
        ][0]["return_mean"]
        for seed in range(3)
    }
    best = max(returns, key=lambda path: returns[path])
    for command in ("labrl +resume=", "labrl +enjoy=", "labrl +rerun=", "labrl-replay "):
        capsys.readouterr()
        assert (replay(["e"]) if "replay" in command else main([f"{command.split()[1]}e"])) == 2
        told = capsys.readouterr().err
        for path, value in returns.items():
            assert any(path in line and f"{value:,.1f}" in line for line in told.splitlines())
        assert f"{command}{best}\n" in told
        assert ("labrl -m +resume=e" in told) == ("resume" in command)
    assert send_to_wandb(["e"]) == 2


def test_the_latest_of_an_experiment_is_its_best_trial(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["-m", *QUICK, "env=cartpole,acrobot", ONE_PROCESS, "seed=0,1,2", "hydra.sweep.dir=runs/e"]) == 0
    )
    returns = {
        run.parent.name: json.loads(run.read_text())["sessions"][0]["return_mean"]
        for run in Path("runs/e").glob("*_cartpole/run.json")
    }
    best = max(returns, key=lambda name: returns[name])
    capsys.readouterr()
    assert main(["env=cartpole", "+enjoy=latest", "episodes=1", "videos=0"]) == 0
    said = capsys.readouterr().out
    assert best in said
    assert f"{returns[best]:,.1f}" in said
    assert (Path("runs/e") / best / "enjoy").exists()
    assert main(["env=cartpole", "+rerun=latest"]) == 0
    assert best in capsys.readouterr().out

    for run in Path("runs").glob("*/run.json"):  # of the repetition, which is the newest now
        shutil.rmtree(run.parent)
    assert main(["+enjoy=latest", "episodes=1"]) == 2, "returns of two environments are not compared"
    told = capsys.readouterr().err
    assert f"runs/e/{best}" in told
    assert "_acrobot" in told
    assert main(["+resume=latest"]) == 2
    assert "labrl -m +resume=runs/e" in capsys.readouterr().err


def test_what_is_offered_in_place_of_a_mistyped_experiment_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "seed=0", "hydra.sweep.dir=runs/mine"]) == 0
    assert main(["-m", "+resume=elsewhere/min"]) == 2
    assert "runs/mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+resume=nowhere"], ["nowhere"]),
        (["+resume=."], ["experiment.json"]),
        (["+resume=latest"], ["runs", "labrl -m +resume="]),
        (["+resume=alone"], ["alone", "-m", "labrl +resume=alone"]),
        (["+resume=e/0_random_cartpole"], ["e/0_random_cartpole", ", e\n"]),
        (["+rerun=e"], ["+rerun", "-m"]),
        (["+resume=e", "hydra.sweep.dir=f"], ["hydra.sweep.dir=f"]),
        (["hydra.sweep.dir=e", *QUICK, "seed=1"], ["hydra.sweep.dir", "labrl -m +resume="]),
        ([*QUICK, "seed=interval(0,1)"], ["seed=interval(0,1)", "hydra/sweeper=optuna", "seed=1,2,3"]),
        ([*QUICK, "seed=1,2", "hydra.launcher.n_jobs=0"], ["hydra.launcher.n_jobs", "-1"]),
        ([*QUICK, "seed=1,2", "meta.num_gpus=99"], ["meta.num_gpus", "99"]),
        ([*QUICK, "seed=1,2", "meta.num_cpus=9999"], ["meta.num_cpus", "9999"]),
        ([*QUICK, "seed=1,2,3,4", "meta.max_trial=2"], ["meta.max_trial=2", "4"]),
        ([*QUICK, "+resume=e", "seed=0,1", "meta.max_trial=1"], ["meta.max_trial=1", "2"]),
        ([*QUICK, "seed=1,2", "hydra.sweep.subdir=same"], ["hydra.sweep.subdir", "same", "${hydra.job.num}"]),
        ([*QUICK, "seed=1,2", "hydra/launcher=nonesuch"], ["hydra/launcher=nonesuch"]),
        ([*QUICK, "seed="], ["seed", "''"]),
        ([*QUICK, "seed=0,,1"], ["seed=0,,1"]),
        ([*QUICK, "seed=0,x,1"], ["seed=x"]),
        ([*QUICK, "env.max_frame=256,0", "seed=0"], ["env.max_frame=0"]),
        ([*QUICK, "seed=0,1,0"], ["seed=0"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_wrong_input_is_refused_before_any_trial(
    overrides: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if any("e" in override.split("=")[-1].split("/")[:1] for override in overrides):
        assert main(["-m", *QUICK, ONE_PROCESS, "seed=0", "hydra.sweep.dir=e"]) == 0
    if "+resume=alone" in overrides:
        assert main([*QUICK, "hydra.run.dir=alone"]) == 0
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(["-m", *overrides]) == WRONG_INPUT
    told = capsys.readouterr()
    assert [part for part in named if part not in told.err] == [], told.err
    assert "Traceback" not in told.err + told.out
    assert sorted(Path().rglob("*")) == before


def test_a_preset_of_sessions_goes_with_a_grid_and_a_limit_is_no_target() -> None:
    assert main(["-m", *QUICK, ONE_PROCESS, "meta=fast_atari", "meta.max_session=1", "seed=0,1"]) == DONE
    assert statuses(the_experiment()) == ["finished", "finished"]
    assert main(["-m", *QUICK, ONE_PROCESS, "meta.max_trial=3", "seed=0,1", "hydra.sweep.dir=e"]) == DONE
    assert main(["-m", "+resume=e", "seed=2,3"]) == WRONG_INPUT
    assert main(["-m", "+resume=e", "seed=2,3", "meta.max_trial=4"]) == DONE
    assert statuses(Path("e")) == ["finished"] * 4


def test_mistakes_of_a_trial_keep_their_key_and_code() -> None:
    machine = Machine(cores=2, gpus=[])
    with pytest.raises(InputError) as refused:
        plan_grid(
            [*QUICK, "env.max_frame=256,0", "seed=0"],
            lambda overrides: compose(overrides, with_hydra=True),
            machine,
        )
    assert (refused.value.code, refused.value.key) == ("range", "env.max_frame")
    with pytest.raises(InputError) as refused:
        plan_grid(
            [*QUICK, "seed=0,1", "meta.max_trial=1"],
            lambda overrides: compose(overrides, with_hydra=True),
            machine,
        )
    assert (refused.value.code, refused.value.key) == ("contradiction", "meta.max_trial")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "printed"),
    [
        (_Terminal(), "[0] twelve words\n    wide and\n    more\n[0] short\n"),
        (io.StringIO(), "[0] twelve words wide and more\n[0] short\n"),
    ],
)
def test_a_trials_lines_break_between_words_in_a_terminal(
    stream: io.StringIO, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "16")
    lines = LabelledLines(stream)
    lines.label = "[0] "
    lines.write("twelve words wide and more\nsho")
    lines.write("rt\n")
    assert stream.getvalue() == printed
