"""Tests of training from a script or notebook: only its process has its classes, and none runs it again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

import labrl
from labrl.errors import InputError

QUICK = ["agent=random", "env.num_envs=2", "env.max_frame=100", "seed=1", "wandb=disabled"]
QUICK += ["meta.report=false", "meta.videos=false", "meta.tensorboard=false"]
OWN = ["env=gymnasium", "env.id=null", "env.name=mine"]

ENVIRONMENT = """
import gymnasium
import numpy as np
import labrl

class Ten(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {"note": Note()}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), REWARD, self.steps == 10, False, {}

class Note:
    pass

REWARD = 0.5
"""


def run(script: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Write a script, run it in its folder, and check that it succeeds."""
    script.write_text(text)
    done = subprocess.run([sys.executable, script], cwd=script.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.extended
def test_script_without_a_main_guard_trains_once_with_several_sessions(tmp_path: Path) -> None:
    """Its workers do not prefer files of the working folder to the standard library."""
    for name in ("selectors", "queue", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    program = tmp_path / "program"
    program.mkdir()
    (program / "tens.py").write_text(f"{ENVIRONMENT}\ngymnasium.register('Ten-v0', entry_point=Ten)")
    overrides = ["env=gymnasium", *QUICK, "env.id=Ten-v0", "env.vectorization=async", "meta.max_session=2"]
    overrides += ["hydra.run.dir=a"]
    train = f"import labrl, os, tens\nprint('ran')\nos.chdir('..')\nlabrl.train({overrides})\n"
    assert run(program / "script.py", train).stdout.count("ran\n") == 1
    for session in json.loads((tmp_path / "a" / "run.json").read_text())["sessions"]:
        assert (session["status"], session["return_mean"]) == ("finished", 5.0)


@pytest.mark.extended
def test_class_of_a_script_trains_and_resumes_in_its_process_only(tmp_path: Path) -> None:
    own = [*OWN, *QUICK, "env.make={_target_: __main__.Ten}"]
    registered = ["env=gymnasium", *QUICK, "env.id=Mine-v0"]
    script = f"""{ENVIRONMENT}
gymnasium.register("Mine-v0", entry_point=Ten)
labrl.train([*{own}, "hydra.run.dir=a"])
assert labrl.train(["+resume=a", "env.max_frame=200"]).return_mean == 5.0
for overrides in ({own}, {registered}):
    for apart in ("meta.max_session=2", "env.vectorization=async", "meta.async_eval=true"):
        try:
            labrl.train([*overrides, apart, "meta.rigorous_eval=1", "hydra.run.dir=b"])
        except labrl.errors.InputError as error:
            print(error.code)
    folder = "hydra.sweep.dir=" + overrides[-1].partition("=")[0]
    if labrl.sweep([*overrides, "seed=1,2", folder]).exit_code == 2:
        print("target")
"""
    said = run(tmp_path / "script.py", script).stdout
    assert [line for line in said.splitlines() if line == "target"] == ["target"] * 8
    assert any("__main__.Ten" in line for line in said.splitlines())
    assert not (tmp_path / "b").exists()
    with refused("target", "env.make._target_"):
        labrl.train([f"+resume={tmp_path / 'a'}", "env.max_frame=300"])


def test_target_of_another_script_is_refused_with_its_key() -> None:
    with refused("target", "env.make._target_") as error:
        labrl.train([*OWN, "env.make={_target_: __main__.Elsewhere}"])
    assert "__main__.Elsewhere" in str(error.value)


def test_module_that_trains_when_it_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    overrides = [*OWN, *QUICK, "env.make={_target_: trains.Ten}"]
    Path("trains.py").write_text(f"{ENVIRONMENT}\nlabrl.train({overrides})\n")
    with pytest.raises(InputError, match="trains") as error:
        labrl.train(overrides)
    assert str(error.value.key).startswith("env.make")
    assert not Path("runs").exists()


@pytest.mark.extended
def test_child_process_that_imports_the_script_does_not_train(tmp_path: Path) -> None:
    done = run(
        tmp_path / "script.py",
        "import multiprocessing, sys, labrl\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    sys.exit(child.exitcode != 1)\n"
        f"labrl.train({QUICK})\n",
    )
    assert "InputError" in done.stderr, "labrl.train was not refused in the child process"
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
