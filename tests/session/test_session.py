"""Tests of sessions: repeated and resumed ones are equal bit for bit, and observing one changes nothing."""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_cases import rows, state, unequal

from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.errors import InputError
from labrl.run.checkpoint import CheckpointStore
from labrl.run.run import Run
from labrl.session.callbacks import Callback
from labrl.session.session import Session

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=5"]
CARTPOLE = [*QUIET, "env=cartpole", "env.max_frame=1200", "agent.epochs=2", "meta.log_frequency=300"]
PENDULUM = [*QUIET, "env=pendulum", "env.num_envs=4", "env.max_frame=1200", "agent.horizon=64"]
PENDULUM += ["agent.batch_size=64", "agent.epochs=2"]


class EndsBadlyError(Exception):
    """Error that a callback raises at the end of a session."""


def config_of(overrides: list[str]) -> TrialConfig:
    return resolve(compose(overrides))


def run(config: TrialConfig, folder: Path, state: Any = None) -> Session:
    """Run a session from the given state."""
    session = Session(config, 0, Run.create(folder).session(0), num_threads=1)
    if state is not None:
        session.load_state_dict(state)
    session.run()
    return session


def table(folder: Path, name: str = "train") -> list[dict[str, str]]:
    return rows(folder / "session_0" / f"{name}.csv")


@pytest.mark.extended
def test_observing_a_session_does_not_change_training(tmp_path: Path) -> None:
    """Switch panel, TensorBoard, evaluation, recording, profile and extra checkpoints on or all off."""
    off = ["meta.progress=false", "meta.tensorboard=false", "meta.record_episodes=none", "meta.videos=false"]
    on = ["meta.progress=true", "meta.tensorboard=true", "meta.record_episodes=each", "meta.rigorous_eval=2"]
    on += ["meta.keep_last=5", "meta.eval_frequency=150", "meta.profile={start: 200, frames: 64}"]
    for name, overrides in (("off", off), ("on", on)):
        run(config_of([*CARTPOLE, *overrides]), tmp_path / name)
    assert unequal(state(tmp_path / "off" / "session_0"), state(tmp_path / "on" / "session_0")) == []
    assert table(tmp_path / "off") == table(tmp_path / "on")


@pytest.mark.extended
def test_returns_are_sums_of_raw_rewards(tmp_path: Path) -> None:
    """The learner gets signs of rewards, -200 for an episode of Pendulum; the raw return is lower."""
    sign = "+transforms.reward._target_=labrl.agents.transforms.SignReward"
    session = run(config_of([*PENDULUM, "preset=none", sign]), tmp_path / "run")
    assert session.episodes.statistics()["return_mean"] < -300


def test_sessions_of_a_trial_have_different_seeds(tmp_path: Path) -> None:
    config = config_of(CARTPOLE)
    sessions = [Session(config, index, Run.create(tmp_path / str(index)).session(0), 1) for index in (0, 1)]
    assert sessions[0].seed != sessions[1].seed
    first = [session.env.reset() for session in sessions]
    assert not np.array_equal(*first)
    for session in sessions:
        session.close()


@pytest.mark.extended
def test_failing_callback_does_not_keep_others_from_finishing(tmp_path: Path) -> None:
    finished = []

    class Good(Callback):
        def finish(self, session: Any) -> None:
            finished.append(session.clock.frame)

    class Bad(Callback):
        def finish(self, session: Any) -> None:
            raise EndsBadlyError

    session = Session(config_of(CARTPOLE), 0, Run.create(tmp_path / "run").session(0), 1)
    session.callbacks += [Bad()]
    session.callbacks.insert(0, Good())
    with pytest.raises(EndsBadlyError):
        session.run()
    assert finished == [1200]


def test_session_that_cannot_be_built_leaves_no_environment_process(tmp_path: Path) -> None:
    config = config_of(["agent=random", "env.vectorization=async", "env.num_envs=2", "seed=1"])
    config.transforms["reward"] = Component("builtins.dict", {})
    before = set(multiprocessing.active_children())
    with pytest.raises(InputError) as refused:
        Session(config, 0, Run.create(tmp_path / "run").session(0), 1)
    assert (refused.value.code, refused.value.key) == ("target", "transforms.reward._target_")
    assert set(multiprocessing.active_children()) == before


@pytest.mark.extended
def test_interrupted_last_evaluation_is_repeated_by_a_resume(tmp_path: Path) -> None:
    """A session interrupted after its last frame counts as interrupted, because its last row is missing."""

    class StopInEvaluation(Callback):
        def start(self, session: Any) -> None:
            act = session.agent.evaluation_action

            def stopping(*arguments: Any, **named: Any) -> Any:
                signal.raise_signal(signal.SIGINT)
                return act(*arguments, **named)

            session.agent.evaluation_action = stopping

    config = config_of([*CARTPOLE, "meta.rigorous_eval=2", "meta.eval_frequency=1200"])
    stopped = Session(config, 0, Run.create(tmp_path / "stopped").session(0), 1)
    stopped.callbacks.insert(0, StopInEvaluation())
    stopped.run()
    assert stopped.clock.finished
    assert stopped.interrupted
    assert not (tmp_path / "stopped" / "session_0" / "eval.csv").exists()
    latest = CheckpointStore(tmp_path / "stopped" / "session_0" / "checkpoints", keep_last=2).latest()
    assert latest is not None
    resumed = run(config, tmp_path / "resumed", state=latest.state)
    assert not resumed.interrupted
    run(config, tmp_path / "uninterrupted")
    assert table(tmp_path / "resumed", "eval") == table(tmp_path / "uninterrupted", "eval")


class GivesUp(Callback):
    """Callback that gives up at frame 600 and checks that its view of the session is read-only."""

    frequencies = (100,)

    def __init__(self) -> None:
        self.seen: list[int] = []

    def step(self, session: Any) -> None:
        self.seen.append(session.clock.frame)
        with pytest.raises(dataclasses.FrozenInstanceError):
            session.index = 7
        self.gives_up = session.clock.frame >= 600

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}


@pytest.mark.extended
def test_callback_cannot_change_its_session_but_can_end_it(tmp_path: Path) -> None:
    session = Session(config_of(CARTPOLE), 0, Run.create(tmp_path / "run").session(0), 1)
    session.callbacks.insert(0, GivesUp())
    session.run()
    assert session.pruned
    assert 600 <= session.clock.frame < 600 + session.env.num_envs
    assert [int(row["frame"]) for row in table(tmp_path / "run")] == [304, 600]


@pytest.mark.extended
def test_last_checkpoint_omits_the_callback_step_caused_only_by_the_end(
    tmp_path: Path,
) -> None:
    config = config_of([*CARTPOLE, "env.max_frame=560", "meta.log_frequency=280"])
    session = Session(config, 0, Run.create(tmp_path / "run").session(0), 1)
    callback = GivesUp()
    session.callbacks.insert(0, callback)
    session.run()
    seen = [104, 200, 304, 400, 504, 560]
    assert callback.seen == seen
    latest = CheckpointStore(tmp_path / "run" / "session_0" / "checkpoints", keep_last=1).latest()
    assert latest is not None
    assert latest.frame == 560
    assert latest.state["callbacks"]["GivesUp:0"]["seen"] == seen[:-1]
