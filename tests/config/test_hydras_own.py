"""Tests that Hydra's own features work with labrl: glob sweeps and --cfg."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from one_process import ONE_PROCESS

from labrl.cli import main
from labrl.errors import DONE, WRONG_INPUT
from labrl.run.run import MARKER

QUICK = [
    "agent=random",
    "env.max_frame=64",
    "meta.progress=false",
    "meta.tensorboard=false",
    "wandb=disabled",
]
QUICK += [ONE_PROCESS, "hydra.sweep.dir=e"]


pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.extended]


def trials() -> set[str]:
    """Return the names of the trial folders of the experiment."""
    return {path.parent.name for path in Path("e").glob(f"*/{MARKER}")}


def test_glob_sweeps_over_the_options_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *QUICK, "seed=1", "env=glob(mountain*)"]) == DONE
    assert trials() == {"0_random_mountain_car", "1_random_mountain_car_continuous"}
    assert main(["-m", *QUICK, "env=glob(nothing*)"]) == WRONG_INPUT
    assert capsys.readouterr().err.startswith("labrl: env must")


@pytest.mark.parametrize(
    ("flags", "override", "key", "begins"),
    [
        ("job", "agent.batch_size=100", "agent.batch_size", "seed: null"),
        ("job", "+agent.foo=1", "agent.foo", "seed: null"),
        ("job --resolve", "env=gymnasium", "env.id", "seed: null"),
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


def test_cfg_job_prints_nothing_else_for_a_valid_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "agent=dqn"]) == DONE
    printed = capsys.readouterr()
    assert printed.out.startswith("seed: null")
    assert printed.err == ""


SINGLE = [one for one in QUICK if not one.startswith("hydra")]


def test_interpolated_name_of_an_environment_is_resolved_in_a_run_that_can_be_resumed() -> None:
    assert main([*SINGLE, "env.name=${..meta.max_session}_${.id}_${env.num_envs}"]) == DONE
    (folder,) = Path("runs").iterdir()
    assert "_1_CartPole-v1_8_" in folder.name
    assert yaml.safe_load((folder / "config.yaml").read_text())["env"]["name"] == "1_CartPole-v1_8"
    assert main([f"+resume={folder}", "env.max_frame=128"]) == DONE


def test_refused_repetition_leaves_no_folder() -> None:
    assert main([*SINGLE, "hydra.run.dir=one"]) == DONE
    assert main(["+rerun=one", "env.num_envs=4", "hydra.run.dir=new/two"]) == 2
    assert not Path("new").exists()
