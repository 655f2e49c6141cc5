"""What the agent of a configuration can do, by the traits of its class; refusal of what it cannot."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from labrl.agents.agent import agent_class
from labrl.agents.make import refuse_masks
from labrl.agents.random import check_uniform
from labrl.config.schema import TrialConfig
from labrl.errors import InputError

NOT_TRIED_ON_A_GPU = {"labrl.agents.parts.action_values.QuantileValue"}
"""Parts whose recorded updates have been compared with the functions themselves only on the CPU."""


def why_not_recorded(config: TrialConfig) -> str:
    """Return why CUDA graphs may not repeat the updates of an agent; an empty string if they may.

    A graph repeats operations without the code around them, so only code is trusted of which tests show that
    it keeps everything that changes in tensors.
    """
    targets = _targets_in(config.agent.plain())
    foreign = [target for target in targets if not target.startswith("labrl.")]
    untried = [target for target in targets if target in NOT_TRIED_ON_A_GPU]
    if config.meta.graphs == "off":
        return "meta.graphs=off"
    if foreign:
        return f"{foreign[0]} is not part of labrl"
    if untried:
        return f"they were not tried with {untried[0]} on a GPU"
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
            f"gradients over half a minibatch and all of it are compared, but {target} normalizes by the "
            "whole minibatch",
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
            f"{target} learns only from steps of its current weights",
            "meta.async_unroll=null, or choose an agent with a replay buffer, such as agent=dqn or sac",
        )
