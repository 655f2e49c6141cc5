"""What one of several ranks learns with: options that count over all of them, divided."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from labrl.errors import InputError

Options = TypeVar("Options")


def rollout_share(config: Options, ranks: int) -> Options:
    """Of an agent that learns from rollouts. Raises InputError where ranks would not update together."""
    episodes = getattr(config, "episodes", None)
    if episodes is not None:
        raise InputError(
            f"torchrun: with agent.episodes={episodes} an update is made when whole episodes have ended, "
            "which is at another time on each rank. Learn after so many steps: agent=ppo, or agent=a2c "
            "agent.episodes=null agent.horizon=5."
        )
    if getattr(config, "self_imitation", None) is not None:
        raise InputError(
            "torchrun: agent.self_imitation learns when a rank has something to imitate, which is not at the "
            "same time on all. Set agent.self_imitation=null."
        )
    length, batch_size = getattr(config, "sequence_length", 1), getattr(config, "batch_size", None)
    if batch_size is not None and batch_size % (length * ranks) and length > 1:
        raise InputError(
            f"agent.batch_size={batch_size} is of all ranks together and must be a multiple of their number, "
            f"{ranks}, times agent.sequence_length {length}: set agent.batch_size="
            f"{-(-batch_size // (length * ranks)) * length * ranks}."
        )
    return _divided(config, ranks, "batch_size", "agent")


def experience_share(config: Options, ranks: int) -> Options:
    """Of an agent with a replay memory. Raises InputError where minibatch or memory has no equal parts."""
    memory: Any = getattr(config, "memory")  # noqa: B009 - of whatever agent
    memory = dataclasses.replace(memory, config=_divided(memory.config, ranks, "capacity", "agent.memory"))
    return _divided(_replaced(config, memory=memory), ranks, "batch_size", "agent")


def _divided(config: Options, ranks: int, name: str, parent: str) -> Options:
    """`config` with the rank's part of its option `name`, if it has that. Raises InputError."""
    number = getattr(config, name, None)
    if number is None:
        return config
    if number % ranks:
        near = max(number // ranks, 1) * ranks
        raise InputError(
            f"{parent}.{name}={number} is of all ranks together and must be a multiple of their number, "
            f"{ranks} (torchrun's --nproc-per-node times --nnodes): set {parent}.{name}={near}."
        )
    return _replaced(config, **{name: number // ranks})


def _replaced(config: Any, **options: Any) -> Any:
    return dataclasses.replace(config, **options)
