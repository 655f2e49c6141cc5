"""The budget that an agent needs which learns from rollouts."""

from __future__ import annotations

from typing import Any

from labrl.errors import InputError


def check_budget(horizon: int, env: Any) -> None:
    """Raises InputError if training would end before the first update; env: the `env` group."""
    rollout = horizon * env.num_envs
    if env.max_frame < rollout:
        raise InputError(
            f"env.max_frame must be at least one rollout of {rollout} frames (agent.horizon={horizon} x "
            f"env.num_envs={env.num_envs}), got {env.max_frame}. Set env.max_frame={rollout} or a smaller "
            "agent.horizon.",
            code="contradiction",
            key="env.max_frame",
        )
