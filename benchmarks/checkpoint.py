"""Measure the cost of checkpoints and resumes of PPO and of DQN with a replay buffer in files or in RAM."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.replay import NUM_ENVS, WHOLE, fill
from benchmarks.report import Report, Row
from labrl.agents.agent import Observation
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.session.callbacks.checkpoint import Checkpoint
from labrl.session.devices import available_cpus
from labrl.session.interruption import Interruption
from labrl.session.main import restored_session
from labrl.session.session import Session
from labrl.step import Step

SAVES = 7
"""Number of checkpoints that are timed, after a first one that is not."""
SAVES_OF_RAM = 1
"""Number of timed checkpoints when each of them writes the whole replay buffer."""

OVERRIDES = {
    # Checkpoints are frequent, so that they fall into every stage of a rollout.
    "ppo": ["agent=ppo", "agent.epochs=1", "agent.batch_size=512", "meta.log_frequency=448"],
    # The agent does not learn before the last checkpoint. Learning would only sample, which writes no files.
    "dqn": ["agent=dqn", "agent.memory.storage=mmap"],
    "dqn in RAM": ["agent=dqn", "agent.memory.storage=ram"],
}
TITLES = {
    "ppo": "PPO on Pong (16 x 128)",
    "dqn": "DQN on Pong, replay buffer of {capacity:,} in files, full",
    "dqn in RAM": "DQN on Pong, replay buffer of {capacity:,} in RAM, full",
}


def run(repeats: int, quick: bool) -> Report:
    """Measure all agents in turns. quick: use a small replay buffer; the numbers mean nothing then."""
    capacity = WHOLE // 500 if quick else WHOLE
    spec: dict[str, Any] = {"capacity": capacity, "frequency": 64 if quick else 10_000}
    measures: dict[str, Callable[[int], Measured]] = {
        name: partial(_measured, agent=name, **spec) for name in OVERRIDES
    }
    results = take_turns(measures, repeats, "Checkpoint")
    rows = []
    for name, measured in results.items():
        title = TITLES[name].format(capacity=capacity)
        rows += [
            Row(f"**{title}**: median time of a checkpoint", [1e3 * m["save"] for m in measured], "ms"),
            Row("longest time of a checkpoint", [1e3 * m["longest"] for m in measured], "ms"),
            Row("resume: load, and repeat the running episodes", [m["resume"] for m in measured], "s"),
            Row("peak memory of a resuming process", [m["peak"] / 1e9 for m in measured], "GB"),
            Row("size of a checkpoint", [m["bytes"] / 1e6 for m in measured], "MB"),
        ]
    return Report("checkpoint", "Checkpoints and resume", rows)


def _measured(round_: int, **spec: Any) -> Measured:
    return alone("benchmarks.checkpoint", seed=round_, **spec)


class Timed:
    """A replacement for a checkpoint's `_save` that times it and ends the session after 1 + `count` saves."""

    def __init__(self, checkpoint: Checkpoint, interruption: Interruption, count: int) -> None:
        self.seconds: list[float] = []
        self._save, self._interruption, self._count = checkpoint._save, interruption, count

    def __call__(self, session: Any) -> None:
        began = time.perf_counter()
        self._save(session)
        self.seconds.append(time.perf_counter() - began)
        if len(self.seconds) > self._count:
            self._interruption.stop(signal.SIGINT)


def measure(agent: str, capacity: int, frequency: int, seed: int, folder: str | None = None) -> Measured:
    """Measure the seconds of saves and of a resume, and the bytes of a checkpoint and of memory.

    folder: the run folder to resume; None starts a run and resumes it in another process.
    """
    torch.set_num_threads(1)
    overrides = [*OVERRIDES[agent], "env=pong", f"seed={seed}", "env.max_frame=1e7", "meta.device=cpu"]
    overrides += ["meta.progress=false", "meta.tensorboard=false", "wandb=disabled"]
    if agent != "ppo":
        overrides += [f"agent.memory.capacity={capacity}", f"meta.log_frequency={frequency}"]
        overrides += [f"env.num_envs={NUM_ENVS}", f"agent.learning_starts={min(capacity, 100_000)}"]
    config = resolve(compose(overrides))
    if folder is not None:
        return _resumed(config, Run(Path(folder)).session(0))
    root = Path(tempfile.mkdtemp(prefix="labrl-bench-"))
    try:
        run = Run.create(root / "run")
        saved = _saved(config, run.session(0), capacity, agent)
        spec = {"agent": agent, "capacity": capacity, "frequency": frequency, "seed": seed}
        return saved | alone("benchmarks.checkpoint", **spec, folder=str(run.path))
    finally:
        shutil.rmtree(root)


def _saved(config: TrialConfig, folder: RunSession, capacity: int, agent: str) -> Measured:
    with contextlib.closing(Session(config, 0, folder, available_cpus())) as session:
        if agent != "ppo":
            _fill(session, capacity)
        checkpoint: Any = next(part for part in session.callbacks if isinstance(part, Checkpoint))
        count = SAVES_OF_RAM if agent == "dqn in RAM" else SAVES
        timed = checkpoint._save = Timed(checkpoint, session.interruption, count)
        session.run()
    newest = max(folder.checkpoints.glob("frame_*"))
    saves = sorted(timed.seconds[1 : count + 1])
    return {
        "save": saves[len(saves) // 2],
        "longest": saves[-1],
        "bytes": sum(file.stat().st_size for file in newest.iterdir()),
    }


def _resumed(config: TrialConfig, folder: RunSession) -> Measured:
    began = time.perf_counter()
    with Peak() as peak, contextlib.closing(restored_session(config, 0, folder, available_cpus())):
        resume = time.perf_counter() - began
    return {"resume": resume, "peak": peak.bytes}


class Peak:
    """Record the peak memory of this process inside a `with` block.

    Pages of files that are only read do not count, because the system reclaims them when it needs memory.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            status = Path("/proc/self/status").read_text()
            self.bytes = max(self.bytes, 1024 * int(status.partition("RssAnon:")[2].split()[0]))


def _fill(session: Session, capacity: int) -> None:
    """Fill the replay buffer with artificial episodes, the last of which ends where the session begins."""
    agent: Any = session.agent
    observation = fill(agent.experience.memory.add, capacity, seed=0)[1]
    first = session.transforms.collected(session.env.reset())
    session._observation = Observation(first)
    over, no = np.ones(NUM_ENVS, np.bool_), np.zeros(NUM_ENVS, np.bool_)
    step = Step(first, observation, np.zeros(NUM_ENVS, np.float32), over, no, over)
    agent.experience.memory.add(observation, np.zeros(NUM_ENVS, np.int64), step)


if __name__ == "__main__":
    answer(measure)
