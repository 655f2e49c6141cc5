"""From a configuration to a running vector environment."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space

from labrl.config.component import Component
from labrl.config.errors import ConfigError
from labrl.envs.vector import VectorEnv


def make_env(
    env: Component,
    seed: int,
    num_threads: int,
    evaluation: bool = False,
    num_envs: int | None = None,
) -> VectorEnv:
    """Build the vector environment that `env` describes.

    seed: of the session. num_threads: cores that the environments may use at once. evaluation: leave
    out what is there for the learner only (the life-loss signal). num_envs: in place of `env.num_envs`.
    Raises ConfigError when the environment does not exist or something it needs is not installed.
    """
    _check_target(env)
    if num_envs is None:
        num_envs = env.config.num_envs
    backend = env.build(num_envs=num_envs, num_threads=num_threads, evaluation=evaluation)
    return VectorEnv(backend, seed)


def describe(env: Component) -> tuple[Space[Any], Space[Any]]:
    """Observation and action space of one environment, to check a configuration before a run.

    Raises ConfigError as `make_env` does.
    """
    _check_target(env)
    target = env.load()
    if hasattr(target, "spaces"):
        return target.spaces(env.config)
    vector = make_env(env, seed=0, num_threads=1, num_envs=1)
    vector.close()
    return vector.observation_space, vector.action_space


def _check_target(env: Component) -> None:
    if isinstance(env.config, dict):
        raise ConfigError(
            f"env._target_={env.target} must have a Config with name, num_envs and max_frame."
            " For an environment of your own, write env=gymnasium and give its class in env.make._target_."
        )
