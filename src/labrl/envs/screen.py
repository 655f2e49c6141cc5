"""Rendering of Atari games and Gymnasium environments as images for people to watch."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import ale_py
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from labrl.envs.atari import AtariConfig, AtariEnv, vector_env
from labrl.envs.description import description_of
from labrl.envs.gym import GymnasiumEnv
from labrl.envs.protocol import Backend, Transition, Watched
from labrl.envs.single import EnvFactory, GymnasiumConfig
from labrl.errors import InputError, described


class WatchedAtari(AtariEnv, Watched):
    """A game with a second emulator in full color, which receives the same seeds and actions."""

    def __init__(self, config: AtariConfig) -> None:
        super().__init__(config, num_envs=1, num_threads=1, evaluation=True)
        ale = ale_py.ALEInterface()
        rom = roms.get_rom_path(config.game)
        assert rom is not None, "the game was checked when its environment was made"
        ale.loadROM(rom)
        height, width = ale.getScreenDims()
        colors = dataclasses.replace(config, grayscale=False, frame_stack=1)
        self._colors: ale_py.AtariVectorEnv | None = vector_env(colors, 1, 1, (height, width))
        self._picture = np.zeros((height, width, 3), np.uint8)
        self.frames_per_second = 60 / config.frame_skip

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start a new game. mask, seeds: [1]. Returns [1, *obs]."""
        assert self._colors is not None
        seen, _ = self._colors.reset(seed=seeds[mask], options={"reset_mask": mask})
        self._picture = seen[0, 0]
        return super().reset(mask, seeds)

    def step(self, actions: NDArray) -> Transition:
        """Act in both emulators. actions: int64 or int32 [1]."""
        assert self._colors is not None
        self._picture = self._colors.step(self.pressed(actions))[0][0, 0]
        return super().step(actions)

    def picture(self) -> NDArray[np.uint8]:
        """Return the current screen in RGB, [height, width, 3]."""
        return self._picture

    def close(self) -> None:
        """Release both emulators."""
        super().close()
        self._colors = None


class WatchedGymnasium(GymnasiumEnv, Watched):
    """A Gymnasium environment made with a render mode that returns images."""

    def __init__(self, config: GymnasiumConfig) -> None:
        # Request images instead of a configured render mode.
        make, kwargs = config.make, {**config.kwargs, "render_mode": "rgb_array"}
        if make is not None and isinstance(make.config, dict):
            given = {name: value for name, value in make.config.items() if name != "render_mode"}
            make = dataclasses.replace(make, config=given)
        fresh = None if config.fresh_env_per_episode is None else True
        drawing = dataclasses.replace(
            config, make=make, kwargs=kwargs, vectorization="sync", fresh_env_per_episode=fresh
        )
        with warnings.catch_warnings():  # labrl, and not the user, asks for a render mode that may not exist
            warnings.filterwarnings("ignore", ".*render_mode", module="gymnasium")
            # Known properties of the environments of the run also hold for this one.
            known = description_of(config)
            super().__init__(drawing, num_envs=1, num_threads=1, evaluation=True, known=known)
        self._factory = EnvFactory(config)
        self.frames_per_second = frames_per_second(self.envs[0].env.metadata)

    def picture(self) -> NDArray[np.uint8]:
        """Return the current image in RGB, [height, width, 3]. Raises InputError if rendering fails."""
        try:
            rendered: Any = self.envs[0].env.render()
        except (Exception, SystemExit) as error:
            raise self._no_picture(f"failed: {described(error)}") from error
        image = np.asarray(rendered)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise self._no_picture(
                f"must return uint8 [height, width, 3], not {image.dtype} {[*image.shape]}"
            )
        return image.copy()  # the environment may reuse the array

    def _no_picture(self, why: str) -> InputError:
        text = f"cannot be rendered: its render() {why}"
        return InputError.about(self._factory.named, text, code="environment", key=self._factory.key)


def watched_by_labrl(backend: type[Backend], config: Any) -> Watched | None:
    """Make an environment that can be rendered, for labrl's own backends and subclasses; None for others."""
    # Keep the libraries that Gymnasium renders with from printing a greeting, and warnings where there is no
    # screen or sound. Every session brings its own environment variables.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform.startswith("linux") and not (os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        # MuJoCo tries to open a window, which warns, before it renders without a screen.
        warnings.filterwarnings("ignore", module="glfw")
    if issubclass(backend, AtariEnv):
        return WatchedAtari(config)
    return WatchedGymnasium(config) if issubclass(backend, GymnasiumEnv) else None


def frames_per_second(metadata: Any) -> float:
    """Return the agent steps per second from an environment's `metadata`; 30 if there is no usable value."""
    given = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    if isinstance(given, int | float | np.number) and 0.1 <= given <= 1000:
        return float(given)
    return 30.0
