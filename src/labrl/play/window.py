"""A window that shows the images of an environment."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.errors import InputError
from labrl.trial.videos import LARGEST

SMALLEST = 480
"""Size in pixels to which the shorter side of a smaller image is enlarged in a window."""


class WindowClosedError(Exception):
    """Raised when the user closes the window, or presses Escape or q."""


class Window:
    """A window that shows images. Raises InputError if there is no display."""

    def __init__(self) -> None:
        displays, instead = ("DISPLAY", "WAYLAND_DISPLAY"), "Leave it out to write videos"
        if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in displays):
            why = "it needs a display, but neither DISPLAY nor WAYLAND_DISPLAY is set"
            raise InputError.usage("render=human", why, instead)
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            why, fix = f"it needs pygame ({error})", 'Type pip install "gymnasium[classic-control]"'
            raise InputError.about("render=human", why, fix, code="not-installed") from error
        try:
            pygame.display.init()
        except pygame.error as error:
            why = f"it needs a display: {error}"
            raise InputError.usage("render=human", why, instead) from error
        self._pygame: Any = pygame
        self._screen: Any = None
        self._due = 0.0

    def show(self, picture: NDArray[np.uint8], frames_per_second: float) -> None:
        """Show an image, and wait until the next image is due. Raises WindowClosedError.

        picture: RGB, [height, width, 3].
        """
        pygame = self._pygame
        height, width = picture.shape[:2]
        if self._screen is None or pygame.display.get_surface() is not self._screen:
            # An environment that draws with pygame shuts pygame down when it is closed.
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
        """Close the window."""
        self._pygame.display.quit()
