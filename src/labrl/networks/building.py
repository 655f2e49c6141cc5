"""How the networks of an agent are built, and what is asked of a user's own torso before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.config.component import Component, accepted_settings
from labrl.errors import Code, InputError, LabrlError
from labrl.networks.layers import identity
from labrl.networks.preprocessing import SideBySide, vector_space
from labrl.networks.spaces import Spaces, sees_images, several_images
from labrl.observations import example

TORSO = "agent.network.torso"
UNSEEDED = "which draws from PyTorch's global generator, so that the run would not be reproducible"
BY_THE_MINIBATCH = (
    "normalizes by the minibatch, and this agent would act with the statistics of its few environments"
)


@dataclass(frozen=True)
class TorsoTraits:
    """Capabilities of a torso class, declared in an attribute `TRAITS` where they differ from these."""

    several_inputs: bool = False
    """Whether it takes a Dict space with images; its `layout` makes one array of the inputs."""
    recurrent: bool = False
    """Whether it has a `state_size` and is called as `torso(observation, state, lengths)`."""
    batch_statistics: bool = False
    """Whether, in training, what it makes of one sample depends on the others of the minibatch."""


def traits_of(torso: Component) -> TorsoTraits:
    """Return what the class of a torso declares."""
    return getattr(torso.load(), "TRAITS", TorsoTraits())


def refusal(what: str, code: Code = "unsupported") -> InputError:
    """Return the error for a torso that cannot be used."""
    return InputError(f"{TORSO}: {what}", code=code, key=TORSO)


def check_torso(
    torso: Component, spaces: Spaces, recurrent: bool | None = False, whole_minibatches: bool = False
) -> bool:
    """Raise InputError for a torso that cannot read the observations, or that the agent cannot use.

    recurrent: whether the torso must carry a state from step to step (True), must not (False), or may (None);
    whole_minibatches: whether the agent learns from each as a whole, and acts by what its network keeps of
    them. Return whether the torso is recurrent.
    """
    for part in () if whole_minibatches else _components(torso):
        if traits_of(part).batch_statistics:
            raise refusal(
                f"{part.target} {BY_THE_MINIBATCH}. Set agent=crossq, or agent/network=wide or another one "
                "(agent.network.torso.mlp.layer_norm=true normalizes each sample by itself)."
            )
    is_recurrent = traits_of(torso).recurrent
    if is_recurrent and recurrent is False:
        raise refusal(
            f"{torso.target} is recurrent, and this agent carries no state between steps. Set "
            "agent=recurrent_ppo, recurrent_a2c or recurrent_dqn, or another agent/network."
        )
    if recurrent and not is_recurrent:
        raise refusal(
            f"{torso.target} is not recurrent, but a recurrent agent needs one that is: set "
            "agent/network=gru or lstm, or an agent that is not recurrent (agent=ppo, a2c, dqn)."
        )
    check_reads(torso, spaces.observation)
    return is_recurrent


def check_reads(torso: Component, space: gym.Space[Any]) -> None:
    """Raise InputError for observations that the torso cannot read."""
    if several_images(space) and not traits_of(torso).several_inputs:
        raise refusal(
            f"{torso.target} reads one array, this environment's observations are {space}. Use "
            "agent/network=auto or agent/network=inputs."
        )
    taken = accepted_settings(torso.load())
    if taken is not None and "observation_space" not in taken:
        raise refusal(
            f"{torso.target} cannot be built for an environment, because its __init__ takes no argument "
            "observation_space. Derive a class from it whose __init__ does, and name that one.",
            "target",
        )
    torso.check("check", vector_space(space))


def build_torso(torso: Component, space: gym.Space[Any]) -> Any:
    """Return the torso, a module, for observations of `space`. Raise InputError where it is none.

    It has `layout`, from observations as they come, [batch, *obs], to the one array that it takes;
    `num_features`; `state_size`, 0 where it is not recurrent; and `changes`, the names of buffers that its
    forward pass writes to.
    """
    check_reads(torso, space)
    layout = SideBySide(space) if isinstance(space, gym.spaces.Dict) and not sees_images(space) else None
    try:
        built: Any = torso.build(observation_space=space if layout is None else layout.space)
        weights = list(built.parameters()) if isinstance(built, nn.Module) else []
    except LabrlError:
        raise
    except Exception as error:  # whatever a user's own code may raise
        raise refusal(f"{torso.target} cannot be made: {type(error).__name__}: {error}", "target") from error
    if not isinstance(built, nn.Module):
        raise refusal(f"{torso.target} is not a torch.nn.Module; derive it from that class.", "target")
    for weight in weights:
        if weight.dtype != torch.float32:
            raise refusal(
                f"{torso.target} has weights in {weight.dtype}; labrl trains weights in torch.float32, and "
                "meta.precision=bf16 computes in bfloat16 with them.",
                "target",
            )
    made: Any = built
    made.layout = layout or getattr(built, "layout", identity)
    made.state_size = getattr(built, "state_size", 0)
    made.num_features, made.changes = _examine(made, made.layout(example(space)))
    return made


def _examine(torso: nn.Module, seen: NDArray) -> tuple[int, tuple[str, ...]]:
    """Return how many features a torso makes, and the buffers that a forward pass changes.

    Its buffers and torch's generator are afterwards as they were.
    """
    one = torch.as_tensor(seen.astype(np.float32) if seen.dtype == np.float64 else seen)  # as agents do
    several = torch.cat([one, one])
    torso.eval()
    with torch.no_grad():
        size = _count_features(torso, one)
    torso.train()
    generator = torch.get_rng_state()
    before = {name: buffer.clone() for name, buffer in torso.named_buffers()}
    _features(torso, several)
    draws = not torch.equal(generator, torch.get_rng_state())
    torch.set_rng_state(generator)
    now = dict(torso.named_buffers())
    changes = tuple(name for name in now if not torch.equal(now[name], before.get(name, several)))
    with torch.no_grad():
        for name, buffer in now.items():
            buffer.copy_(before.get(name, buffer))
        _count_features(torso.eval(), several)
    torso.train()
    if draws:
        raise refusal(
            f"the forward pass of {type(torso).__name__} draws random numbers, {UNSEEDED}. Leave them out."
        )
    return size, changes


def _count_features(torso: nn.Module, batch: Tensor) -> int:
    version = batch._version
    features = _features(torso, batch)
    if batch._version != version:
        raise refusal(
            f"{type(torso).__name__} changes the observations that it is given, which are stored to be "
            "learned from. Clone them first in its forward().",
            "target",
        )
    expected = f"{type(torso).__name__} must turn observations into features [batch, features]"
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != len(batch):
        given = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise refusal(f"{expected}, it turned {list(batch.shape)} into {given}.", "target")
    if features.dtype not in (torch.float32, torch.bfloat16):
        raise refusal(f"{expected} in float32, it returned {features.dtype}.", "target")
    return int(features.shape[1])


def _features(torso: Any, batch: Tensor) -> Any:
    try:
        return torso(batch)[0] if torso.state_size else torso(batch)
    except Exception as error:  # whatever a user's own code may raise
        raise refusal(
            f"{type(torso).__name__} must turn observations into features [batch, features], and fails on "
            f"{list(batch.shape)}: {type(error).__name__}: {error}",
            "target",
        ) from error


def is_recurrent(settings: Any) -> bool:
    """Return whether a torso in some settings carries a state from step to step."""
    found = (traits_of(part) for part in _components(settings))
    return any(isinstance(traits, TorsoTraits) and traits.recurrent for traits in found)


def _components(settings: Any) -> Iterator[Component]:
    """Yield all components in some settings, and those in theirs."""
    if isinstance(settings, Component):
        yield settings
        yield from _components(settings.config)
    elif is_dataclass(settings):
        for each in fields(settings):
            yield from _components(getattr(settings, each.name))
    elif isinstance(settings, dict):
        for inner in settings.values():
            yield from _components(inner)
