"""Tests of wrong options of the DQN family: they are refused, with a remedy, before anything is built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from exact_cases import QUIET
from one_process import ONE_PROCESS
from refusals import refused

import labrl
from labrl.cli import main
from labrl.errors import WRONG_INPUT


@pytest.mark.parametrize("agent", ["c51", "double_dqn", "recurrent_dqn", "sarsa"])
def test_unsupported_agent_is_named_by_the_option_that_was_typed(agent: str, tmp_path: Path) -> None:
    """Regression test: labrl asked for v_min before it said that the agent needs discrete actions."""
    run = [f"agent={agent}", f"hydra.run.dir={tmp_path / 'run'}"]
    with refused("unsupported", "agent", f"agent={agent}", "agent=ppo") as error:
        labrl.train([*run, "env=pendulum"])
    assert len(error.value.mistakes) == 1
    if agent == "c51":
        with refused("missing", "agent.value.v_min"):
            labrl.train([*run, "env=gymnasium", "env.id=MountainCar-v0"])
    assert not (tmp_path / "run").exists()


@pytest.mark.extended
def test_unsupported_pair_is_announced_and_does_not_stop_the_other_trials_of_a_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression test: labrl asked for a key that only the unsupported pair needs, and no trial ran."""
    quick = ["env.max_frame=200", "agent.learning_starts=100", "agent.batch_size=32", *QUIET, "seed=1"]
    grid = ["agent=c51", "env=cartpole,pendulum", ONE_PROCESS, f"hydra.sweep.dir={tmp_path / 'e'}"]
    assert main(["-m", *quick, *grid]) == WRONG_INPUT
    assert [path.parent.name for path in tmp_path.glob("e/*/run.json")] == ["0_c51_cartpole"]
    said = capsys.readouterr().out
    assert "env=pendulum" in said[: said.index(str(tmp_path / "e"))], "before the first trial starts"


@pytest.mark.parametrize("agent", ["c51", "sarsa,dqn"])
def test_grid_in_which_no_agent_fits_is_refused(
    agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "e"
    overrides = ["env=pendulum", f"agent={agent}", "seed=1,2", f"hydra.sweep.dir={folder}", *QUIET]
    assert main(["-m", *overrides]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert message.count("labrl: ") == 1
    assert {f"agent={agent.partition(',')[0]}", "agent=sac"} <= set(re.findall(r"[\w=]+", message))
    assert not folder.exists()


def test_grid_with_an_environment_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    grid = ["env=gymnasium", "env.id=CartPole-v1,Nowhere-v1", f"hydra.sweep.dir={tmp_path / 'e'}", *QUIET]
    assert main(["-m", *grid]) == WRONG_INPUT
    assert not (tmp_path / "e").exists()


def test_unsupported_agent_of_a_search_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["-m", "hydra/sweeper=optuna", "agent=c51", "env=pendulum", "agent.lr=interval(1e-4,1e-3)"]
    assert main([*overrides, f"hydra.sweep.dir={tmp_path / 'e'}"]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert "agent=ppo" in message
    assert "v_min" not in message
