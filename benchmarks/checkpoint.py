"""Measure the cost of a checkpoint and of a resume: PPO, and DQN with a full replay buffer."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
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
from labrl.session.callbacks.checkpoint import Checkpoint
from labrl.session.interruption import Interruption
from labrl.session.session import Session
from labrl.step import Step
from labrl.storage.run_folder import RunFolder, SessionFolder
from labrl.trial.devices import available_cpus, keep_freed_memory
from labrl.trial.worker import restored_session

SAVES = 7
"""Checkpoints that are timed, after a first one."""

OVERRIDES = {
    # Frequent, so that the rollout is caught at every stage; how well it learns does not matter.
    "ppo": ["agent=ppo", "agent.epochs=1", "agent.batch_size=512", "meta.log_frequency=448"],
    # Nothing is learned: sampling writes nothing.
    "dqn": ["agent=dqn", "agent.memory.storage=mmap", "agent.learning_starts=1e5"],
}
TITLES = {"ppo": "PPO on Pong (16 x 128)", "dqn": "DQN on Pong, memory of {capacity:,} in files, full"}


def run(repeats: int, quick: bool) -> Report:
    """Both agents, taking turns. quick: so small that the numbers mean nothing."""
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
            Row(
                f"**{title}**: a checkpoint, the median of {SAVES}", [1e3 * m["save"] for m in measured], "ms"
            ),
            Row("the longest of them", [1e3 * m["longest"] for m in measured], "ms"),
            Row("resume: load, and replay the episodes under way", [m["resume"] for m in measured], "s"),
            Row("size of a checkpoint", [m["bytes"] / 1e6 for m in measured], "MB"),
        ]
    return Report("checkpoint", "Checkpoints and resume", rows)


def _measured(round_: int, **spec: Any) -> Measured:
    return alone("benchmarks.checkpoint", seed=round_, **spec)


class Timed:
    """Replaces a checkpoint's `_save`: times it, and ends the session after enough of them."""

    def __init__(self, checkpoint: Checkpoint, interruption: Interruption) -> None:
        self.seconds: list[float] = []
        self._save, self._interruption = checkpoint._save, interruption

    def __call__(self, session: Any) -> None:
        began = time.perf_counter()
        self._save(session)
        self.seconds.append(time.perf_counter() - began)
        if len(self.seconds) > SAVES:
            self._interruption.stop(signal.SIGINT)


def measure(agent: str, capacity: int, frequency: int, seed: int) -> Measured:
    """Seconds of the saves and of a resume, bytes of a checkpoint."""
    torch.set_num_threads(1)
    keep_freed_memory()
    overrides = [*OVERRIDES[agent], "env=pong", f"seed={seed}", "env.max_frame=1e7", "meta.device=cpu"]
    overrides += ["meta.progress=false", "meta.tensorboard=false", "wandb=disabled"]
    if agent == "dqn":
        overrides += [f"agent.memory.capacity={capacity}", f"meta.log_frequency={frequency}"]
        overrides += [f"env.num_envs={NUM_ENVS}"]
    config = resolve(compose(overrides))
    folder = Path(tempfile.mkdtemp(prefix="labrl-bench-"))
    try:
        return _timed(config, RunFolder.create(folder / "run").session(0), capacity, agent == "dqn")
    finally:
        shutil.rmtree(folder)


def _timed(config: TrialConfig, folder: SessionFolder, capacity: int, with_memory: bool) -> Measured:
    session = Session(config, 0, folder, available_cpus())
    if with_memory:
        _fill(session, capacity)
    checkpoint: Any = next(part for part in session.callbacks if isinstance(part, Checkpoint))
    timed = checkpoint._save = Timed(checkpoint, session.interruption)
    session.run()
    newest = max(folder.checkpoints.glob("frame_*"))
    began = time.perf_counter()
    with contextlib.closing(restored_session(config, 0, folder, available_cpus())):
        resume = time.perf_counter() - began
    saves = sorted(timed.seconds[1 : SAVES + 1])
    return {
        "save": saves[len(saves) // 2],
        "longest": saves[-1],
        "resume": resume,
        "bytes": sum(file.stat().st_size for file in newest.iterdir()),
    }


def _fill(session: Session, capacity: int) -> None:
    """Let the memory be full of made-up episodes, the last of which ends where the session begins."""
    agent: Any = session.agent
    observation = fill(agent.experience.memory.add, capacity, seed=0)[1]
    first = session.transforms.collected(session.env.reset())
    session._observation = Observation(first)
    over, no = np.ones(NUM_ENVS, np.bool_), np.zeros(NUM_ENVS, np.bool_)
    step = Step(first, observation, np.zeros(NUM_ENVS, np.float32), over, no, over)
    agent.experience.memory.add(observation, np.zeros(NUM_ENVS, np.int64), step)


if __name__ == "__main__":
    answer(measure)
