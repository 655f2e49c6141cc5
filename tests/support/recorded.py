"""A small run and a small experiment, trained once for all processes of a test run, and copied for each test.

For tests of code that reads finished runs. A test that needs other settings trains by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from exact_cases import QUIET, folder_override, small
from filelock import FileLock
from shared_folder import FOLDER

import labrl
from labrl.cli import main

RUN = [*small("ppo", "cartpole"), "env.max_frame=256", "meta.max_session=2", "meta.keep_last=3"]
RUN += ["meta.log_frequency=64", "meta.eval_frequency=128"]
"""Overrides of the run: PPO on CartPole, two sessions with checkpoints at the frames 128, 192 and 256."""

EXPERIMENT = ["agent=random", "env=cartpole", "env.num_envs=2", "env.max_frame=256", "meta.log_frequency=64"]
EXPERIMENT += [*(one for one in QUIET if not one.startswith("seed")), "seed=1,2"]
"""Overrides of the experiment: random actions on CartPole with two seeds."""


def recorded(name: str) -> Path:
    """Return the folder of the run or the experiment, which the first process that needs it trains."""
    folder = Path(os.environ[FOLDER]) / "recorded" / name
    with FileLock(f"{folder.parent}.lock"):
        if not folder.exists():
            unfinished = folder.with_name(f"unfinished_{name}")
            if name == "run":
                assert labrl.train([*RUN, folder_override(unfinished)]).exit_code == 0
            else:
                assert main(["-m", *EXPERIMENT, f"hydra.sweep.dir={unfinished}"]) == 0
            unfinished.rename(folder)
    return folder
