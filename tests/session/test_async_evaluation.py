"""Tests of asynchronous evaluation: its rows, best model and episodes equal those of the training loop."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from exact_cases import QUIET, differences, episodes, rows, unequal
from numpy.typing import NDArray
from restoring import StopAt

import labrl
from labrl.agents.agent import Observation
from labrl.agents.random import RandomAgent
from labrl.config.compose import compose, resolve
from labrl.run.checkpoint import CheckpointStore
from labrl.run.run import Run
from labrl.session.acting import acting_state
from labrl.session.callbacks import Callback
from labrl.session.main import restored_session
from labrl.session.session import Session

PPO = [*QUIET, "agent.horizon=16", "agent.batch_size=64", "agent.epochs=1", "env.max_frame=1200"]
PPO += ["meta.rigorous_eval=2", "meta.eval_episodes=2", "meta.record_episodes=each"]
PPO += ["meta.eval_frequency=220", "meta.log_frequency=150"]
PPO += ["transforms/observation=normalize"]


def play(run: Run, *overrides: str, stop_at: int | None = None) -> Session:
    """Run a session from its newest checkpoint, and stop it at a frame."""
    session = restored_session(resolve(compose([*PPO, *overrides])), 0, run.session(0), num_threads=1)
    if stop_at is not None:
        session.callbacks.insert(0, StopAt(stop_at))
    session.run()
    return session


def best(run: Run) -> tuple[int, Any]:
    found = CheckpointStore(run.session(0).checkpoints, 2).best()
    assert found is not None
    return found.frame, found.state["agent"]


def same(one: Run, other: Run) -> None:
    assert differences(one.path, other.path) == []
    assert len(rows(one.session(0).eval_csv)) > 4
    assert unequal(episodes(one.session(0).path), episodes(other.session(0).path)) == []
    assert unequal(best(one), best(other)) == []
    assert (
        best(one)[0]
        == max(
            (float(row["return_mean"]), -int(row["frame"]), int(row["frame"]))
            for row in rows(one.session(0).eval_csv)
        )[2]
    )


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that evaluates in the training loop."""
    run = Run.create(tmp_path_factory.mktemp("loop") / "run")
    play(run)
    return run


@pytest.mark.extended
def test_resumed_run_neither_loses_nor_repeats_rows(loop: Run, tmp_path: Path) -> None:
    """Stop while an evaluation is pending, and at the end evaluate in the training loop."""
    beside = Run.create(tmp_path / "run")
    for frame in (224, 240, 440, 900):
        assert play(beside, "meta.async_eval=true", stop_at=frame).interrupted
    assert not play(beside).interrupted
    same(loop, beside)


@pytest.mark.extended
def test_evaluation_process_gives_the_same_run(loop: Run, tmp_path: Path) -> None:
    labrl.train([*PPO, "meta.async_eval=true", f"hydra.run.dir={tmp_path / 'run'}"])
    same(loop, Run.open(tmp_path / "run"))


class KillsEvaluator(Callback):
    """A callback that kills the evaluator, as the operating system does when memory runs out."""

    def step(self, session: Any) -> None:
        if session.clock.frame >= 300:
            for process in multiprocessing.active_children():
                process.kill()


class FailsInEvaluation(RandomAgent):
    """An agent that raises an error when it is evaluated."""

    def evaluation_action(self, observation: Observation, generator: Any) -> NDArray:
        raise ArithmeticError("no number is that large")


@pytest.mark.slow
def test_error_in_evaluation_fails_the_run_with_its_traceback(tmp_path: Path) -> None:
    overrides = [*QUIET, "agent=random", "agent._target_=test_async_evaluation.FailsInEvaluation"]
    overrides += [
        "meta.rigorous_eval=2",
        "meta.async_eval=true",
        "meta.eval_frequency=64",
        "env.max_frame=1e7",
    ]
    result = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 1
    assert "meta.async_eval" in str(result.sessions[0].error)
    assert "ArithmeticError" in str(result.sessions[0].error)
    log = (tmp_path / "run" / "session_0" / "session.log").read_text()
    assert "in evaluation_action" in log
    assert "no number is that large" in log


@pytest.mark.slow
def test_killed_evaluator_fails_the_run_which_can_be_resumed(loop: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kills = "+callbacks.kills._target_=test_async_evaluation.KillsEvaluator"
    result = labrl.train([*PPO, "meta.async_eval=true", kills, f"hydra.run.dir={run}"])
    assert result.exit_code == 1
    assert "SIGKILL" in str(result.sessions[0].error)
    assert labrl.train([f"+resume={run}", "~callbacks.kills"]).exit_code == 0
    same(loop, Run.open(run))


def test_evaluator_receives_a_copy_of_the_acting_network_only(tmp_path: Path) -> None:
    """Check that neither the target network nor the optimizer or the replay buffer is sent."""
    overrides = [*QUIET, "agent=dqn", "env=cartpole", "env.max_frame=5000"]
    session = Session(resolve(compose(overrides)), 0, Run.create(tmp_path / "run").session(0), 1)
    acting = acting_state(session.agent, session.transforms, session.clock)
    session.close()
    assert list(acting["modules"]) == ["q_network"]
    handed, own = acting["modules"]["q_network"], session.agent.modules()["q_network"].state_dict()
    assert handed.keys() == own.keys()
    assert all(handed[name].data_ptr() != own[name].data_ptr() for name in own)
