"""Options of single parts as labrl's YAML sets them, for tests that build these parts alone."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from labrl.component import Component
from labrl.config.compose import compose, resolve


def options(key: str, overrides: str = "", **changes: Any) -> Any:
    """Return the dataclass at `key` of the configuration of `labrl preset=none <overrides>`, with `changes`.

    `options("agent", "agent=ppo", horizon=8)` is a PPOConfig,
    `options("agent.network.torso", "agent/network=mlp", hidden=[8])` an MLPConfig.
    """
    part = _part(key, overrides)
    return dataclasses.replace(part.config if isinstance(part, Component) else part, **changes)


def component(key: str, overrides: str = "", **changes: Any) -> Component:
    """Return the component at `key`, with the options that `options` returns."""
    return Component(_part(key, overrides).target, options(key, overrides, **changes), key)


@cache
def _part(key: str, overrides: str) -> Any:
    part: Any = resolve(compose(["preset=none", *overrides.split()]))
    for name in key.split("."):
        part = part.config if isinstance(part, Component) else part
        part = part[name] if isinstance(part, dict) else getattr(part, name)
    return part
