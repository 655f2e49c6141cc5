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

from labrl.component import Component, importing
from labrl.envs.games import games
from labrl.errors import EnvironmentFailedError, InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean

_log = logging.getLogger(__name__)

EXTRAS = ("box2d", "mujoco")
"""Extras of labrl that install the dependencies of Gymnasium's extras of the same name."""

_ID = re.compile(r"(\w+(\.\w+)*:)?([\w-]+/)?[\w.-]+")
"""An optional module that registers the id, an optional namespace, and a name."""

_shown: set[str] = set()
"""Warnings of environments that were already shown, so that each is shown only once."""

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


_RETURNED = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


class AnswerError(EnvironmentFailedError):
    """`reset` or `step` of an environment does not follow Gymnasium's interface."""


class Answers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raise AnswerError if `reset` does not return two values, or `step` five.

    Without this, Gymnasium's wrappers would fail with an error about tuples that does not name the class.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment. Raises AnswerError."""
        try:
            answer = self.env.reset(seed=seed, options=options)
        except (TypeError, ValueError, IndexError) as problem:
            self._ask_inside(lambda inner: inner.reset(seed=seed, options=options))
            if not re.search(r"reset\(\) got an unexpected keyword argument '(seed|options)'", str(problem)):
                raise
            signature = "reset(self, *, seed=None, options=None)"
            raise AnswerError(
                f"{_method(self.env, 'reset')} must be defined as {signature}: {problem}", key="env"
            ) from problem
        return answered(self.env, "reset", answer)

    def step(self, action: Any) -> Any:
        """Step the environment. Raises AnswerError."""
        try:
            answer = self.env.step(action)
        except (TypeError, ValueError, IndexError):
            self._ask_inside(lambda inner: inner.step(action))
            raise
        return answered(self.env, "step", answer)

    def _ask_inside(self, ask: Callable[[Answers], Any]) -> None:
        """Call the environment inside failed wrappers again. Raises AnswerError if it caused the failure."""
        if isinstance(self.env, gymnasium.Wrapper):
            try:
                ask(Answers(self.env.unwrapped))
            except AnswerError:
                raise
            except Exception:  # the first error is the one to report
                return


def answered(env: Any, method: str, answer: Any) -> tuple[Any, ...]:
    """Return the result of `reset` or `step` as a tuple. Raises AnswerError if values are missing."""
    wanted = _RETURNED[method]
    if type(answer) is tuple and len(answer) == len(wanted):
        return answer
    several = isinstance(answer, tuple | list)
    if several and len(answer) == len(wanted):
        return tuple(answer)
    came = f"{len(answer)} values ({', '.join(map(_kind, answer))})" if several else _kind(answer)
    hint = ""
    if method == "step" and several and len(answer) == 4:
        hint = ". This is Gym's old interface: replace `done` by `terminated, truncated`"
    elif method == "reset" and not several:
        hint = ". Return `observation, {}` if there is no info"
    raise AnswerError(
        f"{_method(env, method)} must return {len(wanted)} values, ({', '.join(wanted)}), but returned "
        f"{came}{hint}",
        key="env",
    )


def _method(env: Any, name: str) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}.{name}()"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _answering(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return `env` with `Answers` around the innermost part that is not Gymnasium's own."""
    if not type(env).__module__.startswith("gymnasium."):
        return Answers(env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = _answering(env.env)
    return env


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
        env = _answering(self.build())
        if not isinstance(env.metadata, Mapping):
            env.metadata = {}  # Gymnasium's worker processes require a dictionary
        if self.make is not None and self.max_episode_steps is not None:
            env = _limited(env, self.max_episode_steps)
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
        return env if self.longest is None or _has_limit(env) else Patience(env, self.longest)

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
        target = make.load()
        several = isinstance(target, type) and issubclass(target, gymnasium.vector.VectorEnv)
        settings = {**(make.config if isinstance(make.config, dict) else {}), **self.kwargs}
        several = several or (takes(target, "num_envs", needed=True) and "num_envs" not in settings)
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
                # Gymnasium's checker costs more than a step of CartPole; `AnswerCheck` replaces it.
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


class FreshPerEpisode(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Make a new environment for every episode, because a seeded reset depends on earlier episodes."""

    def __init__(self, make: MakeEnv) -> None:
        super().__init__(make())
        self._make = make
        self._used = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset an unused environment. Returns its first observation and info."""
        if self._used:
            self.env.close()
            self.env = self._make()
        self._used = True
        return self.env.reset(seed=seed, options=options)


class FreshFactory:
    """Picklable function object that makes a `FreshPerEpisode` environment."""

    def __init__(self, make: MakeEnv) -> None:
        self.make = make

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make an environment."""
        return FreshPerEpisode(self.make)


class Patience(gymnasium.wrappers.TimeLimit):
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


def takes(target: Any, name: str, needed: bool = False) -> bool:
    """Return whether a class or function has a parameter `name`; needed: whether it must lack a default."""
    try:
        parameter = inspect.signature(target).parameters.get(name)
    except (TypeError, ValueError):  # some classes implemented in C have no signature
        return False
    return parameter is not None and (not needed or parameter.default is parameter.empty)


def _has_limit(env: gymnasium.Env[Any, Any]) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False


def _limited(env: gymnasium.Env[Any, Any], steps: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps=steps)


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
        return f'env.id={env_id} needs packages that are not installed: pip install "labrl[{named[1]}]"'
    return f"env.id={env_id} needs a package that is not installed: {problem}"
