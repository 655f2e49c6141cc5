"""A small run and a small experiment, trained once by each process that runs tests, and copied for each test.

For tests of code that reads finished runs. A test that needs other settings trains by itself.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from exact_cases import QUIET, folder_override, small

import labrl
from labrl.cli import main

RUN = [*small("ppo", "cartpole"), "env.max_frame=256", "meta.max_session=2", "meta.keep_last=3"]
RUN += ["meta.log_frequency=64", "meta.eval_frequency=128"]
"""Overrides of the run: PPO on CartPole, two sessions with checkpoints at the frames 128, 192 and 256."""

EXPERIMENT = ["agent=random", "env=cartpole", "env.num_envs=2", "env.max_frame=256", "meta.log_frequency=64"]
EXPERIMENT += [*(one for one in QUIET if not one.startswith("seed")), "seed=1,2"]
"""Overrides of the experiment: random actions on CartPole with two seeds."""


@functools.cache
def recorded(name: str) -> Path:
    """Train the run or the experiment. Return its folder."""
    above = Path(tempfile.mkdtemp(prefix="labrl-tests-"))
    atexit.register(shutil.rmtree, above, ignore_errors=True)
    folder = above / name
    if name == "run":
        assert labrl.train([*RUN, folder_override(folder)]).exit_code == 0
    else:
        assert main(["-m", *EXPERIMENT, f"hydra.sweep.dir={folder}"]) == 0
    return folder
