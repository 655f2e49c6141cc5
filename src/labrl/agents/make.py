"""Labrl's agents by name, and the agent of a configuration: its capabilities, checks and construction."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import gymnasium as gym
import yaml

from labrl.agents.agent import Agent, agent_class, no_agent
from labrl.component import Component, load_target
from labrl.config import config_folder
from labrl.config.schema import TrialConfig
from labrl.errors import InputError

NAMED_FIRST = ("ppo", "dqn", "sac", "td3")
"""Agents that messages name first."""


@cache
def named_agents() -> dict[str, type[Agent]]:
    """Return the classes of labrl's agents by their names in `agent=`, the most common ones first."""
    folder = config_folder() / "agent"
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    common = [name for name in NAMED_FIRST if name in names]
    found = {}
    for name in dict.fromkeys([*common, *names]):
        options: dict[str, Any] = {"defaults": [name]}
        while "_target_" not in options:  # its first default is the agent that it extends
            file = folder / f"{options['defaults'][0]}.yaml"
            options = yaml.safe_load(file.read_text(encoding="utf-8"))
        found[name] = load_target(options["_target_"])
    return found


def fitting_agents(space: gym.Space[Any]) -> list[str]:
    """Return the names of labrl's agents that support an action space, the most common ones first."""
    return [name for name, kind in named_agents().items() if kind.fits(space)]


def check_actions(named: str, kind: type[Agent], space: gym.Space[Any]) -> None:
    """Raise InputError, which names suitable agents, if an agent does not support the action space.

    named: name of the agent, as in `agent=`; kind: its class.
    """
    if not kind.fits(space):
        others = ", ".join(f"agent={name}" for name in fitting_agents(space))
        raise InputError.unsupported(
            f"agent={named}",
            f"it does not support this environment's actions, {space}",
            f"Agents that support it: {others}." if others else "None of labrl's agents supports it.",
        )


def build_agent(component: Component, ranks: int = 1, **runtime: Any) -> Agent:
    """Build the agent for one of `ranks` ranks.

    runtime: arguments that are known only at run time. Raises InputError if `component` does not make an
    agent, or if several ranks cannot train it.
    """
    agent_class(component)
    agent = for_rank(component, ranks).build(**runtime)
    if not isinstance(agent, Agent):
        raise no_agent(component, f"{component.target} returns a {type(agent).__name__}")
    return agent


def for_rank(component: Component, ranks: int) -> Component:
    """Return the agent for one of `ranks` ranks. Raises InputError if several ranks cannot train it."""
    if ranks == 1:
        return component
    kind = agent_class(component)
    if not kind.TRAITS.data_parallel:
        kinds = dict.fromkeys(other for other in named_agents().values() if other.TRAITS.data_parallel)
        others = ", ".join(f"agent={other.NAME.lower()}" for other in kinds)
        raise InputError.unsupported(
            "agent",
            f"{component.target} cannot learn on several ranks of torchrun",
            f"one of {others}, or start labrl without torchrun",
        )
    return dataclasses.replace(component, config=kind.for_rank(component.config, ranks))


def why_not_recorded(config: TrialConfig) -> str:
    """Return why CUDA graphs may not repeat the updates of an agent; an empty string if they may.

    A graph repeats operations without the Python code around them, so code is trusted only if tests show that
    everything it changes is in tensors.
    """
    foreign = [each for each in _targets_in(config.agent.plain()) if not each.startswith("labrl.")]
    if config.meta.graphs == "off":
        return "meta.graphs=off"
    if foreign:
        return f"{foreign[0]} is not part of labrl"
    return "" if agent_class(config.agent).TRAITS.graphs else f"{config.agent.target} does not support them"


def _targets_in(node: Any) -> list[str]:
    """Return all values of `_target_` in a configuration node, the outermost first."""
    if isinstance(node, dict):
        own = [node["_target_"]] if "_target_" in node else []
        return own + [target for value in node.values() for target in _targets_in(value)]
    return [target for value in node for target in _targets_in(value)] if isinstance(node, list) else []


def learns_faster_on_gpu(config: TrialConfig, images: bool) -> bool:
    """Return whether the agent of `config` is expected to learn faster on a GPU than on a CPU.

    images: whether the agent sees images.
    """
    return images or (agent_class(config.agent).TRAITS.wide and not why_not_recorded(config))
