"""The replay buffer of another run, as saved in its newest checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from labrl.config.component import Component
from labrl.errors import InputError
from labrl.memory.extent import Extent
from labrl.memory.offline import OfflineConfig, OfflineData, Wanted
from labrl.memory.piece import Piece
from labrl.memory.transitions import Transitions
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.provenance import read_config
from labrl.storage.run_folder import MARKER, RunFolder, SessionFolder
from labrl.workspace import Arrays

FOLDER = "agent.offline.folder"
"""The key that names the run."""
_PIECE = 4096
"""Transitions that are read at once."""


@dataclass(kw_only=True)
class OfflineRunConfig(OfflineConfig):
    """The run that is learned from."""

    folder: str
    """A run folder, of an agent with a replay memory; all its sessions count."""


class OfflineRun(OfflineData):
    """Transitions as they were stored: rewards as that run's learner saw them."""

    Config = OfflineRunConfig

    def __init__(self, config: OfflineRunConfig, *, wanted: Wanted, generator: np.random.Generator) -> None:
        """wanted: what the agent needs. Raises InputError if the run cannot give it."""
        self.check(config)
        memories = _memories(RunFolder.open(Path(config.folder).expanduser()), wanted)
        total = sum(int((memory.steps - memory.oldest).sum()) for memory in memories)
        pieces = (piece for memory in memories for piece in _pieces(memory))
        super().__init__(config, pieces, total, wanted, generator)

    @classmethod
    def check(cls, config: OfflineRunConfig) -> None:
        """Raises InputError if the folder is not a run, or a run without usable transitions."""
        path = Path(config.folder).expanduser()
        given = f"agent.offline.folder={config.folder}"
        if not (path / MARKER).exists():
            raise InputError(
                f"{given} is not a run folder: it has no {MARKER}. Give the folder of a run.",
                code="not-found",
                key=FOLDER,
            )
        plain = read_config(RunFolder.open(path))
        if "memory" not in plain["agent"]:
            raise InputError(
                f"{given}: the agent of this run has no replay buffer. Give a run of an agent that has one, "
                "such as DQN or SAC.",
                code="unsupported",
                key=FOLDER,
            )
        seen = [
            name
            for name, part in (plain.get("transforms") or {}).items()
            if part is not None and "Normalize" in str(part)
        ]
        if seen:
            raise InputError(
                f"{given}: the statistics of transforms.{seen[0]} changed during this run, so that its "
                "stored transitions cannot be used. Give a run without this transform.",
                code="unsupported",
                key=FOLDER,
            )

    @classmethod
    def environment(cls, config: OfflineRunConfig) -> Component:
        """What it was played in."""
        return Component.parse(read_config(RunFolder.open(Path(config.folder).expanduser()))["env"], "env")

    @classmethod
    def transforms(cls, config: OfflineRunConfig) -> dict[str, Component]:
        """What observations and rewards have gone through, by name."""
        plain = read_config(RunFolder.open(Path(config.folder).expanduser())).get("transforms") or {}
        return {
            name: Component.parse(part, f"transforms.{name}")
            for name, part in plain.items()
            if part is not None
        }


def _memories(run: RunFolder, wanted: Wanted) -> list[Transitions]:
    """The buffers of all sessions with a checkpoint. Raises InputError if none has one, or one is unfit."""
    found = []
    for folder in run.sessions():
        checkpoint = CheckpointStore(folder.checkpoints, 1).latest()
        if checkpoint is None:
            continue
        try:
            state = checkpoint.state["agent"]["experience"]["memory"]["transitions"]
            if int(state["steps"]):
                found.append(_transitions(state, folder, wanted))
        except (KeyError, ValueError) as error:
            raise InputError(
                f"agent.offline.folder={run.path}: its transitions do not fit this environment and agent "
                f"(observations {wanted.observation}, actions {wanted.stored}): {error}. Give a run in the "
                "same environment.",
                code="contradiction",
                key=FOLDER,
            ) from None
    if not found:
        raise InputError(
            f"agent.offline.folder={run.path}: the run has no checkpoint with transitions yet. Wait for its "
            "first checkpoint, or give another run.",
            code="not-found",
            key=FOLDER,
        )
    return found


def _transitions(state: Any, folder: SessionFolder, wanted: Wanted) -> Transitions:
    """The transitions of a saved session. Raises ValueError if they are of another kind."""
    num_envs, slots, frames = (int(number) for number in state["extent"])
    extent = Extent(wanted.observation, num_envs, num_envs * slots, 1, 0)
    extent.frames = frames
    content = state["content"]
    layouts = extent.layouts(wanted.stored, _num_masked(state, folder, extent, wanted.stored))
    if content is None:
        arrays = {name: np.load(folder.path / "replay" / f"{name}.npy", mmap_mode="r") for name in layouts}
        kinds = [arrays["transitions"].dtype, arrays["frames"].dtype]
        if kinds != [layouts["transitions"].dtype, layouts["frames"].dtype]:
            raise ValueError(f"it holds {kinds[1]}")
        place = folder.path
    else:
        place = None
        arrays = {name: np.zeros(layout.shape, layout.dtype) for name, layout in layouts.items()}
        held = np.asarray(content["frames"])
        if held.dtype != layouts["frames"].dtype or held.shape[2:] != layouts["frames"].shape[2:]:
            raise ValueError(f"it holds {held.dtype} of {held.shape[2:]}")
    transitions = Transitions(Arrays(arrays, place), extent, 1, 1.0)
    if state.get("kind", transitions.kind) != transitions.kind:
        raise ValueError(f"of each transition it holds {state['kind']}")
    transitions.load_state_dict({**state, "extent": [num_envs, slots, frames]})
    if isinstance(wanted.stored, gym.spaces.Discrete):
        action = arrays["transitions"]["action"]  # 0 where there is none yet
        if not 0 <= action.min() <= action.max() < wanted.stored.n:
            raise ValueError(f"it holds actions from {action.min()} to {action.max()}")
    return transitions


def _num_masked(state: Any, folder: SessionFolder, extent: Extent, stored: gym.Space[Any]) -> int:
    """Actions that its masks have a flag for, 0 where it has none: known by the bytes of a transition."""
    if not isinstance(stored, gym.spaces.Discrete):
        return 0
    if state["content"] is None:
        size = np.load(folder.path / "replay" / "transitions.npy", mmap_mode="r").dtype.itemsize
    else:
        size = state["content"]["rows"].shape[1] // min(int(state["steps"]), extent.slots)
    num_actions = int(stored.n)
    without, masked = (
        extent.layouts(stored, flags)["transitions"].dtype.itemsize for flags in (0, num_actions)
    )
    return num_actions if size == masked != without else 0


def _pieces(transitions: Transitions) -> Iterator[Piece]:
    for env in range(transitions.num_envs):
        first, after = int(transitions.oldest[env]), transitions.steps
        for begin in range(first, after, _PIECE):
            steps = np.arange(begin, min(begin + _PIECE, after))
            whose = np.full(len(steps), env)
            sample = transitions.gather(whose, steps, np.ones(len(steps), np.float32))
            cut = transitions.cut(whose, steps)
            if steps[-1] == after - 1:
                cut[-1] = True
            yield Piece(
                sample.observation,
                sample.action,
                sample.reward,
                sample.next_observation,
                sample.discount == 0,
                cut,
                sample.mask,
                sample.next_mask,
            )
