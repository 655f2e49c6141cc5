"""Tests of signals and kills after training, while videos and the report are made."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command, start_labrl
from one_process import ONE_PROCESS
from trial_processes import wait_for

from labrl.cli import main
from labrl.errors import DONE, TERMINATED, WRONG_INPUT
from labrl.run.run import Run

LAMP = """
import pathlib
import time

import gymnasium
import numpy as np

class Lamp(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        marker = pathlib.Path("run", "run.json")
        if marker.exists() and '"finished"' in marker.read_text():  # it plays for a video or the report
            pathlib.Path("hanging").touch()
            while pathlib.Path("hang").exists():
                time.sleep(0.01)
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)
"""

QUICK = ["agent=random", "env.max_frame=64", "meta.tensorboard=false", "wandb=disabled", "hydra.run.dir=run"]

LAMPS = ["env=gymnasium", "env.id=null", "env.name=lamp", "env.make={_target_: lamp.Lamp}", "env.check=false"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABRL_CACHE", str(tmp_path / "cache"))


@contextlib.contextmanager
def hanging(folder: Path, *overrides: str) -> Iterator[Command]:
    """Start a command that hangs while it makes videos or the report, and yield it once it does."""
    (folder / "hang").touch()
    (folder / "lamp.py").write_text(LAMP)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = start_labrl(*QUICK, *LAMPS, *overrides, cwd=folder, env=env)
    try:
        wait_for((folder / "hanging").exists, command)
        yield command
    finally:
        (folder / "hang").unlink()


@pytest.mark.extended
@pytest.mark.report
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("made", ["videos", "report"])
def test_sigterm_after_training_has_the_same_exit_code_and_a_resume_makes_what_is_missing(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging(tmp_path, "meta.report=false" if made == "videos" else "meta.videos=false") as command:
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=100) == TERMINATED
    assert Run.open(tmp_path / "run").recorded_status == "finished"
    if made == "report":
        report = tmp_path / "run" / "report.html"
        assert not report.exists()
        monkeypatch.syspath_prepend(tmp_path)
        assert main(["+resume=run"]) == DONE
        assert report.exists()


@pytest.mark.usefixtures("own_folder")
def test_resume_of_a_finished_run_makes_only_what_is_missing() -> None:
    report = Path("run/report.html")
    assert main(QUICK) == DONE
    assert main(["+resume=run"]) == WRONG_INPUT
    report.unlink()
    assert main(["+resume=run", "meta.report=false"]) == WRONG_INPUT
    assert main(["+resume=run"]) == DONE
    assert report.exists()
    assert main(["+resume=run"]) == WRONG_INPUT
    report.write_text("of the smaller budget")
    assert main(["+resume=run", "env.max_frame=96"]) == DONE
    assert report.read_text() == "", "a kill would have left the outdated report"


@pytest.mark.usefixtures("own_folder")
def test_resume_of_a_finished_experiment_makes_what_is_missing() -> None:
    assert main(["-m", *QUICK[:-1], "seed=0,1", ONE_PROCESS, "hydra.sweep.dir=e"]) == DONE
    reports = [Path("e/report.html"), Path("e/1_random_cartpole/report.html")]
    for report in reports:
        report.unlink()
    assert main(["-m", "+resume=e"]) == DONE
    assert all(report.exists() for report in reports)
