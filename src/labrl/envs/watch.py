"""Environments that can be looked at: they play a seed and actions again and give pictures of it."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from labrl.config.component import Component
from labrl.envs.make import backend_class
from labrl.envs.protocol import Backend
from labrl.errors import InputError


class Watched(Backend):
    """A backend of one environment with a picture of its state."""

    frames_per_second: float
    """Agent steps in a second, as people play it."""

    @abstractmethod
    def picture(self) -> NDArray[np.uint8]:
        """RGB of the present state, [height, width, 3]. Raises InputError if it cannot be drawn."""


def watch(env: Component) -> Watched:
    """One environment of those that `env` describes, which plays as they do.

    A backend's class makes it: `watched(config)`. Raises InputError where it makes none.
    """
    watched = backend_class(env).watched(env.config)
    if watched is None:
        raise InputError(
            f"env._target_={env.target} cannot be shown: define its class method `watched(config)`, which "
            "makes a labrl.envs.watch.Watched",
            code="unsupported",
            key="env._target_",
        )
    return watched
