"""The options of one of several ranks: numbers that count over all ranks are divided."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from labrl.errors import InputError

Options = TypeVar("Options")


def divided(options: Options, name: str, ranks: int, parent: str = "agent") -> Options:
    """Return `options` with the equal part of one rank of their option `name`.

    parent: key of the options. Raises InputError where `ranks` does not divide the number.
    """
    number = getattr(options, name)
    if number % ranks:
        near = max(number // ranks, 1) * ranks
        raise InputError(
            f"{parent}.{name} counts over all ranks and must be a multiple of their number {ranks} "
            f"(torchrun's --nproc-per-node times --nnodes), got {number}. Set {parent}.{name}={near}.",
            code="range",
            key=f"{parent}.{name}",
        )
    changed: Any = dataclasses.replace(options, **{name: number // ranks})  # type: ignore[type-var]
    return changed


def refuse_episodes(episodes: int | None) -> None:
    """Raise InputError for an agent that updates when `episodes` have ended; None: it does not."""
    if episodes is not None:
        raise InputError(
            f"agent.episodes={episodes} cannot be used with torchrun: updates are made when whole episodes "
            "have ended, which happens at a different time on each rank. Learn after a number of steps: "
            "agent=ppo, or agent=a2c agent.episodes=null agent.horizon=5.",
            code="unsupported",
            key="agent.episodes",
        )


def refuse_self_imitation(part: object) -> None:
    """Raise InputError for an agent with a part for self-imitation; None: it has none."""
    if part is not None:
        raise InputError(
            "agent.self_imitation cannot be used with torchrun: a rank learns when it has something to "
            "imitate, which happens at a different time on each rank. Set agent/self_imitation=none.",
            code="unsupported",
            key="agent.self_imitation",
        )
