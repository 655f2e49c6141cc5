"""A window on the screen of the person at the keyboard."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.errors import InputError

SMALLEST = 480
"""Smaller pictures are enlarged until one of their sides has so many pixels."""

LARGEST = 4096
"""Pixels that no side is enlarged beyond."""


class WindowClosedError(Exception):
    """Somebody closed it, or pressed Escape or q."""


class Window:
    """Shows pictures one after the other. Raises InputError where there is no display."""

    def __init__(self) -> None:
        displays = ("DISPLAY", "WAYLAND_DISPLAY")
        if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in displays):
            raise _no_display("neither DISPLAY nor WAYLAND_DISPLAY is set")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            raise InputError(
                f'render=human needs pygame ({error}): pip install "gymnasium[classic-control]"',
                code="not-installed",
                key="render",
            ) from error
        try:
            pygame.display.init()
        except pygame.error as error:
            raise _no_display(str(error)) from error
        self._pygame: Any = pygame
        self._screen: Any = None
        self._due = 0.0

    def show(self, picture: NDArray[np.uint8], frames_per_second: float) -> None:
        """picture: RGB, [height, width, 3]. Returns when the next is due. Raises WindowClosedError."""
        pygame = self._pygame
        height, width = picture.shape[:2]
        if self._screen is None or pygame.display.get_surface() is not self._screen:
            # Environments that draw with pygame themselves end all of it when they are closed.
            pygame.display.init()
            zoom = max(1, min(round(SMALLEST / max(min(height, width), 1)), LARGEST // max(height, width)))
            self._screen = pygame.display.set_mode((width * zoom, height * zoom))
            pygame.display.set_caption("labrl")
        image = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
        self._screen.blit(pygame.transform.scale(image, self._screen.get_size()), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            leaving = event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
            if event.type == pygame.QUIT or leaving:
                raise WindowClosedError
        time.sleep(max(self._due - time.perf_counter(), 0.0))
        self._due = time.perf_counter() + 1 / frames_per_second

    def close(self) -> None:
        """Take it away."""
        self._pygame.display.quit()


def _no_display(why: str) -> InputError:
    return InputError(
        f"render=human needs a display, and there is none ({why}). Leave it out to write videos.",
        code="usage",
        key="render",
    )
