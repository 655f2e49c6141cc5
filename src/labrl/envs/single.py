"""Make one Gymnasium environment from its configuration, in this process or in a worker."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
from gymnasium import error

from labrl.component import Component, importing
from labrl.config.schema import EnvironmentConfig
from labrl.config.traits import Watches
from labrl.errors import Code, InputError, LabrlError, described
from labrl.types import NonNegativeInt, PositiveInt

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


@dataclass(kw_only=True)
class GymnasiumConfig(EnvironmentConfig):
    """An environment registered in Gymnasium, or a user's class."""

    id: str | None
    """Registered id, such as CartPole-v1. Set either this or `make`."""
    import_module: str | None
    """Python module whose import registers the id."""
    make: Component | None
    """A gymnasium.Env class, or a function that returns one. Set either this or `id`."""
    kwargs: dict[str, Any]
    """Keyword arguments of the environment."""
    vectorization: Literal["auto", "sync", "async"]
    """How environments are stepped. auto: labrl's own implementation of classic control, otherwise sync;
    sync: one after the other in this process, which is fastest if a step takes less than about 0.1 ms; async:
    each in its own process. All give the same results."""
    max_episode_steps: PositiveInt | None
    """Number of agent steps after which an episode is truncated; null: the limit registered for the id. If
    there is no limit, evaluation episodes are truncated after 27,000 steps."""
    restarts: Watches[NonNegativeInt]
    """Maximum number of times, >= 0, that each environment in a process of its own (`async`) is made again
    after it has raised an error or its process has died. Its episode is then repeated from its seed and
    actions. If they do not reproduce the episode, the episode ends as truncated."""
    wrappers: list[Component]
    """Wrappers around the environment, such as gymnasium.wrappers.RescaleAction, innermost first. Each
    wrapper receives the environment as the argument `env`."""
    reset_options: dict[str, Any] | None
    """Argument `options` of every `reset`; null: none."""
    fresh_env_per_episode: bool | None
    """Whether to make a new environment for every episode, which is needed if a seeded reset depends on
    earlier episodes; null: `check` finds out before the run."""
    check: Watches[bool]
    """Whether labrl compares short episodes in a second environment before the run, and a few training
    episodes in a new environment during the run, to find out whether seed and actions repeat them. The
    numbers of a run do not depend on it, unless episodes depend on earlier ones. false: no second environment
    is needed, and nothing is found out."""
    action_mask: bool
    """Whether agents that support masks take only valid actions. The environment provides the mask as
    `info["action_mask"]` or as the entry `action_mask` of a dict observation."""


REPLACED: dict[type, tuple[str, str]] = {
    gymnasium.wrappers.NormalizeObservation: (
        "its statistics are not saved, so resumed runs would differ",
        "transforms/observation=normalize",
    ),
    gymnasium.wrappers.NormalizeReward: (
        "returns would no longer be raw scores, and its statistics are not saved",
        "transforms/reward=normalize",
    ),
    gymnasium.wrappers.Autoreset: ("labrl resets environments itself", "Remove it"),
}
"""Wrappers that are refused, each with the reason and with what to set instead."""


class EnvFactory:
    """Picklable callable that makes one environment."""

    def __init__(self, config: GymnasiumConfig, longest: int | None = None) -> None:
        """longest: number of steps after which unlimited episodes are truncated, None for no limit."""
        self.config, self.longest = config, longest

    @property
    def key(self) -> str:
        """The configuration key that selects the environment."""
        return "env.id" if self.config.make is None else "env.make"

    @property
    def named(self) -> str:
        """The configuration key and its value, with which messages begin."""
        return (
            f"env.id={self.config.id}" if self.config.make is None else f"env.make: {self.config.make.target}"
        )

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make an environment. Raises InputError if it is unknown, a package is missing, or its spaces differ
        from those of the first environment."""
        config = self.config
        if config.import_module is not None:
            _import(config.import_module)
        env = self._make_registered() if config.make is None else self._make_own(config.make)
        if not isinstance(env.metadata, Mapping):
            env.metadata = {}  # wrappers and rendering require a dictionary
        for wrapper in config.wrappers:
            target, setting = wrapper.load(), f"{wrapper.key}._target_={wrapper.target}"
            for refused, (why, instead) in REPLACED.items():
                if isinstance(target, type) and issubclass(target, refused):
                    raise InputError.unsupported(setting, why, instead)
            env = wrapper.build(env=env)
            if not isinstance(env, gymnasium.Env):
                why = f"must make a gymnasium.Env, but made a {type(env).__name__}"
                raise InputError.about(setting, why, code="target")
        if (config.make is not None or config.wrappers) and config.max_episode_steps is not None:
            env = gymnasium.wrappers.TimeLimit(env, max_episode_steps=config.max_episode_steps)
        with contextlib.suppress(AttributeError):
            spaces: Any = env.observation_space, env.action_space
            if all(isinstance(space, gymnasium.Space) for space in spaces):
                return self.limit(env)
        code: Code = "environment" if config.make is None else "target"
        why = "the environment needs an observation_space and an action_space, each a gymnasium.Space"
        raise InputError.about(self.named, why, "Set both in its __init__", code=code, key=self.key)

    def limit(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Return `env`, with a limit of `longest` steps per episode if nothing else limits it."""
        part = env
        while isinstance(part, gymnasium.Wrapper):
            if isinstance(part, gymnasium.wrappers.TimeLimit):
                return env
            part = part.env
        return env if self.longest is None else gymnasium.wrappers.TimeLimit(env, self.longest)

    @property
    def identity(self) -> Hashable:
        """A hashable object that is equal for factories that make the same environment. It ignores `longest`.

        Raises InputError if the environment is unknown.
        """
        config = self.config
        if config.import_module is not None:
            _import(config.import_module)
        # Classes and registrations may be replaced under the same name, for example in a notebook.
        made = gymnasium.registry.get(config.id or "") if config.make is None else config.make.load()
        settings = config.id, config.make, config.kwargs, config.max_episode_steps, config.reset_options
        wrappers = [(id(wrapper.load()), wrapper) for wrapper in config.wrappers]
        return id(made), repr(made), repr(wrappers), *map(repr, settings)

    def _make_own(self, make: Component) -> Any:
        """Make an environment of the user's class. Raises InputError if it is not a gymnasium.Env."""
        env, setting = make.build(**self.config.kwargs), f"env.make._target_={make.target}"
        if not isinstance(env, gymnasium.Env):
            why = f"must make a gymnasium.Env, but made a {type(env).__name__}"
            raise InputError.about(setting, why, code="target")
        return env

    def _make_registered(self) -> Any:
        """Make an environment by its id. Raises InputError if it is unknown or fails."""
        config, env_id = self.config, str(self.config.id)
        # With wrappers, which may repeat steps, the limit is set outside them. Gymnasium's checker costs more
        # than a step of CartPole.
        limit = -1 if config.wrappers and config.max_episode_steps else config.max_episode_steps
        try:
            return gymnasium.make(env_id, max_episode_steps=limit, disable_env_checker=True, **config.kwargs)
        except LabrlError:
            raise
        except (Exception, SystemExit) as problem:  # environments reject arguments with any exception
            place, fix = f"env.id={env_id}", ""
            code: Code = "environment"
            if isinstance(problem, error.DependencyNotInstalled | ImportError):
                code = "not-installed"  # Gymnasium's message gives the command
            elif (
                isinstance(problem, error.UnregisteredEnv | error.DeprecatedEnv)
                or type(problem) is error.Error
            ):
                code, fix = "unknown-option", "Ids of other packages need env.import_module=<the module that "
                fix += "registers them>; Atari games are env=<game>, such as env=pong"
            elif config.kwargs:
                place = f"env.kwargs={config.kwargs}"
            why = f"this environment cannot be made: {described(problem)}"
            raise InputError.about(place, why, fix, code=code) from problem


def _import(module: str) -> None:
    """Import a module that registers environments. Raises InputError if that fails."""
    place = f"env.import_module={module}"
    try:
        with importing(module):
            importlib.import_module(module)
    except (Exception, SystemExit) as problem:  # importing a package can fail in any way
        missing = isinstance(problem, ImportError)
        fix = "Install the package that registers env.id, or correct the name" if missing else ""
        why = f"cannot be imported: {described(problem)}"
        code: Code = "not-installed" if missing else "environment"
        raise InputError.about(place, why, fix, code=code) from problem
    if (ale := sys.modules.get("ale_py")) is not None:  # otherwise it prints a greeting to standard error
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
