"""Tests of the command `labrl-session`: a session needs the folder of its run, secrets, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import start_module
from exact_cases import differences
from one_process import ONE_PROCESS

from labrl.cli import main
from labrl.config.compose import compose
from labrl.run.provenance import Origin
from labrl.run.run import Run
from labrl.run.signature import signed
from labrl.session.callbacks.callback import Callback
from labrl.trial.configuration import configure
from labrl.trial.create import create
from labrl.trial.train import carry_out

pytestmark = pytest.mark.extended

QUICK = ["env=cartpole", "agent=ppo", "env.max_frame=256", "env.num_envs=2", "agent.horizon=32", "seed=1"]
QUICK += ["agent.batch_size=32", "meta.tensorboard=false", "wandb=disabled"]
CONSTANT = ["agent.lr=1e-3", "agent.clip_range=0.2"]

PROGRAM = """
import sys
from labrl.session.__main__ import main

code = main()
print(code, [name for name in sys.modules if name.partition(".")[0] == "hydra"])
"""


def test_session_runs_from_its_folder_alone_without_hydra(tmp_path: Path) -> None:
    plain, again = tmp_path / "plain", tmp_path / "again"
    assert main([*QUICK, f"hydra.run.dir={plain}"]) == 0
    shutil.copytree(plain, again)
    shutil.rmtree(again / "session_0")
    program = [sys.executable, "-c", PROGRAM, str(again), "0"]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
    assert differences(plain, again) == []


def test_sessions_run_one_after_another_and_the_largest_exit_code_counts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*QUICK, f"hydra.run.dir={run}", "meta.max_session=2"]) == 0
    for index in (0, 1):
        shutil.rmtree(run / f"session_{index}")
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    facts = json.loads((run / "provenance.json").read_text())
    facts["config"]["agent"]["horizon"] = "many"
    (broken / "provenance.json").write_text(json.dumps(facts))
    (broken / "config.yaml").write_text(yaml.safe_dump(facts["config"]))
    orders = [(run, 1), (broken, 0), (tmp_path / "nowhere", 0), (run, 0)]
    command = start_module("labrl.session", *(str(part) for order in orders for part in order))
    output, _ = command.communicate()
    assert command.returncode == 2, output
    assert "Traceback" not in output
    assert str(tmp_path / "nowhere") in output
    for index in (0, 1):
        assert json.loads((run / f"session_{index}/result.json").read_text())["status"] == "finished"
    assert "agent.horizon" in json.loads((broken / "session_0/result.json").read_text())["error"]


class Own(Callback):
    """A user's callback."""


@pytest.mark.parametrize("by_resume", [True, False])
def test_run_that_was_killed_between_planning_and_training_waits(tmp_path: Path, by_resume: bool) -> None:
    plain, planned = tmp_path / "plain", tmp_path / "planned"
    assert main([*QUICK, f"hydra.run.dir={plain}"]) == 0
    run = create(configure(compose(QUICK), Origin(QUICK)), str(planned))
    assert (run.recorded_status, Run.open(planned).status) == ("waiting", "waiting")
    if by_resume:
        assert main([f"+resume={planned}"]) == 0
    else:
        assert start_module("labrl.session", str(planned), "0", output=False).wait() == 0
    assert differences(plain, planned) == []


def test_trial_that_was_killed_while_it_was_planned_is_planned_again(tmp_path: Path) -> None:
    overrides = [*QUICK, "meta.report=false", f"hydra.sweep.dir={tmp_path / 'e'}", ONE_PROCESS]
    assert main(["-m", *overrides]) == 0
    run = next((tmp_path / "e").glob("0_*"))
    shutil.rmtree(run / "session_0")
    (run / "config.yaml").unlink()
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "waiting", "sessions": []}))
    experiment = tmp_path / "e" / "experiment.json"
    facts = json.loads(experiment.read_text())
    facts["trials"][0]["status"] = "waiting"
    experiment.write_text(json.dumps(signed(facts)))
    assert main(["-m", f"+resume={tmp_path / 'e'}"]) == 0
    assert Run.open(run).recorded_status == "finished"


def test_job_that_was_cut_off_goes_on_where_nobody_knows_the_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a cluster may not have the key with which the planning machine has signed the run."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    own = [*QUICK, "+callbacks.own._target_=test_session_command.Own", "meta.log_frequency=64"]
    for folder, budget in ((whole, 256), (cut, 128)):
        assert main([*own, f"env.max_frame={budget}", *CONSTANT, f"hydra.run.dir={folder}"]) == 0
    for name in ("config.yaml", "provenance.json", "overrides.yaml"):
        shutil.copy(whole / name, cut / name)
    (cut / "session_0" / "result.json").unlink()
    Run.open(cut).set_status("running")
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "elsewhere"))
    order = {"folder": str(cut), "cwd": str(tmp_path), "label": "", "full_error": False}
    assert carry_out({**order, "log": None, "logging": None}) == (0, None)
    assert differences(whole, cut) == []
