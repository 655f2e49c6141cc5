"""Atari games and Gymnasium's environments as people see them."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import ale_py
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from labrl.config.errors import ConfigError
from labrl.envs.atari import AtariConfig, AtariEnv, vector_env
from labrl.envs.gym import GymnasiumConfig, GymnasiumEnv
from labrl.envs.protocol import Transition

# What Gymnasium draws with greets when it is imported, and complains where there is no screen and no sound.
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
if sys.platform.startswith("linux") and not (os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}):
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class WatchedAtari(AtariEnv):
    """A game, and beside it the same one in colours: with the same seed and actions both play alike."""

    def __init__(self, config: AtariConfig) -> None:
        super().__init__(config, num_envs=1, num_threads=1, evaluation=True)
        height, width = _screen_size(config.game)
        colours = dataclasses.replace(config, grayscale=False, stack=1)
        self._colours: ale_py.AtariVectorEnv | None = vector_env(colours, 1, 1, (height, width))
        self._picture = np.zeros((height, width, 3), np.uint8)
        self.frames_per_second = 60 / config.frame_skip

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start a new game. mask, seeds: [1]. Returns [1, *obs]."""
        assert self._colours is not None
        seen, _ = self._colours.reset(seed=seeds[mask], options={"reset_mask": mask})
        self._picture = seen[0, 0]
        return super().reset(mask, seeds)

    def step(self, actions: NDArray) -> Transition:
        """actions: int64 or int32 [1]."""
        assert self._colours is not None
        self._picture = self._colours.step(actions)[0][0, 0]
        return super().step(actions)

    def picture(self) -> NDArray[np.uint8]:
        """[height, width, 3]"""
        return self._picture

    def close(self) -> None:
        """End both emulators."""
        super().close()
        self._colours = None


class WatchedGymnasium(GymnasiumEnv):
    """An environment made for pictures, anew for every episode."""

    def __init__(self, config: GymnasiumConfig) -> None:
        make = config.make
        if make is not None and isinstance(make.config, dict):  # whatever it was to show otherwise
            given = {name: value for name, value in make.config.items() if name != "render_mode"}
            make = dataclasses.replace(make, config=given)
        shown = dataclasses.replace(
            config,
            make=make,
            kwargs={**config.kwargs, "render_mode": "rgb_array"},
            vectorization="sync",
            fresh_env_per_episode=True,
        )
        try:
            super().__init__(shown, num_envs=1, num_threads=1, evaluation=True)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"env.name={config.name} gives no pictures: {error}") from error
        env: Any = self._env
        self.frames_per_second = float(env.envs[0].metadata.get("render_fps") or 30)

    def picture(self) -> NDArray[np.uint8]:
        """[height, width, 3]"""
        try:
            pictures: Any = self._env.render()
        except Exception as error:
            raise ConfigError(f"env.name={self.name} gives no pictures: {error}") from error
        picture = pictures[0] if pictures else None
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
            raise ConfigError(f"env.name={self.name} gives no pictures for render_mode=rgb_array")
        return picture.astype(np.uint8)  # a copy, for the next one may be drawn over it


def _screen_size(game: str) -> tuple[int, int]:
    """Height and width of a game's picture, pixels."""
    ale = ale_py.ALEInterface()
    rom = roms.get_rom_path(game)
    assert rom is not None, "the game was checked when its environment was made"
    ale.loadROM(rom)
    height, width = ale.getScreenDims()
    return height, width
