"""Rendering of Atari games and Gymnasium environments as images for people to watch."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from labrl.component import accepted_settings, load_target
from labrl.envs.atari import AtariConfig, AtariEnv, vector_env
from labrl.envs.description import description_of
from labrl.envs.gym import GymnasiumEnv
from labrl.envs.protocol import Backend, Transition, Watched
from labrl.envs.single import EnvFactory, GymnasiumConfig
from labrl.errors import InputError

MODES = ("rgb_array", "rgb_array_list")
"""Values of Gymnasium's `render_mode` for which `render()` returns images."""


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
        # Request images, if the environment accepts a render mode, instead of a configured one.
        make, takes_mode = config.make, _takes_render_mode(config)
        kwargs = {name: value for name, value in config.kwargs.items() if name != "render_mode"}
        if make is not None and isinstance(make.config, dict):
            given = {name: value for name, value in make.config.items() if name != "render_mode"}
            make = dataclasses.replace(make, config=given)
        if takes_mode:
            metadata = getattr(make.load(), "metadata", None) if make is not None else None
            modes = metadata.get("render_modes") if isinstance(metadata, Mapping) else None
            lists_only = isinstance(modes, list | tuple | set) and MODES[0] not in modes and MODES[1] in modes
            kwargs["render_mode"] = MODES[1] if lists_only else MODES[0]
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
        drawn = self.envs[0].env
        if not takes_mode and drawn.render_mode not in MODES:
            self.close()
            why = "has no parameter render_mode, so it cannot be rendered"
            fix = "To get videos, add this parameter, and return an image from render() for rgb_array"
            raise InputError.about(self._factory.named, why, fix, code="unsupported", key=self._factory.key)
        self.frames_per_second = frames_per_second(drawn.metadata)
        self._bright = False  # whether a floating-point image had a value above 1

    def picture(self) -> NDArray[np.uint8]:
        """Return the current image in RGB, [height, width, 3]. Raises InputError if rendering fails."""
        try:
            rendered: Any = self.envs[0].env.render()
        except (Exception, SystemExit) as error:
            raise self._no_picture(f"failed: {type(error).__name__}: {error}".rstrip(": ")) from error
        if isinstance(rendered, list | tuple) and rendered and isinstance(rendered[-1], np.ndarray):
            rendered = rendered[-1]  # rgb_array_list: all images since the last call
        if not isinstance(rendered, np.ndarray) or rendered.dtype.kind not in "buif":
            what = "nothing" if rendered is None else f"a {type(rendered).__name__}"
            raise self._no_picture(f"returns {what}, but must return an array [height, width, 3]")
        colors = 1 if rendered.ndim == 2 else rendered.shape[2] if rendered.ndim == 3 else 0
        if colors not in (1, 3, 4) or 0 in rendered.shape:
            raise self._no_picture(
                f"returns an array of shape {rendered.shape}, but the shape must be [height, width], or "
                "[height, width, channels] with 1, 3 or 4 channels"
            )
        gray = rendered.reshape(*rendered.shape[:2], colors)[:, :, :3]  # without the alpha channel
        # Floating-point values are assumed to be in [0, 1] until a larger one occurs, and then in [0, 255].
        if gray.dtype.kind == "f":
            gray = np.nan_to_num(gray)
            self._bright = self._bright or bool(gray.max() > 1)
        if gray.dtype.kind == "b" or (gray.dtype.kind == "f" and not self._bright):
            gray = gray * 255.0
        if gray.dtype != np.uint8:
            gray = gray.clip(0, 255).round().astype(np.uint8)
        return np.broadcast_to(gray, (*gray.shape[:2], 3)).copy()  # the environment may reuse the array

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


def _takes_render_mode(config: GymnasiumConfig) -> bool:
    """Return whether the environment accepts `render_mode`."""
    made: Any = None
    if config.make is not None:
        made = config.make.load()
    elif config.id is not None:
        spec = gymnasium.registry.get(config.id.rpartition(":")[2])
        made = None if spec is None else spec.entry_point
        made = load_target(made.replace(":", ".")) if isinstance(made, str) else made
    accepted = accepted_settings(made)
    return accepted is None or "render_mode" in accepted
