"""Environments that render unusual images, and environments that do not support rendering."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from env_cases import Walk

DRAWN: dict[str, Any] = {
    "byte": np.full((30, 40, 3), 99, np.uint8),
    "fraction": np.full((30, 40, 3), 99 / 255, np.float32),
    "gray": np.full((30, 40), 99, np.uint8),
    "transparent": np.full((30, 40, 4), 99, np.uint8),
    "none": None,
    "no pixels": np.zeros((0, 40, 3), np.uint8),
}


class Drawn(Walk):
    """An environment that renders one of `DRAWN` or images of changing sizes, or fails to render.

    An episode ends after at most four steps.
    """

    metadata: ClassVar[Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, kind: str = "byte", render_mode: str | None = None) -> None:
        super().__init__()
        self.kind, self.render_mode, self.steps = kind, render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action: np.int64) -> Any:
        self.steps += 1
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.steps >= 4, False, info

    def render(self) -> Any:
        if self.kind == "raises" or (self.kind == "raises later" and self.steps == 2):
            raise RuntimeError("no screen")
        if self.kind == "exits":
            raise SystemExit("no screen")
        if self.kind == "changing":
            return np.full((30 + self.steps, 40, 3), 99, np.uint8)
        return DRAWN[self.kind]


class Unseen(Drawn):
    """An environment that does not accept a render_mode."""

    def __init__(self) -> None:
        super().__init__()
