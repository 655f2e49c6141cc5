"""Contradictions in the configuration of a trial: contradictions.yaml, read before anything is built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import yaml

from labrl.agents.agent import Agent, agent_class
from labrl.agents.make import check_actions, fitting_agents, learns_faster_on_gpu, named_agents
from labrl.component import Component
from labrl.config.keys import written
from labrl.config.schema import TrialConfig
from labrl.envs.make import describe
from labrl.envs.single import GymnasiumConfig
from labrl.errors import InputError, LabrlError
from labrl.learning.compute import Compute
from labrl.memory.rollout import nearest_divisor
from labrl.memory.workspace import gigabytes, memory_available
from labrl.networks.actor_critic import is_shared
from labrl.networks.building import build_torso, components_in, traits_of
from labrl.schedules import largest, smallest
from labrl.session.torchrun import Launch
from labrl.spaces import (
    Spaces,
    array_dtype,
    has_bounds,
    is_vector,
    same_actions,
    sees_images,
    several_images,
    stored_dtype,
)


class Facts(dict[str, Any]):
    """What conditions and sentences of contradictions.yaml can name.

    These are parts of the configuration, the facts below, which are computed when they are needed, and the
    options of an agent that derives from one of labrl's. Any other name is None.
    """

    def __init__(
        self, config: TrialConfig, agent: str = "", spaces: Spaces | None = None, masked: bool = False
    ) -> None:
        """config: typed configuration; agent: option of the group `agent`, '' if unknown; spaces: spaces and
        goals of the environment, None if unknown; masked: whether the environment provides action masks."""
        kind, own = agent_class(config.agent), config.agent.config
        derived = [one for one in kind.__mro__ if one.__module__.startswith("labrl.agents.")]
        known = dataclasses.is_dataclass(own) and derived != [Agent]
        super().__init__(vars(own) if known else {})
        self |= {"config": config, "meta": config.meta, "env": config.env.config, "masked": masked}
        self |= {"named": agent or kind.NAME.lower() or config.agent.target, "traits": kind.TRAITS}
        self |= {"kind": kind, "classes": {one.__name__ for one in derived} if known else set()}
        self["experience"] = own if known and "updates_per_frame" in vars(own) else None
        self["ranks"] = 1 if (launch := Launch.here()) is None else launch.size
        if spaces is not None:
            self |= {"spaces": spaces, "actions": spaces.action, "observations": spaces.observation}

    def __missing__(self, name: str) -> Any:
        fact = FACTS.get(name)
        self[name] = value = None if fact is None else fact(self)
        return value

    def value(self, key: str) -> Any:
        """Return the value of a key, None if there is none."""
        node: Any = self["config"]
        for part in key.split("."):
            node = node.config if isinstance(node, Component) else node
            node = None if node is None else (node if isinstance(node, dict) else vars(node)).get(part)
        return node


def _torsos(of: Facts) -> dict[str, Component]:
    """Return the torsos of the agent's networks by their keys."""
    own = {} if of["network"] is None else vars(of["network"])
    found = {f"agent.network.{name}": own.get(name) for name in ("torso", "critic_torso")}
    return {key: one for key, one in found.items() if one is not None}


def _mixing(of: Facts) -> str | None:
    """Return the key of a torso whose features of a sample depend on the other samples, if there is one."""
    for key, torso in of["torsos"].items():
        if any(traits_of(part).batch_statistics for part in components_in(torso)):
            return key
    return None


def _unevaluated(of: Facts) -> str | None:
    """Return a key below `meta` that is set, but needs the evaluation environments that there are not."""
    names = ("eval_greedy", "eval_epsilon", "async_eval", *["eval_episodes"] * (of["meta"].eval_episodes > 1))
    return None if of["meta"].rigorous_eval else next((one for one in names if vars(of["meta"])[one]), None)


def _heads(of: Facts) -> bool:
    """Return whether layer normalization is set for heads that have no layers."""
    own = {} if of["network"] is None else vars(of["network"])
    return bool(own.get("head_layer_norm")) and not any(
        own.get(f"{part}head") for part in ("", "policy_", "value_")
    )


def _device(of: Facts) -> str:
    """Return the type of the device on which the agent learns."""
    meta, on_gpu = of["meta"], learns_faster_on_gpu(of["config"], sees_images(of["observations"]))
    chosen = Compute.choose(meta.device, meta.precision, 1, num_gpus=meta.num_gpus, faster_on_gpu=on_gpu)
    return str(chosen.device.type)


def _masking(of: Facts) -> str:
    """Return the agents that support the environment's action masks."""
    agents = named_agents()
    return ", ".join(f"agent={one}" for one in fitting_agents(of["actions"]) if agents[one].TRAITS.masks)


def _bytes_needed(of: Facts) -> int:
    """Return the memory for the observations of a rollout."""
    itemsize = stored_dtype(array_dtype(of["observations"])).itemsize
    return int(of["rollout"]) * math.prod(of["observations"].shape or ()) * itemsize


# What only some agents need is imported late.


def _replays(of: Facts) -> Any:
    """Return the class of the replay buffer, None without one."""
    if of["experience"] is None:
        return None
    from labrl.memory.replay import replay_class

    return replay_class(of["memory"])


def _first_update(of: Facts) -> int:
    """Return the frame of the first update from a replay buffer."""
    from labrl.agents.parts.experience import first_update

    return first_update(of["experience"], of["env"].num_envs)


def _explores(of: Facts) -> Any:
    """Return the traits of the exploration."""
    from labrl.agents.parts.exploration import exploration_class

    return exploration_class(of["exploration"]).TRAITS


def _entropy_limits(of: Facts) -> tuple[float, float]:
    """Return the least and the greatest entropy that the policy can reach."""
    from labrl.agents.sac import soft_policy

    return soft_policy(of["actions"]).entropy_limits


FACTS: dict[str, Callable[[Facts], Any]] = {
    "gymnasium": lambda of: isinstance(of["env"], GymnasiumConfig),
    "unevaluated": _unevaluated,
    # the replay buffer
    "stored": lambda of: of["memory"] and of["memory"].config,
    "replays": _replays,
    "sequences": lambda of: of["replays"] and of["replays"].TRAITS.sequences,
    "relabels": lambda of: of["replays"] and of["replays"].TRAITS.goals,
    "kept": lambda of: of["env"].num_envs * of["stored"].steps_kept(of["n_step"]),
    "first_update": _first_update,
    "own_share": lambda of: of["collect_until"] != 0 and vars(of["offline"].config).get("share") != 1,
    "transforms": lambda of: [name for name, one in of["config"].transforms.items() if one is not None],
    # the rollout
    "rollout": lambda of: (of["horizon"] or 0) * of["env"].num_envs,
    "length": lambda of: of["sequence_length"] or 1,
    "near": lambda of: nearest_divisor(of["rollout"], of["batch_size"], of["length"]),
    "bytes_needed": _bytes_needed,
    "gigabytes_needed": lambda of: gigabytes(of["bytes_needed"]),
    "free": lambda of: math.inf if (there := memory_available()) is None else there,
    # the networks
    "torsos": _torsos,
    "recurrent": lambda of: any(traits_of(one).recurrent for one in of["torsos"].values()),
    "nested": lambda of: traits_of(of["network"].torso.config.torso).recurrent,
    "mixing": _mixing,
    "unread": lambda of: (
        several_images(of["observations"])
        and not all(traits_of(one).several_inputs for one in of["torsos"].values())
    ),
    "mixed": lambda of: len({one.target for one in of["torsos"].values()}) > 1,
    "no_heads": _heads,
    "shares_torso": lambda of: is_shared(of["network"], of["spaces"]),
    "noisy": lambda of: of["network"] is not None and vars(of["network"]).get("noisy") is not None,
    "explores": _explores,
    # the spaces
    "continuous": lambda of: isinstance(of["actions"], gym.spaces.Box),
    "bounded": lambda of: of["continuous"] and has_bounds(of["actions"]),
    "images": lambda of: sees_images(of["observations"]),
    "vector": lambda of: is_vector(of["observations"]),
    "masking": _masking,
    "entropies": lambda of: (smallest(of["target_entropy"]), largest(of["target_entropy"])),
    "entropy_limits": _entropy_limits,
    "device": _device,
}
"""The facts that are computed when a condition or a sentence names them."""


@cache
def rules() -> dict[str, list[dict[str, Any]]]:
    """Return the rules of contradictions.yaml by part, each with `when`, `key`, `why`, `fix` and `code`."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(text)
    return found


def _refuse(part: str, facts: Facts) -> None:
    """Raise InputError for the first contradiction in a part of the table."""
    for rule in rules()[part]:
        if eval(rule["when"], {}, facts):
            key, why, fix = (str(rule[name]).format_map(facts) for name in ("key", "why", "fix"))
            value = facts.value(key)
            setting = f"{key}={written(value)}" if isinstance(value, bool | int | float | str) else key
            raise InputError.about(setting, why, fix, code=rule.get("code", "contradiction"), key=key)


def check_keys(config: TrialConfig) -> None:
    """Raise InputError for the first contradiction between keys, without making an environment."""
    facts = Facts(config)
    _refuse("keys", facts)
    config.agent.check("check_config", config.env.config)
    if (own := facts["experience"]) is not None:
        num_envs = config.env.config.num_envs
        facts["replays"].check(
            facts["stored"], batch_size=own.batch_size, num_envs=num_envs, n_step=own.n_step
        )


def check_spaces(config: TrialConfig, agent: str, spaces: Spaces, masked: bool) -> None:
    """Raise InputError for the first contradiction of a trial in its environment, and for a torso that does
    not work with its observations. agent, spaces, masked: see `Facts`."""
    check_keys(config)
    facts = Facts(config, agent, spaces, masked)
    if facts["traits"].actions:
        check_actions(facts["named"], facts["kind"], spaces.action)
    _refuse("spaces", facts)
    config.agent.check("check", spaces)
    if facts["experience"] is not None:
        facts["replays"].check_goals(spaces.goals, facts["n_step"])
        if facts["relabels"]:
            spaces.goals.check()  # type: ignore[union-attr]  # the table refuses None
        if facts["offline"] is not None:
            facts["offline"].check("check")
            _check_source(facts)
    for key, torso in facts["torsos"].items():
        with torch.random.fork_rng(devices=[]):
            build_torso(torso, spaces.observation, key)


def _check_source(facts: Facts) -> None:
    """Raise InputError if the recorded transitions differ in form from those that will be collected."""
    from labrl.memory.offline import OfflineData

    source, config = facts["offline"].load(), facts["offline"].config
    if not isinstance(source, type) or not issubclass(source, OfflineData):
        return
    here = {name: one for name, one in facts["config"].transforms.items() if one is not None}
    for then in source.transforms(config):
        for name in sorted(here | then):
            if here.get(name) != then.get(name):
                past, now = (given[name].target if name in given else "null" for given in (then, here))
                why = f"the data of agent.offline was transformed by {past}, but new steps would be by {now}"
                fix = f"transforms.{name} to that of the data"
                raise InputError.about(f"transforms.{name}", why, fix, code="contradiction")
    for played_in in source.environments(config):
        try:
            theirs = describe(played_in)[1]
        except LabrlError:  # the environment cannot be made here
            continue
        if not same_actions(theirs, facts["actions"]):  # buffers store actions without their bounds
            why = f"its actions are {theirs}, but those of this environment are {facts['actions']}"
            raise InputError.about("agent.offline", why, code="contradiction")
