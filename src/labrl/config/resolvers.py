"""The resolvers `${labrl.<name>:...}` of labrl's YAML files."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf


def register() -> None:
    """Make the resolvers known to OmegaConf; again does no harm."""
    OmegaConf.register_resolver("labrl.unique", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    for resolver in (slug, whole, horizon, two_rollouts):
        OmegaConf.register_resolver(f"labrl.{resolver.__name__}", resolver, replace=True)


def slug(name: Any) -> str:
    """Return `name` as part of a file's name: `ALE/Pong-v5` becomes `ALE-Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", str(name)).strip("-.") or "run"


def whole(number: Any, otherwise: Any) -> Any:
    """Return `number` rounded up, or `otherwise` where it is null. What is no number stays as it is."""
    if number is None:
        return otherwise
    return math.ceil(number) if isinstance(number, float) and math.isfinite(number) else number


def horizon(frames: Any, num_envs: Any, batch_size: Any) -> Any:
    """Return the steps of a rollout of at most `frames` over all environments that fills whole minibatches.

    It has one minibatch at least.
    """
    if not all(isinstance(number, int) and number > 0 for number in (num_envs, batch_size)):
        return frames  # validation refuses num_envs or batch_size
    step = batch_size // math.gcd(batch_size, num_envs)
    return max(1, frames // (num_envs * step)) * step


def two_rollouts(agent: Mapping[str, Any], num_envs: Any) -> int:
    """Return the frames of two rollouts after learning may start; of 64 steps if `agent` has no horizon."""
    starts = ("learning_starts", "batch_size") if "learning_starts" in agent else ()
    numbers: list[Any] = [agent.get("horizon") or 64, num_envs, *(agent.get(name) for name in starts)]
    if not all(isinstance(number, int | float) for number in numbers):
        return 1  # validation refuses what is no number
    steps, envs, *earliest = numbers
    return int(max(earliest, default=0)) + int(2 * steps * envs)
