"""Initialize an agent with the weights of another run (`start_from`): compare them by name and shape, then
load them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from labrl.agents.agent import Agent
from labrl.agents.transforms import Transforms
from labrl.errors import DamagedFileError
from labrl.run.checkpoint import CheckpointStore
from labrl.run.session import RunSession

OBSERVATION = "observation"
"""Name of the transform whose statistics are loaded with the weights, and of the part that stands for
them."""

ABSENT = "-"
"""Placeholder for the shape of a weight that an agent does not have."""


class Learned(NamedTuple):
    """Weights and statistics that an agent has learned, without target networks. Tensors are not copied."""

    content: dict[str, Any]
    """Weights and buffers by name, `<network>.<parameter>`, and the statistics of `observation`, if any."""
    shapes: dict[str, str]
    """Shape of each weight, and under `observation` the transform's class and the shapes of its
    statistics."""
    acting: frozenset[str]
    """Names of the networks that choose actions, and `observation`."""

    @classmethod
    def by(cls, agent: Agent, transforms: Transforms) -> Learned:
        """Return what an agent has learned, including the statistics of its observation transform."""
        followers = agent.followers()
        content: dict[str, Any] = {
            f"{network}.{name}": tensor
            for network, module in agent.modules().items()
            if network not in followers
            for name, tensor in module.state_dict().items()
        }
        shapes = {name: _shapes(tensor) for name, tensor in content.items()}
        target, statistics = transforms.part(OBSERVATION)
        if target is not None:
            content[OBSERVATION] = statistics
            shapes[OBSERVATION] = f"{target} {_shapes(statistics)}".rstrip()
        return cls(content, shapes, frozenset([*agent.acting_modules(), OBSERVATION]))


class Fit(NamedTuple):
    """Comparison of an agent with what another run has learned. Names have the form that they have in
    `Learned`."""

    taken: list[str]
    """Names that are loaded."""
    misfits: list[tuple[str, str, str]]
    """Names that were requested and cannot be loaded, with their shapes in the agent and in the other run."""
    kept: list[str]
    """The agent's names that were not requested and keep their new initialization."""
    unused: list[str]
    """Requested names that only the other run has, and that its agent did not use for acting."""


def fit(here: Learned, there: Learned, parts: Sequence[str] | None) -> Fit:
    """Compare an agent with what another run has learned.

    parts: the requested parts of names, which `is_in` matches; None requests all names.
    """
    found = Fit([], [], [], [])
    for name in {**here.shapes, **there.shapes}:
        own, other = here.shapes.get(name, ABSENT), there.shapes.get(name, ABSENT)
        if not is_in(name, parts):
            found.kept.extend([name] if own != ABSENT else [])
        elif own == other:
            found.taken.append(name)
        elif own == ABSENT and name.partition(".")[0] not in there.acting:
            found.unused.append(name)
        else:
            found.misfits.append((name, own, other))
    return found


def load_learned(agent: Agent, transforms: Transforms, state: Mapping[str, Any]) -> None:
    """Load weights and statistics into an agent, and copy its networks to their target networks.

    state: `weights` by name, and `statistics` of the observations ({}: no statistics are loaded).
    """
    modules, taken = agent.modules(), dict(state["weights"])
    for network, module in modules.items():
        own = module.state_dict()
        module.load_state_dict({name: taken.get(f"{network}.{name}", own[name]) for name in own})
    for follower, followed in agent.followers().items():
        modules[follower].load_state_dict(modules[followed].state_dict())
    if state["statistics"]:
        transforms.restore_part(OBSERVATION, state["statistics"])


def read_beginning(folder: RunSession) -> Mapping[str, Any]:
    """Return the weights that a session starts from, in the form that `load_learned` takes.

    Raises DamagedFileError.
    """
    found = CheckpointStore(folder.start, keep_last=1).latest()
    if found is None:
        raise DamagedFileError(
            f"{folder.start} is missing or damaged. It contains the weights of another run, from which "
            f"session {folder.index} starts (start_from.run). Restore it from a copy, or start a new run.",
            key=str(folder.start),
        )
    state: Mapping[str, Any] = found.state
    return state


def parts_of(names: Sequence[str]) -> list[str]:
    """List the parts (networks and their submodules) that occur in the given names of weights."""
    found: dict[str, None] = {}
    for name in names:
        network, *inner = name.split(".")
        found[network] = None
        for segment in inner[:1]:
            found[segment] = None
            if "_" in segment:
                found[segment.rpartition("_")[2]] = None
    return list({**found, OBSERVATION: None})


def is_in(name: str, parts: Sequence[str] | None) -> bool:
    """Return whether the weight `name` belongs to one of `parts`; None stands for all parts.

    `torso` matches every name with a segment `torso` or one that ends with `_torso`, such as `policy_torso`;
    `q_network.advantage` matches names with these two segments in a row.
    """
    if parts is None:
        return True
    patterns = (r"\.".join(rf"([^.]*_)?{re.escape(one)}" for one in part.split(".")) for part in parts)
    return any(re.search(rf"(^|\.){pattern}(\.|$)", name) for pattern in patterns)


def _shapes(learned: Any) -> str:
    """Return the shape of an array as text, or for nested mappings the name and shape of each array."""
    if isinstance(learned, Mapping):
        return ", ".join(f"{name} {_shapes(inner)}" for name, inner in learned.items())
    return " x ".join(map(str, np.shape(learned))) or "scalar"
