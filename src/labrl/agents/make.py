"""Labrl's agents by name, and the agent of a configuration: its capabilities, checks and construction."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Never

import gymnasium as gym
import yaml

from labrl.agents.agent import Agent, agent_class, no_agent
from labrl.agents.random import check_uniform
from labrl.component import Component, load_target
from labrl.config import config_folder
from labrl.config.schema import TrialConfig
from labrl.errors import InputError

NAMED_FIRST = ("ppo", "dqn", "sac", "td3")
"""Agents that messages name first."""


def named_agents() -> dict[str, type[Agent]]:
    """Return the classes of labrl's agents by their names in `agent=`, the most common ones first."""
    names = sorted(file.stem for file in (config_folder() / "agent").glob("*.yaml"))
    common = [name for name in NAMED_FIRST if name in names]
    return {name: _named_agent(name) for name in dict.fromkeys([*common, *names])}


@cache
def _named_agent(name: str) -> type[Agent]:
    """Return the class of the agent of labrl that is called `name` in `agent=`."""
    options: dict[str, Any] = {"defaults": [name]}
    while "_target_" not in options:  # its first default is the agent that it extends
        file = config_folder() / "agent" / f"{options['defaults'][0]}.yaml"
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    return load_target(options["_target_"])


def fitting_agents(space: gym.Space[Any]) -> list[str]:
    """Return the names of labrl's agents that support an action space, the most common ones first."""
    return [name for name, kind in named_agents().items() if kind.fits(space)]


def check_actions(agent: str, space: gym.Space[Any]) -> None:
    """Raise InputError, which names suitable agents, if `agent` (as in `agent=`) does not support `space`.

    Agents of users, which have no name in `agent=`, check the space themselves.
    """
    if not (config_folder() / "agent" / f"{agent}.yaml").is_file():
        return
    kind = _named_agent(agent)
    if isinstance(space, kind.TRAITS.actions):
        return
    *first, last = [each.__name__ for each in kind.TRAITS.actions]
    listed = f"{', '.join(first)} and {last}" if first else last
    others = ", ".join(f"agent={name}" for name in fitting_agents(space))
    raise InputError.unsupported(
        f"agent={agent}",
        f"it supports {listed} action spaces, but this environment's is {space}",
        f"Agents that support it: {others}." if others else "None of labrl's agents supports it.",
    )


def refuse_masks(agent: str, space: gym.Space[Any], env: str) -> Never:
    """Raise InputError, which names agents that support the action masks of environment `env`."""
    fitting = [name for name in fitting_agents(space) if named_agents()[name].TRAITS.masks]
    others = ", ".join(f"agent={name}" for name in fitting)
    raise InputError.unsupported(
        f"agent={agent}",
        f"it does not support action masks, which env.name={env} provides",
        f"Agents that do: {others}. To play without masks, set env.action_mask=false.",
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


def check_abilities(config: TrialConfig, actions: gym.Space[Any], masked: bool) -> None:
    """Raise InputError for options that the agent of `config` does not support.

    actions: action space of the environment; masked: whether the environment provides action masks.
    """
    meta, target = config.meta, config.agent.target
    agent = agent_class(config.agent)
    if masked and not agent.TRAITS.masks:
        refuse_masks(agent.NAME or target, actions, config.env.config.name)
    if meta.eval_greedy and not agent.TRAITS.greedy:
        raise InputError.unsupported(
            "meta.eval_greedy=true", f"{target} has no greedy action", "meta.eval_greedy=false"
        )
    if meta.eval_epsilon:
        check_uniform(actions, f"meta.eval_epsilon={meta.eval_epsilon:g}")
    if meta.gradient_noise and not agent.TRAITS.loss_is_mean:
        raise InputError.unsupported(
            "meta.gradient_noise=true",
            f"gradients over half of a minibatch and over all of it are compared, but {target} normalizes "
            "over the minibatch",
            "meta.gradient_noise=false",
        )
    if meta.distributed and not agent.TRAITS.shares_weights:
        raise InputError.unsupported(
            f"meta.distributed={meta.distributed}",
            f"{target} cannot share weights with other sessions; agents that learn from their own rollouts "
            "can, such as agent=ppo",
            "meta.distributed=false",
        )
    if meta.async_unroll is not None and not agent.TRAITS.learns_from_copies:
        raise InputError.unsupported(
            "meta.async_unroll",
            f"{target} learns only from steps played with its current weights",
            "meta.async_unroll=null, or choose an agent with a replay buffer, such as agent=dqn or sac",
        )
