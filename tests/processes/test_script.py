"""Tests of training from a script or notebook: its classes reach the processes, which do not run it again."""

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


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-"], input=script, cwd=folder, capture_output=True, text=True, check=True
    )


@pytest.mark.extended
def test_script_without_a_main_guard_trains_with_environments_in_processes(tmp_path: Path) -> None:
    overrides = [*OWN, *QUICK, "env.vectorization=async", f"hydra.run.dir={tmp_path / 'a'}"]
    script = f"""{ENVIRONMENT}
gymnasium.register("Ten-v0", entry_point=Ten)

def make():
    return gymnasium.make("Ten-v0", disable_env_checker=True)

print("ran")
labrl.train([*{overrides}, "env.make={{_target_: __main__.make}}"])
"""
    assert run_script(script, tmp_path).stdout.count("ran") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    for session in json.loads((tmp_path / "a" / "run.json").read_text())["sessions"]:
        assert (session["status"], session["return_mean"]) == ("finished", 5.0)


@pytest.mark.extended
def test_several_sessions_know_what_modules_of_a_script_have_registered_and_refuse_its_own(
    tmp_path: Path,
) -> None:
    module = f"{ENVIRONMENT}\ngymnasium.register('Ten-v0', entry_point=Ten)"
    (tmp_path / "places").mkdir()
    (tmp_path / "places" / "tens.py").write_text(module)
    several = ["env=gymnasium", *QUICK, "meta.max_session=2"]
    script = f"""{ENVIRONMENT}
import sys
sys.path.append("places")
import tens

gymnasium.register("Mine-v0", entry_point=Ten)
labrl.train([*{several}, "env.id=Ten-v0", "hydra.run.dir=a"])
for own in (["env.id=Mine-v0"], [*{OWN}, "env.make={{_target_: __main__.Ten}}"]):
    try:
        labrl.train([*{several}, *own, "hydra.run.dir=b"])
    except labrl.errors.InputError as error:
        print(error.code)
"""
    assert run_script(script, tmp_path).stdout.split()[-2:] == ["target", "target"]
    assert not (tmp_path / "b").exists()
    for session in json.loads((tmp_path / "a" / "run.json").read_text())["sessions"]:
        assert (session["status"], session["return_mean"]) == ("finished", 5.0)


def test_class_that_cannot_be_pickled_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = {"__name__": "__main__"}
    exec(f"import threading\n{ENVIRONMENT}\nTen.lock = threading.Lock()", namespace)
    monkeypatch.setattr(sys.modules["__main__"], "Unsendable", namespace["Ten"], raising=False)
    overrides = [*OWN, *QUICK, "env.make={_target_: __main__.Unsendable}", f"hydra.run.dir={tmp_path / 'a'}"]
    with refused("target", "_target_") as error:
        labrl.train([*overrides, "meta.max_session=2"])
    assert "__main__.Unsendable" in str(error.value)
    assert not (tmp_path / "a").exists()
    assert labrl.train(overrides).return_mean == 5.0  # one session runs in this process, without pickling


def test_target_of_another_script_is_refused_with_its_key() -> None:
    with refused("target", "env.make._target_") as error:
        labrl.train([*OWN, "env.make={_target_: __main__.Elsewhere}"])
    assert "__main__.Elsewhere" in str(error.value)


@pytest.mark.parametrize("key", ["env.make", "env.import_module"])
def test_module_that_trains_when_it_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"trains_{key.partition('.')[2]}"
    overrides = [*OWN, *QUICK, f"env.make={{_target_: {module}.Ten}}"]
    if key == "env.import_module":
        overrides = ["env=gymnasium", "env.id=Ten-v7", *QUICK, f"env.import_module={module}"]
    Path(f"{module}.py").write_text(f"{ENVIRONMENT}\nlabrl.train({overrides})\n")
    with pytest.raises(InputError) as error:
        labrl.train(overrides)
    assert str(error.value.key).startswith(key)
    assert module in str(error.value)
    assert not Path("runs").exists()


@pytest.mark.extended
def test_child_process_that_imports_the_script_does_not_train(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys, labrl\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    sys.exit(child.exitcode)\n"
        f"labrl.train({QUICK})\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "InputError" in done.stderr, "labrl.train was not refused in the child process"
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
