"""Environments that can be rendered while they replay a seed and actions."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.envs.make import backend_class
from labrl.envs.protocol import Backend
from labrl.errors import InputError


class Watched(Backend):
    """A backend of one environment that can be rendered."""

    frames_per_second: float
    """Agent steps per second at normal speed."""

    @abstractmethod
    def picture(self) -> NDArray[np.uint8]:
        """Return an RGB image of the current state, [height, width, 3].

        Raises InputError if rendering fails.
        """


def watch(env: Component) -> Watched:
    """Make an environment that can be rendered and otherwise behaves like those described by `env`.

    Calls the backend's class method `watched(config)`. Raises InputError if this returns None.
    """
    watched = backend_class(env).watched(env.config)
    if watched is None:
        raise InputError(
            f"env._target_={env.target} cannot be rendered: define its class method `watched(config)`, which "
            "returns a labrl.envs.watch.Watched",
            code="unsupported",
            key="env._target_",
        )
    return watched
