"""Tests of trials as cluster jobs: submitit and Ray on this machine, and the configuration of SLURM."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
from one_process import ONE_PROCESS
from paced import last_row
from trial_processes import (
    ENDLESS,
    QUICK,
    experiment_running,
    fails_with_seed,
    needs_proc,
    trial_statuses,
    wait_for,
    worker_of,
)

from labrl.cli import main
from labrl.config.compose import compose
from labrl.errors import install_command
from labrl.run.run import Run

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="needs the extra submitit"
)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")


pytestmark = pytest.mark.usefixtures("own_folder")


def preempt(trial: Path) -> None:
    """Send SIGUSR2 to the processes of the job that runs a trial, as SLURM does before it preempts a job."""
    job = [worker_of(trial)]
    while "submitit.core._submit" not in Path(f"/proc/{job[-1]}/cmdline").read_text():
        job.append(int(Path(f"/proc/{job[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    for one in job:
        os.kill(one, signal.SIGUSR2)


SEVERAL = ["hydra/launcher=submitit_local", "hydra.launcher.trials_per_job=2"]


def resumed(trial: Path) -> bool:
    """Return whether a trial continued from a checkpoint."""
    return bool(json.loads((trial / "run.json").read_text()).get("resumes"))


@pytest.mark.extended
@needs_submitit
@needs_proc
def test_killed_or_preempted_job_continues_the_trials_that_have_not_ended(tmp_path: Path) -> None:
    failed, second, killed, fourth = (tmp_path / "e" / f"{number}_random_cartpole" for number in range(4))
    with experiment_running(*ENDLESS, *SEVERAL, fails_with_seed(0), "seed=0,1,2,3") as process:
        wait_for(lambda: last_row(second) and last_row(killed), process)
        assert Run.status_at(fourth) == "waiting", "trials of a job run one after the other"
        os.kill(worker_of(killed), signal.SIGKILL)
        wait_for(lambda: last_row(fourth), process)
        preempt(second)
        wait_for(lambda: resumed(second), process)
        reached = last_row(second)
        wait_for(lambda: last_row(second) > reached, process)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130
    assert "trial 0" in output
    assert f"labrl -m +resume={tmp_path / 'e'}" in output
    assert trial_statuses(tmp_path / "e") == ["failed", "interrupted", "failed", "interrupted"]
    assert not resumed(failed), "a trial that had failed ran again"
    info = json.loads((second / "run.json").read_text())
    assert info["resumes"][0]["frames"]["0"] > 0, "the requeued job did not continue from a checkpoint"
    folder = tmp_path / "e" / ".submitit"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "its files contain secrets"
    log = "".join(path.read_text() for end in ("err", "out") for path in folder.glob(f"*/*.{end}"))
    assert "preempted" in log
    assert "Requeued job" in log


@needs_submitit
@pytest.mark.slow
def test_search_submits_its_trials_in_jobs_of_several() -> None:
    search = ["hydra/sweeper=optuna", "env.num_envs=1,2", "search.confirm=null", "search/pruner=none"]
    several = [*SEVERAL, "hydra.sweeper.n_jobs=2", "meta.max_trial=3"]
    assert main(["-m", *QUICK, *several, *search, "hydra.sweep.dir=e"]) == 0
    info = json.loads(Path("e/experiment.json").read_text())
    assert [trial["state"] for trial in info["trials"]] == ["complete"] * 3
    assert len(list(Path("e/.submitit").glob("*/*_result.pkl"))) == 2


@pytest.mark.parametrize(
    ("meta", "trials", "resources"),
    [
        ("max_session=4", 1, (4, 0)),
        ("num_gpus=0.25", 3, (6, 1)),
        ("num_gpus=0.25", 8, (8, 1)),
        ("num_gpus=1", 8, (2, 1)),
    ],
)
def test_slurm_job_requests_the_resources_of_the_trials_that_share_its_gpu_and_is_requeued(
    meta: str, trials: int, resources: tuple[int, int]
) -> None:
    overrides = [f"hydra.launcher.trials_per_job={trials}", f"meta.{meta}"]
    overrides += ["meta.num_cpus=2"] if "gpus" in meta else []
    chosen = compose(["hydra/launcher=submitit_slurm", *overrides], with_hydra=True).hydra.launcher
    assert (chosen.cpus_per_task, chosen.gpus_per_node) == resources
    assert chosen.max_num_timeout > 0, "a job that reaches its time limit is not requeued"


@pytest.mark.extended
@needs_submitit
@pytest.mark.parametrize("resumed", [False, True])
def test_launch_rejected_by_slurm_leaves_no_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], resumed: bool
) -> None:
    overrides = ["-m", *QUICK, "hydra.sweep.dir=e", "seed=0,1"]
    requested = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu"]
    requested += ["meta.num_cpus=64", "meta.num_gpus=1"]
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main([*overrides, *requested]) == 2
    assert "hydra/launcher=submitit_slurm" in capfd.readouterr().err
    assert not Path("e").exists()

    for name in ("srun", "sbatch"):
        program = tmp_path / "bin" / name
        error = "sbatch: error: invalid partition specified: gpu"
        program.write_text(f"#!/bin/sh\ncp $1 {tmp_path}/script\necho '{error}' >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / "bin" / name))
    if resumed:
        assert main([*overrides, ONE_PROCESS]) == 0
    assert main(["-m", "+resume=e", "seed=0,1,2", *requested] if resumed else [*overrides, *requested]) == 2
    error = capfd.readouterr().err
    assert "hydra.launcher" in error
    assert "sbatch: error: invalid partition specified: gpu" in error, "SLURM's own message is missing"
    assert Path("e").exists() == resumed
    assert len(list(Path().glob("e/*/run.json"))) == 2 * resumed
    script = (tmp_path / "script").read_text()
    for one in ("partition=gpu", "cpus-per-task=64", "signal=USR2@120"):
        assert f"#SBATCH --{one}" in script


@pytest.mark.extended
@needs_ray
@needs_proc
def test_ray_trial_may_be_killed_while_another_runs(tmp_path: Path) -> None:
    overrides = [*ENDLESS, "hydra/launcher=ray", "seed=0,1"]
    overrides += ["hydra.launcher.ray.init.num_cpus=2", "hydra.launcher.ray.init.include_dashboard=false"]
    first, second = (tmp_path / "e" / f"{number}_random_cartpole" for number in range(2))
    with experiment_running(*overrides) as process:
        wait_for(lambda: last_row(first) and last_row(second), process)
        os.kill(worker_of(first), signal.SIGKILL)
        wait_for(lambda: trial_statuses(tmp_path / "e") == ["failed", "running"], process)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert trial_statuses(tmp_path / "e") == ["failed", "interrupted"]
    assert list((second / "session_0" / "checkpoints").glob("frame_*"))


@needs_ray
@needs_proc
@pytest.mark.slow
def test_trials_of_a_search_continue_on_another_node_when_theirs_is_lost(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    trials = [tmp_path / "e" / f"{number}_random_cartpole" for number in range(3)]
    overrides = [*QUICK, "env.max_frame=30000", "meta.log_frequency=2000", "hydra/launcher=ray"]
    overrides += ["hydra/sweeper=optuna", "meta.max_trial=3", "search.confirm=null", "search/pruner=median"]
    overrides += ["search.pruner.n_startup_trials=9", "meta.eval_frequency=10000", "env.num_envs=1,2"]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        address = f"hydra.launcher.ray.init.address={cluster.address}"
        with experiment_running(*overrides, "seed=1", address) as process:
            saved = "session_0/checkpoints/frame_*"
            wait_for(lambda: all(list(trial.glob(saved)) for trial in trials[:2]), process)
            (node,) = cluster.worker_nodes
            cluster.remove_node(node, allow_graceful=False)
            output, _ = process.communicate()
    finally:
        cluster.shutdown()
    assert process.returncode == 0, output
    info = json.loads((tmp_path / "e" / "experiment.json").read_text())
    assert [trial["state"] for trial in info["trials"]] == ["complete"] * 3
    assert all(len(trial["intermediate"]) == 3 for trial in info["trials"]), (
        "a trial has not reported all its evaluations"
    )
    assert sum(map(resumed, trials)) == 1


@pytest.mark.parametrize("name", ["submitit_local", "ray"])
def test_error_for_missing_launcher_names_the_package_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = name.partition("_")[0]
    monkeypatch.setitem(sys.modules, extra, None)  # as if it were not installed
    assert main(["-m", *QUICK, f"hydra/launcher={name}", "seed=0"]) == 2
    assert install_command(extra) in capsys.readouterr().err
