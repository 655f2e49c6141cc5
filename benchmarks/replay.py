"""Measure the bytes and times of full replay buffers of stacked Atari images, beside Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.report import Report, Row
from labrl.config.compose import compose, resolve
from labrl.memory.workspace import Workspace
from labrl.step import Step

NUM_ENVS, BATCH, STACK, SIZE = 8, 32, 4, 84
OBSERVATION = gym.spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
ACTION = gym.spaces.Discrete(6)
EPISODE = 1000
"""Number of agent steps of an episode."""
FRAMES_KEPT = 30_000
"""Spare room in the files, in frames: three checkpoints at the default frequency."""
WHOLE, SB3_DIVISOR = 1_000_000, 10
"""Number of transitions, and the divisor of this number for Stable-Baselines3.

Stable-Baselines3's buffer would need 56 GB, so it is measured with a tenth of the transitions, and its bytes
are multiplied by ten.
"""

Add = Callable[[NDArray, NDArray, Step], Any]

LABRL: dict[str, dict[str, Any]] = {
    "labrl, in memory": {"storage": "ram"},
    "labrl, memory-mapped": {"storage": "mmap"},
    "labrl, prioritized, in memory": {"storage": "ram", "prioritized": True},
}
SB3: dict[str, dict[str, Any]] = {
    "Stable-Baselines3": {"optimize_memory_usage": False},
    "Stable-Baselines3, optimize_memory_usage": {"optimize_memory_usage": True},
}


def run(repeats: int, quick: bool) -> Report:
    """Measure all replay buffers in turns. quick: use small ones; the numbers mean nothing then."""
    capacity = WHOLE // 500 if quick else WHOLE
    measures: dict[str, Callable[[int], Measured]] = {
        **{name: partial(_measured, side="labrl", capacity=capacity, **LABRL[name]) for name in LABRL},
        **{
            name: partial(_measured, side="sb3", capacity=capacity // SB3_DIVISOR, **SB3[name])
            for name in SB3
        },
    }
    results = take_turns(measures, repeats, "Replay")
    rows = []
    for name, measured in results.items():
        whole = 1 if name in LABRL else SB3_DIVISOR
        size = f"{capacity // whole:,} transitions"
        rows += [
            Row(f"**{name}**: {capacity:,} transitions", [whole * m["bytes"] / 1e9 for m in measured], "GB"),
            Row(f"add {NUM_ENVS} transitions, buffer of {size}", [1e3 * m["add"] for m in measured], "ms"),
            Row(f"sample {BATCH}, buffer of {size}", [1e3 * m["sample"] for m in measured], "ms"),
        ]
        if "update" in measured[0]:
            rows.append(Row(f"update {BATCH} priorities", [1e3 * m["update"] for m in measured], "ms"))
    title = f"Replay buffer of Atari images ({STACK} x {SIZE} x {SIZE}, {NUM_ENVS} environments)"
    return Report("replay", title, rows)


def _measured(round_: int, **spec: Any) -> Measured:
    return alone("benchmarks.replay", seed=round_, **spec)


def measure(side: str, **spec: Any) -> Measured:
    """Measure the bytes of a full replay buffer and the median seconds of its calls."""
    torch.set_num_threads(1)
    return _measure_labrl(**spec) if side == "labrl" else _measure_sb3(**spec)


def _measure_labrl(capacity: int, seed: int, storage: Any, prioritized: bool = False) -> Measured:
    option = "prioritized" if prioritized else "uniform"
    agent = resolve(compose(["preset=none", "agent=dqn", f"agent/memory={option}"])).agent
    chosen = agent.config.memory
    config = dataclasses.replace(chosen.config, capacity=capacity, storage=storage)
    with tempfile.TemporaryDirectory(prefix="labrl-bench-") as folder:
        memory = chosen.load()(
            config,
            observation_space=OBSERVATION,
            action_space=ACTION,
            num_envs=NUM_ENVS,
            n_step=1,
            gamma=0.99,
            workspace=Workspace(Path(folder), FRAMES_KEPT),
            generator=np.random.default_rng(seed),
        )
        add, _ = fill(memory.add, capacity, seed)
        samples, updates = [], []
        error = np.random.default_rng(seed).random(BATCH)
        for _ in range(1000):
            began = time.perf_counter()
            batch = memory.sample(BATCH, 0)
            # Stable-Baselines3 returns tensors too.
            tensors = [torch.from_numpy(array) for array in batch if array is not None]
            sampled = time.perf_counter()
            memory.update_priorities(batch.index, error)
            samples.append(sampled - began)
            updates.append(time.perf_counter() - sampled)
            del tensors
    measured = {"bytes": memory.num_bytes, "add": add, "sample": statistics.median(samples)}
    return {**measured, "update": statistics.median(updates)} if prioritized else measured


def _measure_sb3(capacity: int, seed: int, optimize_memory_usage: bool) -> Measured:
    from stable_baselines3.common.buffers import ReplayBuffer

    np.random.seed(seed)
    buffer = ReplayBuffer(
        capacity,
        OBSERVATION,
        ACTION,
        "cpu",
        NUM_ENVS,
        optimize_memory_usage=optimize_memory_usage,
        handle_timeout_termination=not optimize_memory_usage,
    )
    infos: list[dict[str, Any]] = [{} for _ in range(NUM_ENVS)]

    def add(observation: NDArray, action: NDArray, step: Step) -> None:
        buffer.add(observation, step.next_observation, action, step.reward, step.episode_over, infos)

    seconds, _ = fill(add, capacity, seed)
    samples = []
    for _ in range(1000):
        began = time.perf_counter()
        buffer.sample(BATCH)
        samples.append(time.perf_counter() - began)
    arrays = [value for value in vars(buffer).values() if isinstance(value, np.ndarray)]
    num_bytes = sum(array.nbytes for array in arrays)
    return {"bytes": num_bytes, "add": seconds, "sample": statistics.median(samples)}


def fill(add: Add, capacity: int, seed: int) -> tuple[float, NDArray]:
    """Add artificial transitions until the replay buffer is full, and some more.

    Returns the median seconds of an addition to the full buffer, and the next observation.
    """
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, 256, (64, NUM_ENVS, SIZE, SIZE), np.uint8)
    action, no = rng.integers(0, 6, NUM_ENVS), np.zeros(NUM_ENVS, np.bool_)
    reward = np.ones(NUM_ENVS, np.float32)
    full = capacity // NUM_ENVS
    observation = np.zeros((NUM_ENVS, *OBSERVATION.shape), np.uint8)
    seconds = []
    for t in range(full + max(full // 10, 100)):
        after = np.concatenate([observation[:, 1:], pool[t % len(pool), :, None]], axis=1)
        over = (t + np.arange(NUM_ENVS) * EPISODE // NUM_ENVS) % EPISODE == EPISODE - 1
        step = Step(after, after, reward, over, no, over)
        if over.any():
            step.observation = after.copy()
            step.observation[over, :-1] = 0
        began = time.perf_counter()
        add(observation, action, step)
        if t >= full:
            seconds.append(time.perf_counter() - began)
        observation = step.observation
    return statistics.median(seconds), observation


if __name__ == "__main__":
    answer(measure)
