"""Sessions that are interrupted at a frame, restored, and compared with uninterrupted ones."""

from __future__ import annotations

import functools
import json
import signal
import tempfile
from pathlib import Path
from typing import Any

from exact_cases import rows, state, unequal
from tensorboard_files import scalars

from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.run.checkpoint import CheckpointStore
from labrl.run.run import Run
from labrl.session.callbacks import Callback
from labrl.session.session import Session

STOP = 164
"""Frame in the middle of a rollout and of the run."""


class StopAt(Callback):
    """Callback that stops the session by a signal at a frame."""

    def __init__(self, frame: int, number: int = signal.SIGTERM) -> None:
        self.frame, self.number = frame, number

    def step(self, session: Any) -> None:
        if session.clock.frame >= self.frame:
            signal.raise_signal(self.number)


class Watch(Callback):
    """Callback that reads metrics and states, which must not matter, and stops the session at a frame.

    The agent's metrics must always have the same names.
    """

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.names: list[str] = []

    def step(self, session: Any) -> None:
        names = list(session.agent.metrics())
        self.names = self.names or names
        assert names == self.names
        if session.clock.frame % 64 == 0:
            session.state_dict()
        if session.clock.frame >= self.stop_at:
            signal.raise_signal(signal.SIGTERM)


def session_in(folder: Path, config: TrialConfig) -> Session:
    """Make session 0 of a run in `folder`, which is created if necessary."""
    run = Run(folder) if folder.exists() else Run.create(folder)
    return Session(config, 0, run.session(0), num_threads=1)


def run_until(folder: Path, config: TrialConfig, frame: int) -> None:
    """Start a run and interrupt it at `frame`."""
    session = session_in(folder, config)
    session.callbacks.insert(0, Watch(frame))
    session.run()
    assert session.clock.frame == frame


def resume(folder: Path, config: TrialConfig) -> None:
    """Restore a session from its newest checkpoint and run it to the end."""
    latest = CheckpointStore(folder / "session_0" / "checkpoints", 1).latest()
    assert latest is not None
    session = session_in(folder, config)
    session.load_state_dict(latest.state)
    session.run()


def future(folder: Path) -> dict[str, Any]:
    """Return the rows, final state, best frame, TensorBoard points and progress of a run, without times."""
    session = folder / "session_0"
    best = CheckpointStore(session / "checkpoints", 1).best()
    points = scalars(session / "tensorboard") if (session / "tensorboard").exists() else {}
    progress = json.loads((session / "progress.json").read_text())
    return {
        "train": rows(session / "train.csv"),
        "eval": rows(session / "eval.csv"),
        "state": state(session),
        "best": None if best is None else best.frame,
        "board": {tag: points[tag] for tag in points if not tag.endswith(("wall", "fps"))},
        "progress": {key: progress[key] for key in ("frame", "episode", "return_mean", "status")},
    }


@functools.cache
def config_of(*overrides: str) -> TrialConfig:
    """Return the configuration of a run. Cached, because the runs of a test have the same one."""
    return resolve(compose(list(overrides)))


@functools.cache
def uninterrupted_future(*overrides: str) -> dict[str, Any]:
    """Return the future of an uninterrupted run. Cached, because several tests compare with the same run."""
    with tempfile.TemporaryDirectory() as folder:
        session_in(Path(folder) / "run", config_of(*overrides)).run()
        return future(Path(folder) / "run")


def changed_futures(folder: Path, overrides: list[str], frame: int = STOP) -> list[str]:
    """Return where a run that was interrupted at `frame` and resumed differs from an uninterrupted one."""
    config = config_of(*overrides)
    run_until(folder / "run", config, frame)
    resume(folder / "run", config)
    return unequal(uninterrupted_future(*overrides), future(folder / "run"))
