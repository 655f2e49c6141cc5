"""Environments that can be looked at: they play a seed and actions again and give pictures of it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labrl.config.component import Component
from labrl.envs.protocol import Backend
from labrl.errors import InputError


class Watched(Backend, Protocol):
    """A backend of one environment with a picture of its state."""

    frames_per_second: float
    """Agent steps in a second, as people play it."""

    def picture(self) -> NDArray[np.uint8]:
        """RGB of the present state, [height, width, 3]. Raises InputError if it cannot be drawn."""


def watch(env: Component) -> Watched:
    """One environment of those that `env` describes, which plays as they do.

    A backend's class makes it: `watched(config)`. Raises InputError where it has none.
    """
    target: Any = env.load()
    if not hasattr(target, "watched"):
        raise InputError(
            f"env._target_={env.target} cannot be shown: it has no class method `watched(config)` that "
            "makes a labrl.envs.watch.Watched",
            code="unsupported",
            key="env._target_",
        )
    return target.watched(env.config)
