"""Tests that Hydra's own features work with labrl: interpolated folders, glob sweeps, and its compose API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labrl.cli import main
from labrl.config import config_folder
from labrl.errors import DONE, WRONG_INPUT
from labrl.run.run import MARKER

QUICK = [
    "agent=random",
    "env.max_frame=64",
    "meta.progress=false",
    "meta.tensorboard=false",
    "wandb=disabled",
]
QUICK += ["hydra/launcher=basic", "hydra.sweep.dir=e"]


pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.extended]


def trials() -> set[str]:
    """Return the names of the trial folders of the experiment."""
    return {path.parent.name for path in Path("e").glob(f"*/{MARKER}")}


def test_folder_of_a_trial_may_contain_its_number() -> None:
    subdir = "hydra.sweep.subdir=x_${hydra.job.num}"
    assert main(["-m", *QUICK, "seed=4,5", subdir]) == DONE
    assert trials() == {"x_0", "x_1"}
    assert main(["-m", "+resume=e", "seed=4,5,6"]) == DONE
    assert trials() == {"x_0", "x_1", "x_2"}


def test_glob_sweeps_over_the_options_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *QUICK, "seed=1", "env=glob(mountain*)"]) == DONE
    assert trials() == {"0_random_mountain_car", "1_random_mountain_car_continuous"}
    assert main(["-m", *QUICK, "env=glob(nothing*)"]) == WRONG_INPUT
    assert capsys.readouterr().err.startswith("labrl: env must")


@pytest.mark.xfail(strict=True, reason="only labrl's commands register the source of presets and games")
def test_script_composes_labrls_configuration_with_hydra() -> None:
    program = (
        "import hydra\n"
        f"with hydra.initialize_config_dir({str(config_folder())!r}):\n"
        "    cfg = hydra.compose('config', ['agent=dqn', 'env=pong', 'seed=3'])\n"
        "print(cfg.agent._target_, cfg.env.game, cfg.seed)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["labrl.agents.dqn.DQN", "pong", "3"], done.stderr


@pytest.mark.parametrize(
    ("flags", "override", "key", "begins"),
    [
        ("job", "agent.lr=-1", "agent.lr", "seed: null"),
        ("job", "agent.batch_size=100", "agent.batch_size", "seed: null"),
        ("job", "+agent.foo=1", "agent.foo", "seed: null"),
        ("job", "~agent/network", "agent.network.torso", "seed: null"),
        ("job", "start_from.partial=true", "start_from.partial", "seed: null"),
        ("job", "agent.lr=${nonesuch}", "agent.lr", "seed: null"),
        ("job --resolve", "env=gymnasium", "env.id", "seed: null"),
        ("job -p env.id", "env=gymnasium", "env.id", "???"),
        ("job -p agent.target_kl", "agent.lr=-1", "agent.lr", "null"),
        ("job -p agent", "agent.lr=-1", "agent.lr", "# @package agent"),
        ("all", "agent.lr=-1", "agent.lr", "hydra:"),
        ("hydra", "agent.lr=-1", "agent.lr", "hydra:"),
    ],
)
def test_cfg_job_says_what_a_run_would_refuse(
    flags: str, override: str, key: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cfg", *flags.split(), override]) == WRONG_INPUT
    printed = capsys.readouterr()
    assert printed.out.startswith(begins), "the configuration must be printed all the same"
    assert key in printed.err
    assert main([override]) == WRONG_INPUT
    assert capsys.readouterr().err.endswith(printed.err)


@pytest.mark.parametrize("override", ["agent=dqn", "agent.lr=1e-3"])
def test_cfg_job_prints_nothing_else_for_a_valid_configuration(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cfg", "job", override]) == DONE
    printed = capsys.readouterr()
    assert printed.out.startswith("seed: null")
    assert printed.err == ""


HOOKS = """
from pathlib import Path

from hydra.experimental.callback import Callback


class Hooks(Callback):
    def on_run_start(self, config, **_):
        Path("calls").write_text(f"run {config.env.max_frame} {config.hydra.runtime.choices.agent}\\n")

    def on_job_start(self, config, **_):
        self.add(f"job {Path(config.hydra.runtime.output_dir).name}")

    def on_job_end(self, job_return, **_):
        self.add(f"job {job_return.return_value.exit_code}")

    def on_run_end(self, **_):
        self.add("end")

    def add(self, line):
        with open("calls", "a") as file:
            file.write(f"{line}\\n")
"""

SINGLE = [one for one in QUICK if not one.startswith("hydra")]


@pytest.mark.parametrize("verb", [None, "+resume=one", "+rerun=one", "+fork=one"])
def test_callbacks_and_log_of_hydra_are_those_of_every_run(verb: str | None) -> None:
    """Regression test: a run that went back to an earlier one had neither."""
    Path("hooks_of_hydra.py").write_text(HOOKS)
    own = ["+hydra.callbacks.mine._target_=hooks_of_hydra.Hooks", "hydra/job_logging=default"]
    if verb is None:
        assert main([*SINGLE, "env.max_frame=96", "hydra.run.dir=two", *own]) == DONE
    else:
        assert main([*SINGLE, "env.max_frame=64", "meta.log_frequency=32", "hydra.run.dir=one"]) == DONE
        new = {"+resume=one": [], "+rerun=one": ["hydra.run.dir=two"]}
        more = new.get(verb, ["hydra.run.dir=two", "at=64"])
        assert main([verb, "env.max_frame=96", *more, *own]) == DONE
    folder = "one" if verb == "+resume=one" else "two"
    assert Path("calls").read_text().splitlines() == ["run 96 random", f"job {folder}", "job 0", "end"]
    assert (Path(folder) / "labrl.log").exists()


def test_refused_repetition_leaves_no_folder() -> None:
    assert main([*SINGLE, "hydra.run.dir=one"]) == DONE
    assert main(["+rerun=one", "env.num_envs=4", "hydra.run.dir=new/two"]) == 2
    assert not Path("new").exists()
