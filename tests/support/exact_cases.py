"""Interrupt runs of the real command line with signals, and compare run folders bit for bit."""

from __future__ import annotations

import csv
import functools
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from commands import start_labrl
from omegaconf import OmegaConf

from labrl.config.compose import compose
from labrl.config.keys import quoted, typed_override
from labrl.run.checkpoint import CheckpointStore
from labrl.run.episodes import read_episode, recorded_names
from labrl.run.session import RunSession
from labrl.spaces import same

QUIET = ["meta.progress=false", "meta.tensorboard=false", "meta.videos=false", "meta.report=false", "seed=5"]
QUIET += ["wandb=disabled"]

VECTOR = ["env.max_frame=2400", "meta.log_frequency=200", "meta.eval_frequency=280"]
IMAGES = ["env.num_envs=2", "env.max_frame=240", "meta.log_frequency=20", "meta.eval_frequency=28"]

LAMP = ["env=gymnasium", "env.id=null", "env.name=lamp", "+env.make._target_=inputs_env.Lamp"]
"""An environment with an image and numbers as observation; needs tests/support in PYTHONPATH."""

BITS = ["env=gymnasium", "env.id=null", "env.name=bits", "+env.make._target_=goal_env.BitFlip"]
"""A goal environment; needs tests/support in PYTHONPATH."""

TAXI = ["env=gymnasium", f"env.id={max(name for name in gym.registry if name.startswith('Taxi-v'))}"]
"""An environment that provides action masks; which version there is depends on that of Gymnasium."""

TASKS: dict[str, list[str]] = {
    "cartpole": ["env=cartpole", *VECTOR],
    "pendulum": ["env=pendulum", *VECTOR],
    "pong": ["env=pong", *IMAGES, "env.max_episode_frames=160"],
    "taxi": [*TAXI, *VECTOR],
    "lamp": [*LAMP, *IMAGES],  # several inputs
    "bits": [*BITS, *VECTOR],  # goals
}
"""Environments with a budget of a second or two and twelve training checkpoints.

Training and evaluation checkpoints lie at different frames.
"""

REPLAY = [
    "agent.learning_starts=60",
    "agent.memory.capacity=96",
    "agent.batch_size=8",
    "agent.updates_per_frame=0.25",
]

SMALL: dict[str, list[str]] = {
    "labrl.agents.ppo.PPO": ["agent.horizon=16", "agent.batch_size=32", "agent.epochs=2"],
    "labrl.agents.a2c.A2C": [],
    "recurrent_ppo": [
        *("agent.horizon=16", "agent.sequence_length=8", "agent.batch_size=32", "agent.epochs=2"),
    ],
    "recurrent_a2c": ["agent.horizon=7"],
    "labrl.agents.reinforce.Reinforce": ["agent.episodes=4"],
    "labrl.agents.sarsa.Sarsa": ["agent.horizon=8"],
    "labrl.agents.pqn.PQN": ["agent.horizon=8", "agent.batch_size=16"],
    "labrl.agents.dqn.DQN": REPLAY,
    "recurrent_dqn": [
        *("agent.learning_starts=60", "agent.batch_size=8", "agent.updates_per_frame=0.1"),
        *("agent.memory.capacity=160", "agent.memory.sequence_length=8", "agent.memory.burn_in=4"),
    ],
    **{
        f"labrl.agents.{name}": REPLAY
        for name in ("sac.SAC", "crossq.CrossQ", "tqc.TQC", "td3.TD3", "td3.DDPG", "td3_bc.TD3BC", "iql.IQL")
    },
    "labrl.agents.random.RandomAgent": [],
}
"""Overrides by agent, or else by its class, for the budgets of TASKS.

With these an agent learns within the budget, and its replay buffer overwrites its oldest transitions.
"""


KL = "agent.lr={kind: kl, rate: 1e-3, target: 1e-4}"
"""A learning rate that every rollout of a small run changes."""

VARIANTS: dict[str, list[str]] = {
    "ppo_kl": ["ppo", KL],
    "ppo_values": ["ppo", "agent.normalize_value=true", "agent.value_clip_range=0.2"],
    "ppo_beta": ["ppo", "agent.action_bounds=beta"],
    "ppo_sde": ["ppo", "agent.sde={steps: 5, log_std_init: -2}", "agent.log_std_init=null"],
    "sac_sde": ["sac", "agent.sde={steps: 5, log_std_init: -3}"],
    "a2c_values": ["a2c", "agent.normalize_value=true", "agent.network.shared=true"],
}
"""Agents with options that no file of `configs/agent` sets: the agent and overrides, by a name for tests."""

ALIKE = {"c51", "ddpg", "double_dqn", "dueling_dqn", "qr_dqn", "rainbow_lite", "sil_a2c"}
"""Agents made of parts that other agents use too, so only `make exact` and `make learn` test them."""


def small(agent: str, task: str, narrow: bool = True) -> list[str]:
    """Return the overrides of a run of a few seconds whose schedules do not depend on its budget.

    narrow: whether the layers of its networks have 8 units instead of those of the agent's configuration.
    """
    overrides = _small(agent, task)
    return [*overrides, *narrowing(overrides)] if narrow else list(overrides)


def narrowing(overrides: list[str]) -> list[str]:
    """Return overrides that set every hidden layer of the agent's networks to 8 units."""
    network = OmegaConf.to_container(compose(overrides).agent, resolve=False).get("network")
    heads = ("hidden", "head", "action_head", "policy_head", "value_head")
    sizes: dict[str, Any] = {**{head: [8] for head in heads}, "hidden_size": 8, "features": 8}
    layers = {
        key: sizes.get(key.rpartition(".")[2]) for key, size in _leaves(network, "agent.network") if size
    }
    return [f"{key}={size}" for key, size in layers.items() if size]


@functools.cache
def _small(agent: str, task: str) -> list[str]:
    agent, *options = VARIANTS.get(agent, [agent])
    overrides = [*QUIET, f"agent={agent}", *TASKS[task]]
    chosen = compose(overrides).agent
    target = str(chosen["_target_"])
    if agent not in SMALL and target not in SMALL:
        raise LookupError(
            f"tests/support/exact_cases.py: add overrides for {target} to SMALL, so that it is tested too"
        )
    overrides += SMALL[agent if agent in SMALL else target]
    if chosen.get("self_imitation") is not None:
        overrides += ["agent.self_imitation.batch_size=16", "agent.self_imitation.memory.capacity=96"]
    overrides += options
    return overrides + pins(overrides)


def pins(overrides: list[str]) -> list[str]:
    """Return overrides that fix every key that follows `env.max_frame` at its value under `overrides`."""
    cfg = compose(overrides)
    return [
        typed_override(key, OmegaConf.select(cfg, key))
        for key, value in _leaves(OmegaConf.to_container(cfg, resolve=False))
        if value == "${env.max_frame}"
    ]


def _leaves(node: Any, parent: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(node, dict):
        yield parent, node
        return
    for name, value in node.items():
        yield from _leaves(value, f"{parent}.{name}" if parent else str(name))


@dataclass(frozen=True)
class Moment:
    """The time of a signal: `seconds` after the first checkpoint at or beyond `frame`."""

    frame: int
    seconds: float


def folder_override(folder: Path) -> str:
    """Return the override that sets the run folder, with special characters quoted."""
    return f"hydra.run.dir={quoted(str(folder))}"


def interrupt(folder: Path, overrides: list[str], number: signal.Signals, moment: Moment) -> tuple[int, str]:
    """Start `labrl` and send its process group the signal at `moment`, unless it has ended before.

    folder: the run folder that `overrides` lead to. Returns the exit code and the output.
    """
    process = start_labrl(*overrides)
    try:
        while process.poll() is None and newest_checkpoint(folder) < moment.frame:
            time.sleep(0.002)
        time.sleep(moment.seconds)
        if process.poll() is None:
            os.killpg(process.pid, number)
        output, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output


def newest_checkpoint(folder: Path, session: int = 0) -> int:
    return max(CheckpointStore(folder / f"session_{session}" / "checkpoints", 1).frames(), default=0)


def differences(one: Path, other: Path) -> list[str]:
    """Return the places where two run folders differ in their rows or in their last checkpoints.

    Wall time and frames per second may differ.
    """
    found = []
    sessions = sorted({path.name for folder in (one, other) for path in folder.glob("session_*")})
    for session in sessions:
        tables = [f"{session}/{table}.csv" for table in ("train", "eval")]
        found += [table for table in tables if rows(one / table) != rows(other / table)]
        found += [f"{session}: {place}" for place in unequal(*(state(f / session) for f in (one, other)))]
    return found


def recorded_differences(one: Path, other: Path) -> list[str]:
    """Return the places where the recorded episodes of two run folders differ."""
    return unequal(*({path.name: episodes(path) for path in run.glob("session_*")} for run in (one, other)))


def episodes(session: Path) -> dict[str, Any]:
    """Return the recorded episodes of a session by name, without the budget that they contain."""
    folder = RunSession(session).episodes
    found = {name: read_episode(folder / f"{name}.npz").plain() for name in recorded_names(folder)}
    for plain in found.values():
        plain["env"] = {key: value for key, value in plain["env"].items() if key != "max_frame"}
    return found


def rows(table: Path) -> list[dict[str, str]]:
    with open(table) as file:
        return [{k: v for k, v in row.items() if k not in ("wall", "fps")} for row in csv.DictReader(file)]


def state(session: Path) -> dict[str, Any]:
    """Return the part of the newest checkpoint that determines how the run continues, weights included."""
    checkpoint = CheckpointStore(session / "checkpoints", keep_last=1).latest()
    assert checkpoint is not None, f"{session} has no checkpoint"
    parts = ("clock", "streams", "episodes", "env", "transforms", "agent")
    kept = {name: checkpoint.state[name] for name in parts}
    kept["clock"] = {name: value for name, value in kept["clock"].items() if name != "wall"}
    return kept


def unequal(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the places where two nested states are not equal bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = {key: (one.get(key), other.get(key)) for key in {**one, **other}}
        return [p for key, pair in pairs.items() for p in unequal(*pair, f"{place}/{key}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = dict(enumerate(zip(one, other, strict=True)))
        return [p for key, pair in pairs.items() for p in unequal(*pair, f"{place}/{key}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        equal = one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        equal = one.dtype == other.dtype and same(one, other)
    else:
        equal = type(one) is type(other) and (one == other or (one != one and other != other))
    return [] if equal else [place]
