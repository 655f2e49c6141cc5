"""Resolved configurations of each agent in each environment, each recipe, and each option of other groups."""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.errors import LabrlError
from labrl.trial.create import check

HERE = "compositions"

HYDRA = ("sweeper", "launcher", "run", "sweep")
"""Parts of Hydra's own configuration that are recorded, with their interpolations."""

SHARED = ("agent/network", "agent/optimizer")
"""Parts of all agents, which are composed with PPO and DQN only."""

SHOWN = 4
"""Number of compositions that are named for each difference."""

REFUSED = "(refused)"


def options() -> Iterator[tuple[str, str]]:
    """Yield each group and option, such as `agent/memory` and `uniform`."""
    for file in sorted(config_folder().rglob("*.yaml")):
        *groups, name = file.relative_to(config_folder()).with_suffix("").parts
        if groups[:1] == ["experiment"]:
            yield "experiment", "/".join([*groups[1:], name])
        elif groups:
            yield "/".join(groups), name


def compositions() -> Iterator[str]:
    """Yield the overrides of all compositions. Parts of agents are composed with all agents that have them,
    except SHARED, which all have."""
    found = list(options())
    agents = [name for group, name in found if group == "agent"]
    for env in [*(name for group, name in found if group == "env"), "pong"]:
        yield from (f"agent={agent} env={env}" for agent in agents)
    for group, name in found:
        if group.startswith("agent/"):
            tried = ("ppo", "dqn") if group in SHARED else agents
            yield from (f"agent={agent} {group}={name}" for agent in tried if group in groups(agent))
        elif group not in ("agent", "env"):
            yield f"{group}={name}"


@functools.cache
def groups(agent: str) -> set[str]:
    """Return the groups of which the configuration of an agent has an option."""
    return set(compose([f"agent={agent}"], with_hydra=True).hydra.runtime.choices)


def composed(overrides: str) -> dict[str, Any]:
    """Return the values of all keys, and the code and key of each mistake as the value of REFUSED."""
    try:
        cfg = compose(overrides.split(), with_hydra=True)
    except LabrlError as error:
        return {REFUSED: mistakes(error)}
    own = {name: OmegaConf.to_container(cfg.hydra[name], resolve=False) for name in HYDRA}
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_struct(cfg, False)
    cfg.pop("hydra")
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    except OmegaConfBaseException:  # a required value is missing
        plain = OmegaConf.to_container(cfg, resolve=False, enum_to_str=True)
    found = dict(leaves({**plain, "hydra": own}))
    try:
        check(resolve(cfg))
    except LabrlError as error:
        found[REFUSED] = mistakes(error)
    return found


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for name, part in node.items():
            yield from leaves(part, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def mistakes(error: LabrlError) -> str:
    return ", ".join(f"{one.code} {one.key}" for one in error.mistakes)


def take(before: Any) -> dict[str, Any]:
    taken = {}
    for overrides in compositions():
        taken[overrides] = composed(overrides)
        if len(taken) % 100 == 0:
            print(f"{len(taken)} compositions", file=sys.stderr, flush=True)
    return taken


def differences(old: Any, new: Any) -> list[str]:
    """Return a line for each change of a key, with the compositions in which it has changed."""
    changes: dict[str, list[str]] = defaultdict(list)
    for overrides in {**old, **new}:
        if overrides not in old or overrides not in new:
            changes[f"only {'before' if overrides in old else 'now'}"].append(overrides)
            continue
        one, other = old[overrides], new[overrides]
        for key in {**one, **other}:
            was, now = (repr(part[key]) if key in part else "nothing" for part in (one, other))
            if was != now:
                changes[f"{key}: {was} -> {now}"].append(overrides)
    return [
        f"{change}\n    in {len(places)}: {'; '.join(places[:SHOWN])}{'; ...' * (len(places) > SHOWN)}"
        for change, places in changes.items()
    ]
