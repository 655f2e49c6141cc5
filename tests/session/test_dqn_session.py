"""Tests of DQN sessions, with the replay buffer in RAM and in files: they repeat and resume bit for bit."""

from __future__ import annotations

import csv
import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from labrl.config.compose import compose, resolve
from labrl.run.checkpoint import CheckpointStore
from labrl.run.run import Run
from labrl.session.callbacks import Callback
from labrl.session.session import Session

pytestmark = pytest.mark.extended

QUIET = ["meta.progress=false", "meta.tensorboard=false", "seed=5"]
SMALL = ["agent.batch_size=16", "agent.updates_per_frame=0.25", "agent.target.every=40"]
CARTPOLE = [*QUIET, *SMALL, "env=cartpole", "env.num_envs=3", "env.max_frame=600", "meta.log_frequency=150"]
CARTPOLE += ["agent.learning_starts=60", "agent.memory.capacity=240"]
PONG = [*QUIET, *SMALL, "env=pong", "env.num_envs=2", "env.max_frame=160", "meta.log_frequency=40"]
PONG += ["agent.learning_starts=40", "agent.memory.capacity=64", "env.noop_max=1", "env.image_size=44"]
RUNS = {
    "dqn on cartpole": ["agent=dqn", "agent.network.torso.mlp.hidden=[32]", *CARTPOLE],
    "rainbow on cartpole": ["agent=rainbow", "agent.network.head=[32]", *CARTPOLE],
    "dqn on pong": ["agent=dqn", "agent.network.torso.cnn.features=32", *PONG],
    "rainbow on pong, in RAM": [
        "agent=rainbow",
        "agent.network.head=[32]",
        *PONG,
        "agent.memory.storage=ram",
    ],
}
TIMING = {"wall", "fps"}


class StopAt(Callback):
    def __init__(self, frame: int) -> None:
        self.frame = frame

    def step(self, session: Any) -> None:
        if session.clock.frame >= self.frame:
            signal.raise_signal(signal.SIGTERM)


def run(overrides: list[str], folder: Path, stop_at: int | None = None, resume: bool = False) -> Session:
    """Run a session in `folder`; with `resume`, from the latest checkpoint of the folder."""
    run_folder = Run.open(folder) if resume else Run.create(folder)
    session = Session(resolve(compose(overrides)), 0, run_folder.session(0), num_threads=1)
    if resume:
        latest = CheckpointStore(folder / "session_0" / "checkpoints", keep_last=2).latest()
        assert latest is not None
        session.load_state_dict(latest.state)
    if stop_at is not None:
        session.callbacks.insert(0, StopAt(stop_at))
    session.run()
    return session


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Session, Path]]:
    """Return a function that gives the finished session of one of RUNS and its folder; each is run once."""

    @functools.cache
    def run_once(name: str) -> tuple[Session, Path]:
        folder = tmp_path_factory.mktemp("uninterrupted") / "run"
        return run(RUNS[name], folder), folder

    return run_once


def weights(session: Session) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in session.agent.modules().values() for p in m.parameters()])


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "session_0" / "train.csv") as file:
        return [{k: v for k, v in row.items() if k not in TIMING} for row in csv.DictReader(file)]


@pytest.mark.slow  # the next test compares two runs as well, one of them interrupted
@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_two_runs_are_equal_bit_for_bit(overrides: list[str], tmp_path: Path) -> None:
    first, second = run(overrides, tmp_path / "a"), run(overrides, tmp_path / "b")
    assert torch.equal(weights(first), weights(second))
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    last = rows(tmp_path / "a")[-1]
    assert int(last["opt_step"]) == int(float(last["updates"])) > 25


@pytest.mark.parametrize("name", RUNS)
def test_resumed_session_equals_an_uninterrupted_one(
    name: str, uninterrupted: Callable[[str], tuple[Session, Path]], tmp_path: Path
) -> None:
    """Stop between checkpoints, after the replay buffer has wrapped around, and resume from the disk."""
    expected, folder = uninterrupted(name)
    stop_at = int(0.7 * expected.clock.max_frame) + 5
    assert run(RUNS[name], tmp_path / "stopped", stop_at).clock.frame < expected.clock.frame
    resumed = run(RUNS[name], tmp_path / "stopped", resume=True)
    assert torch.equal(weights(expected), weights(resumed))
    assert rows(tmp_path / "stopped") == rows(folder)


class KilledAt(Callback):
    """Callback that ends a session without a checkpoint, as kill -9 does."""

    def __init__(self, frame: int) -> None:
        self.frame = frame

    def step(self, session: Any) -> None:
        if session.clock.frame >= self.frame:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["dqn on cartpole", "dqn on pong"])
def test_frames_after_the_last_checkpoint_do_not_affect_a_resume(
    name: str, uninterrupted: Callable[[str], tuple[Session, Path]], tmp_path: Path
) -> None:
    overrides = RUNS[name]
    expected, folder = uninterrupted(name)
    killed = Session(resolve(compose(overrides)), 0, Run.create(tmp_path / "killed").session(0), 1)
    killed.callbacks.insert(0, KilledAt(expected.clock.frame - 10))
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = run(overrides, tmp_path / "killed", resume=True)
    assert torch.equal(weights(expected), weights(resumed))
    assert rows(tmp_path / "killed") == rows(folder)


def test_replay_buffer_of_a_game_is_in_files_unless_set_to_ram(
    uninterrupted: Callable[[str], tuple[Session, Path]],
) -> None:
    _, folder = uninterrupted("dqn on pong")
    assert [file for file in (folder / "session_0" / "replay").rglob("*") if file.is_file()]
    _, other = uninterrupted("rainbow on pong, in RAM")
    assert not (other / "session_0" / "replay").exists()


def test_two_runs_with_several_workers_are_equal_bit_for_bit(tmp_path: Path) -> None:
    found = []
    # Fewer steps than after which next games are prepared, whose start takes longer than the updates.
    short = ["env.max_frame=60", "agent.updates_per_frame=1"]
    config = resolve(compose([*RUNS["dqn on pong"], *short]))
    for name in ("a", "b"):
        session = Session(config, 0, Run.create(tmp_path / name).session(0), num_threads=2)
        session.run()
        assert session.clock.opt_step > 15
        found.append(weights(session))
    assert torch.equal(*found)
