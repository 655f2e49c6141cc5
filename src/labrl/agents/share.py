"""The options of one of several ranks: numbers that count over all ranks are divided."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from labrl.errors import InputError

Options = TypeVar("Options")


def rollout_share(config: Options, ranks: int) -> Options:
    """The options of an agent that learns from rollouts, for one rank.

    Raises InputError if the ranks would not update at the same time.
    """
    episodes = getattr(config, "episodes", None)
    if episodes is not None:
        raise InputError(
            f"agent.episodes={episodes} cannot be used with torchrun: updates are made when whole episodes "
            "have ended, which happens at a different time on each rank. Learn after a number of steps: "
            "agent=ppo, or agent=a2c agent.episodes=null agent.horizon=5.",
            code="unsupported",
            key="agent.episodes",
        )
    if getattr(config, "self_imitation", None) is not None:
        raise InputError(
            "agent.self_imitation cannot be used with torchrun: a rank learns when it has something to "
            "imitate, which happens at a different time on each rank. Set agent/self_imitation=none.",
            code="unsupported",
            key="agent.self_imitation",
        )
    length, batch_size = getattr(config, "sequence_length", 1), getattr(config, "batch_size", None)
    if batch_size is not None and batch_size % (length * ranks) and length > 1:
        raise InputError(
            "agent.batch_size counts the steps of all ranks together and must be a multiple of "
            f"{length * ranks} ({ranks} ranks x agent.sequence_length={length}), got {batch_size}. Set "
            f"agent.batch_size={-(-batch_size // (length * ranks)) * length * ranks}.",
            code="range",
            key="agent.batch_size",
        )
    return _divided(config, ranks, "batch_size", "agent")


def experience_share(config: Options, ranks: int) -> Options:
    """The options of an agent with a replay buffer, for one rank.

    Raises InputError if minibatch or buffer cannot be divided equally.
    """
    memory: Any = getattr(config, "memory")  # noqa: B009 - of whatever agent
    memory = dataclasses.replace(memory, config=_divided(memory.config, ranks, "capacity", "agent.memory"))
    return _divided(_replaced(config, memory=memory), ranks, "batch_size", "agent")


def _divided(config: Options, ranks: int, name: str, parent: str) -> Options:
    """`config` with the rank's part of its option `name`, if it has one. Raises InputError."""
    number = getattr(config, name, None)
    if number is None:
        return config
    if number % ranks:
        near = max(number // ranks, 1) * ranks
        raise InputError(
            f"{parent}.{name} counts over all ranks and must be a multiple of their number {ranks} "
            f"(torchrun's --nproc-per-node times --nnodes), got {number}. Set {parent}.{name}={near}.",
            code="range",
            key=f"{parent}.{name}",
        )
    return _replaced(config, **{name: number // ranks})


def _replaced(config: Any, **options: Any) -> Any:
    return dataclasses.replace(config, **options)
