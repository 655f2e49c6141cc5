"""Make one Gymnasium environment from its configuration, in this process or in a worker."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium
from gymnasium import error

from labrl.component import Component, importing, signature_of
from labrl.envs.games import games
from labrl.errors import InputError, LabrlError, install_command
from labrl.mistakes.spelling import did_you_mean

_log = logging.getLogger(__name__)

EXTRAS = ("box2d", "mujoco")
"""Extras of labrl that install the dependencies of Gymnasium's extras of the same name."""

_ID = re.compile(r"(\w+(\.\w+)*:)?([\w-]+/)?[\w.-]+")
"""An optional module that registers the id, an optional namespace, and a name."""

_shown: set[str] = set()
"""Warnings of environments that were already shown, so that each is shown only once."""

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


class EnvFactory:
    """Picklable function object that makes one environment."""

    def __init__(
        self,
        env_id: str | None = None,
        import_module: str | None = None,
        make: Component | None = None,
        kwargs: dict[str, Any] | None = None,
        max_episode_steps: int | None = None,
        longest: int | None = None,
    ) -> None:
        """longest: steps after which an episode is truncated if nothing else limits it; None for no limit."""
        if (env_id is None) == (make is None):
            raise InputError(
                "set either env.id (an id registered in Gymnasium) or your own class, as in env.id=null "
                "env.name=<name> 'env.make={_target_: my_module.MyEnv}'; "
                f"{'both are' if make else 'neither is'} set",
                code="contradiction" if make else "missing",
                key="env.id",
            )
        self.env_id = env_id
        self.import_module = import_module
        self.make = make
        self.kwargs = kwargs or {}
        self.max_episode_steps = max_episode_steps
        self.longest = longest
        self.spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None = None
        """Observation and action space that environments must have; None for any."""

    @property
    def key(self) -> str:
        """The configuration key that selects the environment."""
        return "env.id" if self.make is None else "env.make"

    @property
    def named(self) -> str:
        """The configuration key and its value, the start of messages."""
        return f"env.id={self.env_id}" if self.make is None else f"env.make: {self.make.target}"

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make an environment. Raises InputError if it is unknown, a package is missing, or spaces differ."""
        env = self.build()
        if not isinstance(env.metadata, Mapping):
            env.metadata = {}  # Gymnasium's worker processes require a dictionary
        if self.make is not None and self.max_episode_steps is not None:
            env = gymnasium.wrappers.TimeLimit(env, max_episode_steps=self.max_episode_steps)
        for space in ("observation_space", "action_space"):
            if not isinstance(getattr(env, space, None), gymnasium.Space):
                raise InputError(
                    f"{self.named}: the environment has no {space} that is a gymnasium.Space. Set one in its "
                    "__init__.",
                    code="environment" if self.make is None else "target",
                    key=self.key,
                )
        found = env.observation_space, env.action_space
        if self.spaces is not None and found != self.spaces:
            what, theirs, first = next(
                each
                for each in zip(("observations", "actions"), found, self.spaces, strict=True)
                if each[1] != each[2]
            )
            raise InputError(
                f"{self.named}: all environments must have the same spaces, but the {what} of one are "
                f"{theirs}, those of the first {first}. Set env.make to a wrapper that makes them equal.",
                code="environment",
                key=self.key,
            )
        return self.limited(env)

    def limited(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Return `env`, with a limit of `longest` steps per episode if nothing else limits it."""
        part = env
        while isinstance(part, gymnasium.Wrapper):
            if isinstance(part, gymnasium.wrappers.TimeLimit):
                return env
            part = part.env
        return env if self.longest is None else FallbackTimeLimit(env, self.longest)

    @property
    def identity(self) -> Hashable:
        """A hashable that is equal for factories that make the same environment, regardless of `longest`.

        Raises InputError if the environment is unknown.
        """
        if self.import_module is not None:
            _import(self.import_module)
        # Classes and registrations may be replaced under the same name, for example in a notebook.
        made = gymnasium.registry.get(self.env_id or "") if self.make is None else self.make.load()
        return (
            self.env_id,
            self.make and self.make.target,
            id(made),
            repr(made),
            repr(self.make and self.make.config),
            repr(self.kwargs),
            self.max_episode_steps,
        )

    def build(self) -> Any:
        """Make the environment by `make` or the id, without labrl's wrappers."""
        if self.import_module is not None:
            _import(self.import_module)
        if self.make is not None:
            return self._own(self.make)
        assert self.env_id is not None
        return self._registered(self.env_id)

    def _own(self, make: Component) -> Any:
        target, signature = make.load(), signature_of(make.load())
        several = isinstance(target, type) and issubclass(target, gymnasium.vector.VectorEnv)
        settings = {**(make.config if isinstance(make.config, dict) else {}), **self.kwargs}
        if signature is not None and "num_envs" in signature.parameters and "num_envs" not in settings:
            several = several or signature.parameters["num_envs"].default is inspect.Parameter.empty
        env = None if several else make.build(**self.kwargs)
        if several or isinstance(env, gymnasium.vector.VectorEnv):
            raise InputError(
                f"env.make._target_={make.target} makes a vector environment, but must make a gymnasium.Env "
                "(environments that are stepped at once are a class derived from "
                "labrl.envs.protocol.Backend, which env._target_ names)",
                code="unsupported",
                key="env.make._target_",
            )
        if not isinstance(env, gymnasium.Env):
            raise InputError(
                f"env.make._target_={make.target} must make a gymnasium.Env, but made a {type(env).__name__}",
                code="target",
                key="env.make._target_",
            )
        return env

    def _registered(self, env_id: str) -> Any:
        if not _ID.fullmatch(env_id):
            raise InputError(
                f"env.id={env_id} is not a valid id. Ids have the form <name>-v<version>, such as "
                "CartPole-v1, or <namespace>/<name>-v<version>, such as ALE/Pong-v5",
                code="unknown-option",
                key="env.id",
            )
        try:
            with warnings.catch_warnings(record=True) as heard:
                # Gymnasium's checker costs more than a step of CartPole; `CheckedEnv` replaces it.
                env = gymnasium.make(
                    env_id, max_episode_steps=self.max_episode_steps, disable_env_checker=True, **self.kwargs
                )
        except LabrlError:
            raise
        except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
            raise InputError(_unknown(env_id, problem), code="unknown-option", key="env.id") from None
        except (error.DependencyNotInstalled, ImportError) as problem:
            raise InputError(_missing(env_id, problem), code="not-installed", key="env.id") from problem
        except (Exception, SystemExit) as problem:  # environments reject arguments with any exception
            reason = f"{type(problem).__name__}: {problem}"
            if self.kwargs:
                reason = str(problem) if isinstance(problem, TypeError) else reason
                key = "env.kwargs"
                message = f"env.kwargs={self.kwargs} do not fit env.id={env_id}: {reason}"
            else:
                key = "env.id"
                message = f"env.id={env_id}: this environment cannot be made: {reason}"
            raise InputError(message, code="environment", key=key) from problem
        for warning in heard:  # after a failure, the error message is enough
            if str(warning.message) not in _shown:
                _shown.add(str(warning.message))
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return env


class FallbackTimeLimit(gymnasium.wrappers.TimeLimit):
    """A time limit that the user has not set. The first episode that reaches it causes a warning."""

    def __init__(self, env: gymnasium.Env[Any, Any], steps: int) -> None:
        super().__init__(env, max_episode_steps=steps)
        self._limit, self._warned = steps, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and truncate the episode at the limit."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self._elapsed_steps == self._limit and not (terminated or self._warned):
            self._warned = True
            _log.warning(
                "an evaluation episode was truncated after %s steps: set env.max_episode_steps=<steps> to "
                "limit the episodes of training and evaluation",
                f"{self._limit:,}",
            )
        return observation, reward, terminated, truncated, info


def _import(module: str) -> None:
    try:
        with importing(module):
            importlib.import_module(module)
    except ImportError as problem:
        raise InputError(
            f"env.import_module={module} cannot be imported: {problem}."
            " Install the package that registers env.id, or correct the name.",
            code="not-installed",
            key="env.import_module",
        ) from problem
    except (Exception, SystemExit) as problem:  # importing a package can fail in any way
        raise InputError(
            f"env.import_module={module}: importing it failed: {type(problem).__name__}: {problem}",
            code="environment",
            key="env.import_module",
        ) from problem
    if (ale := sys.modules.get("ale_py")) is not None:  # otherwise it prints a greeting to standard error
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


def _unknown(env_id: str, problem: error.Error) -> str:
    bare = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", env_id.removeprefix("ALE/"))
    game = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower()
    if game in games():
        return (
            f"env.id={env_id}: to play this Atari game, set env={game}. As a Gymnasium environment it needs "
            "env.import_module=ale_py, and its frames are not preprocessed."
        )
    hint = did_you_mean(env_id, reversed(gymnasium.registry), "env.id=")  # the newest in a tie
    if not hint:
        newest = re.search(r"Did you mean: `(.+?)`", str(problem))
        hint = f" Did you mean {newest[1]}?" if newest else ""
    return (
        f"env.id={env_id} is not registered in Gymnasium.{hint} Ids of other packages need"
        " env.import_module=<the module that registers them>; Atari games are env=<game>, such as env=pong."
    )


def _missing(env_id: str, problem: Exception) -> str:
    named = re.search(r"gymnasium\[([\w-]+)\]", str(problem))
    if named and named[1] in EXTRAS:
        return f"env.id={env_id} needs packages that are not installed. Type {install_command(named[1])}"
    return f"env.id={env_id} needs a package that is not installed: {problem}"
