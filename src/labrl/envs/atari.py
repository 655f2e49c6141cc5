"""Atari games in the ALE's C++ vector environment."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ale_py
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from labrl.config.schema import EnvironmentConfig
from labrl.envs.emulators import BatchedEmulators, SeparateEmulators, separate_is_faster
from labrl.envs.games import check_game
from labrl.envs.protocol import Backend, Transition
from labrl.types import NonNegativeInt, PositiveInt, Probability

# Otherwise the ALE prints a line to standard error for every emulator.
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@dataclass(kw_only=True)
class AtariConfig(EnvironmentConfig):
    """A game of the Arcade Learning Environment. The defaults are the v5 protocol
    (Machado et al., 2018, arXiv:1709.06009) with the frame skip and image size of Mnih et al., 2015."""

    game: str
    """Snake-case id of the game, such as ms_pacman; `labrl-envs` lists all games."""
    frame_skip: PositiveInt
    """Number of emulator frames for which each action is repeated, >= 1."""
    frame_stack: PositiveInt
    """Number of latest images in one observation, >= 1. Images from before the reset are zeros."""
    image_size: PositiveInt
    """Height and width of an image in pixels, >= 1."""
    grayscale: bool
    """Whether images are grayscale, [stack, size, size]; otherwise RGB, [stack, size, size, 3]."""
    sticky_actions: Probability
    """Probability, in [0, 1], that the emulator repeats the previous action instead of the given one; it
    applies to each emulator frame."""
    noop_max: NonNegativeInt
    """Exclusive upper bound, >= 0, of the random number of no-operations at the start of a game, in emulator
    frames."""
    fire_reset: Literal[True, False, "each_life"]
    """Whether FIRE is pressed once at the start of games that have this action; each_life: FIRE also replaces
    the agent's first action after each lost life."""
    full_action_space: bool
    """Whether all 18 actions are available; false: only actions that have an effect in the game."""
    life_loss_signal: bool
    """Whether the learner sees a lost life as termination, although the game continues. This has no effect in
    evaluation."""
    max_episode_frames: PositiveInt
    """Emulator frames after which a game is truncated, >= 1 (108,000 frames correspond to 30 minutes)."""

    def stacking(self) -> str:
        """Describe how an observation is composed, for users who compute it without labrl."""
        color = "grayscale" if self.grayscale else "RGB"
        return (
            f"the {self.frame_stack} latest {color} images of {self.image_size} x {self.image_size} "
            f"pixels, the oldest first, with zeros for images before the reset; each image covers "
            f"{self.frame_skip} emulator frames and is the pixelwise maximum of the last two of these, as in "
            "ale_py.AtariVectorEnv"
        )


class AtariEnv(Backend):
    """Backend that uses `ale_py.AtariVectorEnv`.

    Observations are uint8, [num_envs, stack, size, size] (with a last axis of 3 for RGB). Results do not
    depend on `num_threads`.
    """

    Config = AtariConfig

    def __init__(
        self, config: AtariConfig, *, num_envs: int, num_threads: int, evaluation: bool = False
    ) -> None:
        check_game(config.game)
        self._life_loss_signal = config.life_loss_signal and not evaluation
        self._lives = np.zeros(num_envs, dtype=np.int32)  # lives after the last reset or step [num_envs]
        self.name = config.name
        self.num_envs = num_envs
        self.frame_skip = config.frame_skip
        self._serves = np.zeros(num_envs, dtype=np.bool_)  # whether the next action is FIRE [num_envs]
        size = (config.image_size, config.image_size)
        self._open: BatchedEmulators | SeparateEmulators | None
        apart = separate_is_faster(num_threads)
        self.prepares = apart and not evaluation  # an evaluation rarely plays a second game
        if apart:
            self._open = SeparateEmulators(lambda: vector_env(config, 1, 1, size), num_envs, num_threads)
        else:
            self._open = BatchedEmulators(vector_env(config, num_envs, num_threads, size))
        buttons = self._open.meanings() if config.fire_reset == "each_life" else []
        fire = ale_py.Action.FIRE
        self._fire = buttons.index(fire) if fire in buttons else None
        self.observation_space: Space[Any] = self._open.observation_space
        self.action_space: Space[Any] = self._open.action_space

    @classmethod
    def spaces(cls, config: AtariConfig) -> tuple[Space[Any], Space[Any]]:
        """Return the observation and action spaces of a game. Raises InputError for an unsupported game."""
        check_game(config.game)
        size = config.image_size
        key = config.game, config.full_action_space, size, config.frame_stack, config.grayscale
        if key not in _spaces:
            emulator = vector_env(config, 1, 1, (size, size))
            _spaces[key] = emulator.single_observation_space, emulator.single_action_space
        # Copies, because a space has a random state.
        return copy.deepcopy(_spaces[key])

    @property
    def info(self) -> Mapping[str, Any]:  # type: ignore[override]  # joined only when it is read
        """Numbers of the last step, as `Backend.info`."""
        return self._emulators.info

    @property
    def _emulators(self) -> BatchedEmulators | SeparateEmulators:
        if self._open is None:
            raise RuntimeError(f"{self.name}: the environment is closed")
        return self._open

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start new games where `mask` is set. mask, seeds: [num_envs]. Returns [num_envs, *obs]."""
        observation, self._lives = self._emulators.reset(mask, seeds)
        self._serves = self._serves & ~mask
        return observation

    def prepare(self, env: int, seed: int) -> None:
        """Start the next game of an environment in the background."""
        if isinstance(self._emulators, SeparateEmulators):
            self._emulators.prepare(env, seed)

    def pressed(self, actions: NDArray) -> NDArray:
        """Return the actions that the emulators receive in place of the agent's actions. [num_envs]"""
        return actions if self._fire is None else np.where(self._serves, self._fire, actions)

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: int64 or int32 [num_envs]."""
        observation, reward, ended, truncated, lives = self._emulators.step(self.pressed(actions))
        lost = lives < self._lives
        self._lives, self._serves = lives, lost & ~ended
        terminated = ended | lost if self._life_loss_signal else ended
        return Transition(observation, reward, terminated, truncated, ended)

    def close(self) -> None:
        """Release the emulators and their threads."""
        if self._open is not None:
            self._open.close()
        self._open = None


_spaces: dict[tuple[str, bool, int, int, bool], tuple[Space[Any], Space[Any]]] = {}
"""Spaces of the games that have been used, kept because starting an emulator takes 0.15 s."""


def vector_env(
    config: AtariConfig, num_envs: int, num_threads: int, size: tuple[int, int]
) -> ale_py.AtariVectorEnv:
    """Make the ALE's vector environment; size: height and width of its images in pixels."""
    return ale_py.AtariVectorEnv(
        config.game,
        num_envs,
        # 0 would use every core of the machine, including those of other sessions.
        num_threads=num_threads,
        max_num_frames_per_episode=config.max_episode_frames,
        # The constructor's default is 0; the registered v5 environments use 0.25.
        repeat_action_probability=config.sticky_actions,
        full_action_space=config.full_action_space,
        img_height=size[0],
        img_width=size[1],
        grayscale=config.grayscale,
        stack_num=config.frame_stack,
        frameskip=config.frame_skip,
        noop_max=config.noop_max,
        use_fire_reset=bool(config.fire_reset),
        # `episodic_life` would reset the whole game at each lost life. With `life_loss_info` the game
        # continues, but its end cannot be distinguished from a lost life: most games end with 0 lives
        # left, but Keystone Kapers and E.T. play their last life at 0, and Adventure ends at 1.
        # Therefore the ALE reports the end of the game, and lost lives are counted here.
        life_loss_info=False,
        # The ALE clips rewards by default, which would lose the raw reward.
        reward_clipping=False,
    )
