"""Replay memory (Lin, 1992, "Self-improving reactive agents"; Mnih et al., 2015): uniform sampling."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.config.types import PositiveInt, Probability
from labrl.errors import DamagedFileError, InputError
from labrl.memory.extent import Extent
from labrl.memory.piece import Piece
from labrl.memory.transitions import Sample, Transitions
from labrl.step import Step
from labrl.workspace import Arrays, Layout, NoRoomError, UnfitFileError, Workspace, gigabytes

__all__ = ["Replay", "ReplayConfig", "Sample", "check_capacity"]


@dataclass(kw_only=True)
class StorageConfig:
    """How many transitions are kept, and where."""

    capacity: PositiveInt
    """Latest transitions that are kept, over all environments, each with an equal share;
    >= env.num_envs * (agent.n_step + 1). Of images, frames for that many and a sixteenth more are kept:
    where episodes last but a few dozen steps, the oldest transitions leave early."""
    storage: Literal["ram", "mmap"]
    """Where the transitions lie: in memory, so that every checkpoint copies them, or in files in the run
    folder, so that a checkpoint has them written out and copies nothing."""


@dataclass(kw_only=True)
class ReplayConfig(StorageConfig):
    """Options of every memory of single transitions."""

    newest_share: Probability
    """Share of each batch, rounded up, that is the newest transitions themselves, in [0, 1]; 1 / batch_size
    is combined experience replay (Zhang & Sutton, 2017, arXiv:1712.01275)."""


def check_capacity(config: ReplayConfig, num_envs: int, n_step: int) -> None:
    """Raises InputError where the memory could not keep a whole window of every environment."""
    least = num_envs * (n_step + 1)
    if config.capacity < least:
        raise InputError(
            f"agent.memory.capacity must be at least {least} (env.num_envs {num_envs} x (agent.n_step "
            f"{n_step} + 1)), got {config.capacity} (set agent.memory.capacity={least} or more).",
            code="contradiction",
            key="agent.memory.capacity",
        )


class Replay:
    """Every transition is as likely as any other."""

    Config: type[ReplayConfig] = ReplayConfig

    def __init__(
        self,
        config: ReplayConfig,
        *,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int,
        n_step: int,
        gamma: float,
        workspace: Workspace,
        generator: np.random.Generator,
        num_masked: int = 0,
    ) -> None:
        """Spaces: of one environment; generator: of the session's streams, which save it; num_masked: actions
        that masks have a flag for, 0 without masks.

        Raises InputError for a capacity that is too small, and where there is no room for it.
        """
        self._acting_only = workspace.acting_only
        if self._acting_only:
            config = dataclasses.replace(config, capacity=num_envs * (n_step + 1), storage="ram")
        check_capacity(config, num_envs, n_step)
        self._newest_share, self._generator = config.newest_share, generator
        extent, mapped = extent_of(config, observation_space, num_envs, n_step, workspace)
        arrays = arrays_of(config, extent.layouts(action_space, num_masked), workspace, mapped)
        self._transitions = transitions_in(arrays, extent, n_step, gamma, workspace)
        self._num_bytes = arrays.num_bytes

    def __len__(self) -> int:
        """Transitions that can be sampled now: the latest, but for those whose window is not whole."""
        return len(self._transitions)

    @property
    def num_bytes(self) -> int:
        """Of memory or disk that all of it takes when full."""
        return self._num_bytes

    def add(
        self, observation: NDArray, action: NDArray, step: Step, mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Store one vector step.

        observation: what was acted on, the `step.observation` of the call before [num_envs, *obs];
        action: as it is to be sampled [num_envs, *action]; step: the learner's view of the outcome; mask:
        which actions were valid, if that is told [num_envs, actions]. Raises ValueError when `observation` is
        another one.
        """
        self._transitions.add(observation, action, step, mask)

    def extend(self, piece: Piece) -> None:
        """Store transitions that follow each other, in a memory of a single environment."""
        self._transitions.extend(piece)

    def sample(self, batch_size: int, frame: int) -> Sample:
        """A batch drawn with replacement at `frame` of the run; it does not change with the memory.

        Raises ValueError when there is nothing to sample.
        """
        if not len(self):
            raise ValueError("the replay memory holds no transition that can be sampled yet")
        # Rounded, because 0.1 * 30 is a little more than 3.
        wanted = math.ceil(round(self._newest_share * batch_size, 6))
        if wanted:
            newest_env, newest_step = self._transitions.newest(wanted)
            env, step = self._draw(batch_size - len(newest_env))
            env, step = np.concatenate([newest_env, env]), np.concatenate([newest_step, step])
        else:
            env, step = self._draw(batch_size)
        return self._transitions.gather(env, step, self._weights(env, step, frame))

    def update_priorities(self, index: NDArray[np.int64], error: NDArray) -> None:
        """Nothing to do: all transitions are alike. [batch] each"""

    def state_dict(self) -> dict[str, Any]:
        """All but the generator."""
        return {"transitions": self._transitions.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state. Raises InputError when it does not fit, or files are gone."""
        if not self._acting_only:
            self._restore(state)

    def close(self) -> None:
        """Write out what is in files."""
        self._transitions.close()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._transitions.load_state_dict(state["transitions"])

    def _draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Environment and step of `count` transitions."""
        return self._transitions.at(self._generator.integers(0, len(self), count))

    def _weights(self, env: NDArray[np.int64], step: NDArray[np.int64], frame: int) -> NDArray[np.float32]:
        """Importance weights. [batch]"""
        return np.ones(len(env), np.float32)


def extent_of(
    config: StorageConfig,
    space: gym.Space[Any],
    num_envs: int,
    n_step: int,
    workspace: Workspace,
    together: int = 0,
) -> tuple[Extent, bool]:
    """How much is kept of each environment, and whether it lies in files.

    together: steps that are sampled as one, and so have to be kept at once.
    """
    mapped = config.storage == "mmap" and workspace.folder is not None
    # Only what lies in files goes on being written to while a checkpoint counts on it.
    kept = workspace.frames_kept if mapped else 0
    return Extent(space, num_envs, config.capacity, n_step, kept, together), mapped


def arrays_of(
    config: StorageConfig, layouts: dict[str, Layout], workspace: Workspace, mapped: bool
) -> Arrays:
    """Arrays for all that is kept.

    Raises InputError if there is no room, DamagedFileError for files that do not fit.
    """
    try:
        return workspace.in_files(layouts) if mapped else workspace.in_memory(layouts)
    except UnfitFileError as unfit:
        raise DamagedFileError(
            f"agent.memory: {unfit}: the file is damaged or was written with another configuration. Set "
            "agent.memory.capacity, env.num_envs and agent.n_step as they were, or remove "
            f"{workspace.folder} to start anew.",
            key=str(unfit.path),
        ) from None
    except NoRoomError as full:
        place = f"on the disk of {workspace.folder}" if mapped else "of memory"
        each = f" for each of {workspace.sharers} sessions" if not mapped and workspace.sharers > 1 else ""
        other = "ram" if mapped else "mmap, which needs the room on the disk"
        fits = _two_digits(config.capacity * full.available // full.needed)
        raise InputError(
            f"agent.memory.capacity={config.capacity} needs {gigabytes(full.needed)} GB {place}, "
            f"{gigabytes(full.available)} GB are available{each} (set agent.memory.capacity={fits}, or "
            f"agent.memory.storage={other}).",
            code="resources",
            key="agent.memory.capacity",
        ) from None


def transitions_in(
    arrays: Arrays, extent: Extent, n_step: int, gamma: float, workspace: Workspace
) -> Transitions:
    """What `arrays` hold, or are to hold; the workspace watches over the room of those in files."""
    transitions = Transitions(arrays, extent, n_step, gamma)
    if arrays.folder is not None:
        workspace.rooms.append(transitions)
    return transitions


def _two_digits(number: int) -> int:
    """`number` rounded down to what one would type."""
    unit = 10 ** max(len(str(number)) - 2, 0)
    return number // unit * unit
