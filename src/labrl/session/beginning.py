"""Initialize an agent with the weights of another run: compare them by name and shape, then load them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from labrl.agents.agent import Agent
from labrl.agents.transforms import Transforms
from labrl.errors import DamagedFileError
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.run_folder import SessionFolder

OBSERVATION = "observation"
"""Name of the part, and of the transform, whose statistics are loaded with the weights."""


class Misfit(NamedTuple):
    """A requested weight or transform that cannot be loaded."""

    name: str
    """Name of a weight, `<network>.<parameter>`, or `observation`."""
    here: str
    """Shape or class in the agent."""
    there: str
    """Shape or class in the other run."""


@dataclass
class Fit:
    """Comparison of an agent with the weights of another run."""

    taken: list[str] = field(default_factory=list)
    """Names of the requested weights and buffers that can be loaded."""
    misfits: list[Misfit] = field(default_factory=list)
    """Requested weights that cannot be loaded."""
    kept: list[str] = field(default_factory=list)
    """Names of the agent's weights that were not requested and keep their new initialization."""
    unused: list[str] = field(default_factory=list)
    """Names of requested weights of the other run that this agent lacks and the other did not act with."""


class Learned(NamedTuple):
    """Weights of a network, with the statistics of its observations."""

    weights: dict[str, Tensor]
    """Weights and buffers by name, `<network>.<parameter>`, without target networks."""
    acting: frozenset[str]
    """Names of the networks that choose actions."""
    transform: str | None
    """Class of the transform of observations; None if there is none."""
    statistics: dict[str, Any]
    """State of that transform; empty if it has none."""


def learned(agent: Agent, transforms: Transforms) -> Learned:
    """Return what an agent has learned. The tensors are not copied."""
    followers = agent.followers()
    weights = {
        f"{network}.{name}": tensor
        for network, module in agent.modules().items()
        if network not in followers
        for name, tensor in module.state_dict().items()
    }
    target, state = transforms.part(OBSERVATION)
    return Learned(weights, frozenset(agent.acting_modules()), target, state)


def fit(here: Learned, there: Learned, parts: Sequence[str] | None) -> Fit:
    """Compare an agent's weights with those that another run has learned.

    parts: the requested parts, each a part of a name; None requests all.
    """
    found = Fit()
    for name, tensor in here.weights.items():
        other = there.weights.get(name)
        if not is_in(name, parts):
            found.kept.append(name)
        elif other is None or other.shape != tensor.shape:
            found.misfits.append(Misfit(name, _shape(tensor), "-" if other is None else _shape(other)))
        else:
            found.taken.append(name)
    for name, tensor in there.weights.items():
        if name in here.weights or not is_in(name, parts):
            continue
        if name.partition(".")[0] in there.acting:
            found.misfits.append(Misfit(name, "-", _shape(tensor)))
        else:
            found.unused.append(name)
    if is_in(OBSERVATION, parts):
        same = here.transform == there.transform and _like(here.statistics, there.statistics)
        if not same:
            found.misfits.append(Misfit(OBSERVATION, here.transform or "-", there.transform or "-"))
        elif here.statistics:
            found.taken.append(OBSERVATION)
    elif here.statistics:
        found.kept.append(OBSERVATION)
    return found


def load_learned(agent: Agent, transforms: Transforms, state: Mapping[str, Any]) -> None:
    """Load weights and statistics into an agent, and copy its networks to their target networks.

    state: `weights` by name, and `statistics` of the observations, {} if none are loaded.
    """
    modules, taken = agent.modules(), dict(state["weights"])
    for network, module in modules.items():
        own = module.state_dict()
        module.load_state_dict({name: taken.get(f"{network}.{name}", own[name]) for name in own})
    for follower, followed in agent.followers().items():
        modules[follower].load_state_dict(modules[followed].state_dict())
    if state["statistics"]:
        transforms.restore_part(OBSERVATION, state["statistics"])


def read_beginning(folder: SessionFolder) -> Mapping[str, Any]:
    """Return the weights that a session starts from, in the form that `load_learned` takes.

    Raises DamagedFileError.
    """
    found = CheckpointStore(folder.start, keep_last=1).latest()
    if found is None:
        raise DamagedFileError(
            f"{folder.start} is missing or damaged. It contains the weights of another run that session "
            f"{folder.index} starts from (start_from.run). Restore it from a copy, or start a new run.",
            key=str(folder.start),
        )
    state: Mapping[str, Any] = found.state
    return state


def parts_of(names: Sequence[str]) -> list[str]:
    """List the parts that occur in these names of weights: networks and their submodules."""
    found: dict[str, None] = {}
    for name in names:
        network, *inner = name.split(".")
        found[network] = None
        for segment in inner[:1]:
            found[segment] = None
            if "_" in segment:
                found[segment.rpartition("_")[2]] = None
    return [*found, OBSERVATION]


def is_in(name: str, parts: Sequence[str] | None) -> bool:
    """Return whether a weight belongs to one of `parts`; None stands for all.

    `torso` matches every name with a segment `torso` or one that ends with `_torso`, such as `policy_torso`;
    `q_network.advantage` matches names with these two segments in a row.
    """
    return parts is None or any(_has(name.split("."), part.split(".")) for part in parts)


def _has(segments: list[str], wanted: list[str]) -> bool:
    starts = range(len(segments) - len(wanted) + 1)
    return any(all(map(_matches, segments[start:], wanted)) for start in starts)


def _matches(segment: str, wanted: str) -> bool:
    return segment == wanted or segment.endswith(f"_{wanted}")


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "1"


def _like(here: Any, there: Any) -> bool:
    """Return whether two states of a transform have the same keys and shapes."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        return here.keys() == there.keys() and all(_like(here[key], there[key]) for key in here)
    return np.shape(here) == np.shape(there)
