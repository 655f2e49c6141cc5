"""The options of one of several ranks: numbers that count over all ranks are divided."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from labrl.errors import InputError

Options = TypeVar("Options")


def divided(
    options: Options, name: str, ranks: int, parent: str = "agent", sequence_length: int = 1
) -> Options:
    """Return `options` with the equal part of one rank of their option `name`.

    parent: key of the options; sequence_length: steps that a rank learns from together. Raises InputError
    where the number is no multiple of the ranks times that length.
    """
    number, unit = vars(options)[name], ranks * sequence_length
    if number % unit:
        sequences = f" times the {sequence_length} steps of a sequence" if sequence_length > 1 else ""
        near = number // unit + 1 if sequence_length > 1 else max(number // unit, 1)
        raise InputError(
            f"{parent}.{name} counts over all ranks and must be a multiple of {unit}, their number {ranks} "
            f"(torchrun's --nproc-per-node times --nnodes){sequences}, got {number}. Set "
            f"{parent}.{name}={near * unit}.",
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
