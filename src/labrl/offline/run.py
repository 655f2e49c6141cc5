"""The replay buffers of other runs, from their newest checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.errors import InputError
from labrl.memory.offline import AT_ONCE, ChunkReplay, OfflineConfig, OfflineData, Requirements
from labrl.memory.replay import ReplayConfig
from labrl.memory.transition_ring import row_dtype
from labrl.memory.workspace import Layout, Workspace
from labrl.run.run import MARKER, Run
from labrl.run.session import RunSession
from labrl.run.trust import check_recorded

FOLDER = "agent.offline.folder"
"""Key that sets the run folders."""


@dataclass(kw_only=True)
class OfflineRunConfig(OfflineConfig):
    """Options for learning from the data of other runs."""

    folder: str | Annotated[list[str], Field(min_length=1)]
    """Run folder of an agent with a replay buffer, or a list of run folders, which are read one after
    another. All sessions of each run are read."""

    @property
    def folders(self) -> list[Path]:
        """Paths of the run folders."""
        given = [self.folder] if isinstance(self.folder, str) else self.folder
        return [Path(folder).expanduser() for folder in given]


class OfflineRun(OfflineData):
    """Transitions as other runs stored them, with the rewards that the learners of these runs received."""

    Config = OfflineRunConfig

    def __init__(
        self, config: OfflineRunConfig, *, wanted: Requirements, generator: np.random.Generator
    ) -> None:
        """wanted: requirements of the agent. Raises InputError if a run does not meet them."""
        self.check(config)
        memories = [
            (f"{path}, session {index}", memory)
            for path in config.folders
            for index, memory in _memories(Run.open(path), wanted).items()
        ]
        total = sum(int((memory.steps - memory.oldest).sum()) for _, memory in memories)
        chunks = (
            chunk._replace(origin=f"{place}, {chunk.origin}")
            for place, memory in memories
            for chunk in memory.chunks(AT_ONCE)
        )
        super().__init__(config, chunks, total, wanted, generator)

    @classmethod
    def check(cls, config: OfflineRunConfig) -> None:
        """Raise InputError if a folder is not a run folder, or if its transitions are not usable."""
        for path in config.folders:
            _check(path)

    @classmethod
    def environments(cls, config: OfflineRunConfig) -> list[Component]:
        """Return the environments of the runs."""
        plain = [_recorded(path) for path in config.folders]
        return [dataclass_of(Component, one["env"], "env") for one in plain]

    @classmethod
    def transforms(cls, config: OfflineRunConfig) -> list[dict[str, Component]]:
        """Return the transforms of observations and rewards of each run, by name."""
        plain = [_recorded(path).get("transforms") or {} for path in config.folders]
        return [
            {
                name: dataclass_of(Component, part, f"transforms.{name}")
                for name, part in one.items()
                if part is not None
            }
            for one in plain
        ]


def _check(path: Path) -> None:
    """Raise InputError if a folder is not a run folder, or if its transitions are not usable."""
    given = f"{FOLDER}={path}"
    Run(path).check_format()
    if not (path / MARKER).exists():
        raise InputError.not_found(
            given, f"it is not a run folder, because it has no {MARKER}", "Choose the folder of a run"
        )
    run = Run.open(path)
    plain = run.read_config()
    run.check_buffers([session.index for session in run.sessions], given)
    if "memory" not in plain["agent"]:
        raise InputError.unsupported(
            given,
            "the agent of this run has no replay buffer",
            "Choose a run of an agent that has one, such as DQN or SAC",
        )
    seen = [
        name
        for name, part in (plain.get("transforms") or {}).items()
        if part is not None and "Normalize" in str(part)
    ]
    if seen:
        raise InputError.unsupported(
            given,
            f"the statistics of transforms.{seen[0]} changed during this run, so its stored transitions "
            "cannot be used",
            "Choose a run without this transform",
        )


def _recorded(path: Path) -> dict[str, Any]:
    """Return the configuration of a run. Raises InputError if a run of someone else names code that is not
    part of labrl."""
    run = Run.open(path)
    plain = run.read_config()
    check_recorded(run, plain)
    return plain


def _memories(run: Run, wanted: Requirements) -> dict[int, ChunkReplay]:
    """Return the replay buffers of a run's saved sessions, by the session's index. Raises InputError if no
    session has saved transitions, or if they do not fit the environment and the agent."""
    found = {}
    for folder in run.sessions:
        checkpoint = folder.store().latest()
        if checkpoint is None:
            continue
        try:
            state = checkpoint.state["agent"]["experience"]["memory"]["transitions"]
            if int(state["steps"]):
                found[folder.index] = _saved(state, folder, wanted)
        except (KeyError, ValueError) as error:
            raise InputError.contradiction(
                f"{FOLDER}={run.path}",
                "the environment",
                f"its transitions do not fit this environment and agent (observations {wanted.observation}, "
                f"actions {wanted.stored}): {error}",
                "Choose a run in the same environment",
            ) from None
    if not found:
        raise InputError.not_found(
            f"{FOLDER}={run.path}",
            "the run has no checkpoint with transitions yet",
            "Wait for its first checkpoint, or choose another run",
        )
    return found


def _saved(state: Any, folder: RunSession, wanted: Requirements) -> ChunkReplay:
    """Return a saved session's replay buffer. Raises ValueError if the agent cannot use its transitions."""
    num_envs, slots, frames = (int(number) for number in state["extent"])
    stored, num_masked = wanted.stored, 0
    if isinstance(stored, gym.spaces.Discrete) and state["kind"] != repr(row_dtype(stored, 0).descr):
        num_masked = int(stored.n)
    if state["kind"] != repr(row_dtype(stored, num_masked).descr):
        raise ValueError(f"each saved transition consists of {state['kind']}")
    saved = ChunkReplay(
        ReplayConfig(
            capacity=num_envs * slots, storage="mmap" if state["content"] is None else "ram", newest_share=0
        ),
        observation_space=wanted.observation,
        action_space=stored,
        num_envs=num_envs,
        n_step=1,
        gamma=1.0,
        workspace=_SavedArrays(folder.path / "replay", frames=frames, content=state["content"]),
        generator=np.random.default_rng(0),
        num_masked=num_masked,
    )
    saved.load_state_dict({"transitions": state})
    if isinstance(stored, gym.spaces.Discrete):
        action = saved.rows["action"]  # 0 in slots that are still empty
        if not 0 <= action.min() <= action.max() < stored.n:
            raise ValueError(f"its actions range from {action.min()} to {action.max()}")
    return saved


@dataclass(frozen=True, kw_only=True)
class _SavedArrays(Workspace):
    """The arrays of a saved replay buffer at their saved length: read-only arrays in its files, or new arrays
    in memory."""

    frames: int
    """Number of slots for observations of each environment."""
    content: Any
    """Arrays from the checkpoint; None if the arrays are in files."""

    def arrays(self, layouts: Mapping[str, Layout], capacity: int, in_files: bool) -> dict[str, NDArray]:
        """Return the arrays. Raises ValueError if observations have a different dtype or shape."""
        frames = layouts["frames"]
        shape = (frames.shape[0], self.frames, *frames.shape[2:])
        if in_files:
            assert self.folder is not None
            arrays = {name: np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in layouts}
            held = arrays["frames"]
        else:
            arrays = {name: np.zeros(layout.shape, layout.dtype) for name, layout in layouts.items()}
            arrays["frames"] = np.zeros(shape, frames.dtype)
            held = self.content["frames"]
        if any(one.dtype != frames.dtype or one.shape[1:] != shape[2:] for one in held):
            raise ValueError(f"its observations are {held[0].dtype} of shape {held[0].shape[1:]}")
        return arrays
