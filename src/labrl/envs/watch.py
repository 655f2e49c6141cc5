"""Environments that can be rendered while they replay a seed and actions."""

from __future__ import annotations

from labrl.component import Component
from labrl.envs.make import backend_class
from labrl.envs.protocol import Watched
from labrl.errors import InputError


def watch(env: Component) -> Watched:
    """Make an environment that can be rendered and otherwise behaves like those described by `env`.

    A backend of a user has the class method `watched(config)`. Raises InputError if this returns None.
    """
    backend = backend_class(env)
    watched = backend.watched(env.config)
    if watched is None:
        # Imported late, because it sets environment variables for pygame and MuJoCo.
        from labrl.envs.screen import watched_by_labrl

        watched = watched_by_labrl(backend, env.config)
    if watched is None:
        setting, why = f"env._target_={env.target}", "this backend cannot be rendered"
        fix = "Define its class method `watched(config)`, which returns a labrl.envs.protocol.Watched"
        raise InputError.unsupported(setting, why, fix)
    return watched
