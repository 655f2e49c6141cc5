"""Learning from replay repeats bit for bit and goes on exactly, with memories in RAM and in files."""

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
from labrl.session.callbacks import Callback
from labrl.session.session import Session
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.run_folder import RunFolder

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
    "rainbow on pong, in memory": [
        "agent=rainbow",
        "agent.network.head=[32]",
        *PONG,
        "agent.memory.storage=ram",
    ],
}
WATCHED = {"wall", "fps"}


class StopAt(Callback):
    def __init__(self, frame: int) -> None:
        self.frame = frame

    def step(self, session: Any) -> None:
        if session.clock.frame >= self.frame:
            signal.raise_signal(signal.SIGTERM)


def run(overrides: list[str], folder: Path, stop_at: int | None = None, going_on: bool = False) -> Session:
    """A session in `folder`; with `going_on` from the latest checkpoint that lies there."""
    run_folder = RunFolder.open(folder) if going_on else RunFolder.create(folder)
    session = Session(resolve(compose(overrides)), 0, run_folder.session(0), num_threads=1)
    if going_on:
        latest = CheckpointStore(folder / "session_0" / "checkpoints", keep_last=2).latest()
        assert latest is not None
        session.load_state_dict(latest.state)
    if stop_at is not None:
        session.callbacks.insert(0, StopAt(stop_at))
    session.run()
    return session


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Session, Path]]:
    """Give the session that one of RUNS ends with, and its folder; each is run once."""

    @functools.cache
    def ran(name: str) -> tuple[Session, Path]:
        folder = tmp_path_factory.mktemp("unbroken") / "run"
        return run(RUNS[name], folder), folder

    return ran


def weights(session: Session) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in session.agent.modules().values() for p in m.parameters()])


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "session_0" / "train.csv") as file:
        return [{k: v for k, v in row.items() if k not in WATCHED} for row in csv.DictReader(file)]


@pytest.mark.slow  # the test below compares two runs as well, one of them broken off
@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_run_twice_is_equal_bit_for_bit(overrides: list[str], tmp_path: Path) -> None:
    first, second = run(overrides, tmp_path / "a"), run(overrides, tmp_path / "b")
    assert torch.equal(weights(first), weights(second))
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    last = rows(tmp_path / "a")[-1]
    assert int(last["opt_step"]) == int(float(last["updates"])) > 25


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_session_goes_on_as_if_nothing_had_happened(
    name: str, unbroken: Callable[[str], tuple[Session, Path]], tmp_path: Path
) -> None:
    """Stopped where no checkpoint was due, the ring of the memory has wrapped; loaded from the disk."""
    whole, folder = unbroken(name)
    stop_at = int(0.7 * whole.clock.max_frame) + 5
    assert run(RUNS[name], tmp_path / "stopped", stop_at).clock.frame < whole.clock.frame
    resumed = run(RUNS[name], tmp_path / "stopped", going_on=True)
    assert torch.equal(weights(whole), weights(resumed))
    assert rows(tmp_path / "stopped") == rows(folder)


class KilledAt(Callback):
    """Leaves frames after the last checkpoint, as kill -9 does."""

    def __init__(self, frame: int) -> None:
        self.frame = frame

    def step(self, session: Any) -> None:
        if session.clock.frame >= self.frame:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["dqn on cartpole", "dqn on pong"])
def test_frames_after_the_last_checkpoint_do_no_harm_to_it(
    name: str, unbroken: Callable[[str], tuple[Session, Path]], tmp_path: Path
) -> None:
    overrides = RUNS[name]
    whole, folder = unbroken(name)
    killed = Session(resolve(compose(overrides)), 0, RunFolder.create(tmp_path / "killed").session(0), 1)
    killed.callbacks.insert(0, KilledAt(whole.clock.frame - 10))
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = run(overrides, tmp_path / "killed", going_on=True)
    assert torch.equal(weights(whole), weights(resumed))
    assert rows(tmp_path / "killed") == rows(folder)


def test_the_memory_of_a_game_lies_in_files_beside_the_checkpoints(
    unbroken: Callable[[str], tuple[Session, Path]],
) -> None:
    _, folder = unbroken("dqn on pong")
    assert [file for file in (folder / "session_0" / "replay").rglob("*") if file.is_file()]
    _, other = unbroken("rainbow on pong, in memory")
    assert not (other / "session_0" / "replay").exists()


def test_several_workers_repeat_too(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        config = resolve(compose(RUNS["dqn on pong"]))
        session = Session(config, 0, RunFolder.create(tmp_path / name).session(0), num_threads=2)
        session.run()
        found.append(weights(session))
    assert torch.equal(*found)
