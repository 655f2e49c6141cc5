"""Build a vector environment from its configuration.

A new environment needs no code here: a YAML file in `configs/env` names its backend, a class derived from
`Backend` in `protocol.py`.
"""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space

from labrl.component import Component
from labrl.config.schema import EnvironmentConfig
from labrl.envs.info import EpisodeNumbers
from labrl.envs.protocol import Backend, Watched
from labrl.envs.vector import VectorEnv
from labrl.errors import InputError
from labrl.spaces import Goals, why_unsupported
from labrl.types import Reduction


def make_env(
    env: Component,
    seed: int,
    num_threads: int,
    evaluation: bool = False,
    num_envs: int | None = None,
    first: int = 0,
) -> VectorEnv:
    """Build the vector environment that `env` describes.

    seed: seed of the session; num_threads: number of cores that the environments may use; evaluation: whether
    to leave out signals that are only for the learner (loss of a life); num_envs: number of environments,
    None for `env.num_envs`; first: index of the first environment in the session. Raises InputError if the
    environment does not exist or a package that it needs is not installed.
    """
    if num_envs is None:
        num_envs = env.config.num_envs
    backend = backend_class(env).faster(env.config, num_envs)
    if backend is None:
        backend = env.build(num_envs=num_envs, num_threads=num_threads, evaluation=evaluation)
    keys = info_keys(env)
    numbers = EpisodeNumbers(keys, backend.num_envs, backend.name, warns=not evaluation) if keys else None
    return VectorEnv(backend, seed, first, numbers)


def info_keys(env: Component) -> dict[str, Reduction]:
    """Return the reduction of each number of infos to record; empty if a user's backend has no such key."""
    return (isinstance(env.config, EnvironmentConfig) and env.config.info_keys) or {}


def backend_class(env: Component) -> type[Backend]:
    """Import the class that `env` names. Raises InputError unless it is a backend."""
    target = env.load()
    if not (isinstance(target, type) and issubclass(target, Backend)):
        fix = "env=gymnasium env.id=null env.name=<name> 'env.make={_target_: <module>.<class>}'"
        allowed = "be a class derived from labrl.envs.protocol.Backend"
        why = "a gymnasium.Env is set in another way"
        raise InputError.value("env._target_", env.target, allowed, why=why, fix=fix, code="target")
    return target


def goals_of(env: Component, space: Space[Any]) -> Goals | None:
    """Return an object that computes rewards for other goals; None for environments without goals.

    The environment need not be running. space: observation space of one environment.
    """
    return backend_class(env).make_goals(env.config, space)


def gives_masks(env: Component) -> bool:
    """Return whether an environment provides action masks. Finding out may require making an environment.

    Raises InputError if its masks cannot be used.
    """
    return backend_class(env).gives_masks(env.config)


def describe(env: Component) -> tuple[Space[Any], Space[Any]]:
    """Return one environment's observation and action spaces, to check a configuration before a run.

    Raises InputError if `make_env` does, if actions are not a single array, or if observations are neither a
    single array nor a dict or tuple of arrays.
    """
    known = backend_class(env).spaces(env.config)
    if known is None:
        vector = make_env(env, seed=0, num_threads=1, num_envs=1)
        vector.close()
        known = vector.observation_space, vector.action_space
    if why := why_unsupported(*known):
        fix = "Convert them with a wrapper (env.wrappers)"
        raise InputError.about(f"env.name={env.config.name}", why, fix, code="unsupported", key="env")
    return known


def watch(env: Component) -> Watched:
    """Make an environment that can be rendered and otherwise behaves like those described by `env`.

    A user's backend must define the class method `watched(config)`. Raises InputError if it returns None.
    """
    backend = backend_class(env)
    watched = backend.watched(env.config)
    if watched is None:
        # Imported late, because only videos and windows need it.
        from labrl.envs.screen import watched_by_labrl

        watched = watched_by_labrl(backend, env.config)
    if watched is None:
        setting, why = f"env._target_={env.target}", "this backend cannot be rendered"
        fix = "Define its class method `watched(config)`, which returns a labrl.envs.protocol.Watched"
        raise InputError.unsupported(setting, why, fix)
    return watched
