"""Makes one Gymnasium environment from its configuration, in this process or in a worker."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium
from gymnasium import error

from labrl.config.component import Component, importing
from labrl.envs.games import games
from labrl.errors import EnvironmentFailedError, InputError, LabrlError
from labrl.mistakes.spelling import did_you_mean

_log = logging.getLogger(__name__)

EXTRAS = ("box2d", "mujoco")
"""Extras of labrl that bring the dependencies of Gymnasium's extras of the same name."""

_ID = re.compile(r"(\w+(\.\w+)*:)?([\w-]+/)?[\w.-]+")
"""A package that registers the id, a namespace, a name; only the name must be there."""

_told: set[str] = set()
"""Warnings of environments that were shown, so that each is shown once."""

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


_RETURNED = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


class AnswerError(EnvironmentFailedError):
    """`reset` or `step` of an environment did not return what Gymnasium's interface asks for."""


class Answers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises AnswerError where `reset` or `step` returns anything but its two or five values.

    Without it, Gymnasium's own wrappers would fail with a remark on tuples that does not name the class.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Pass on the environment's answer."""
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
        """Pass on the environment's answer."""
        try:
            answer = self.env.step(action)
        except (TypeError, ValueError, IndexError):
            self._ask_inside(lambda inner: inner.step(action))
            raise
        return answered(self.env, "step", answer)

    def _ask_inside(self, ask: Callable[[Answers], Any]) -> None:
        """Ask the environment inside failed wrappers once more. Raises AnswerError if that was the reason."""
        if isinstance(self.env, gymnasium.Wrapper):
            try:
                ask(Answers(self.env.unwrapped))
            except AnswerError:
                raise
            except Exception:  # whatever it says now, the first error is the one to be told
                return


def answered(env: Any, method: str, answer: Any) -> tuple[Any, ...]:
    """Return the result of `reset` or `step` as a tuple. Raise AnswerError unless it holds all values."""
    wanted = _RETURNED[method]
    if type(answer) is tuple and len(answer) == len(wanted):
        return answer
    several = isinstance(answer, tuple | list)
    if several and len(answer) == len(wanted):
        return tuple(answer)
    came = f"{len(answer)} values ({', '.join(map(_kind, answer))})" if several else _kind(answer)
    hint = ""
    if method == "step" and several and len(answer) == 4:
        hint = ". Gym's old interface has four: replace its `done` by `terminated, truncated`"
    elif method == "reset" and not several:
        hint = ". Return `observation, {}` where there is no info"
    raise AnswerError(
        f"{_method(env, method)} must return {len(wanted)} values, ({', '.join(wanted)}), and returned "
        f"{came}{hint}",
        key="env",
    )


def _method(env: Any, name: str) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}.{name}()"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _answering(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """`env`, with the answers of the part of it checked that is not Gymnasium's own."""
    if not type(env).__module__.startswith("gymnasium."):
        return Answers(env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = _answering(env.env)
    return env


class EnvFactory:
    """Calling it makes one environment. Picklable, so that worker processes can be given it."""

    def __init__(
        self,
        env_id: str | None = None,
        import_module: str | None = None,
        make: Component | None = None,
        kwargs: dict[str, Any] | None = None,
        max_episode_steps: int | None = None,
        longest: int | None = None,
    ) -> None:
        """longest: steps after which an episode is truncated where nothing else limits it; None: never."""
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

    @property
    def key(self) -> str:
        """The key that says what is made."""
        return "env.id" if self.make is None else "env.make"

    @property
    def named(self) -> str:
        """The key and what it says, as messages begin."""
        return f"env.id={self.env_id}" if self.make is None else f"env.make: {self.make.target}"

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """One new environment. Raises InputError when it is unknown or a package is missing."""
        env = _answering(self.build())
        if not isinstance(env.metadata, Mapping):
            env.metadata = {}  # Gymnasium's worker processes fail without a dictionary
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
        return self.limited(env)

    def limited(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Let an episode of `env` end after `longest` steps if nothing else limits it."""
        return env if self.longest is None or _has_limit(env) else Patience(env, self.longest)

    @property
    def identity(self) -> Hashable:
        """Identity of what is made, regardless of `longest`: equal for two factories that make the same.

        Raises InputError where it is unknown.
        """
        if self.import_module is not None:
            _import(self.import_module)
        # Classes and registrations may be replaced under the same name, in a notebook for example.
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
        """Return what `make` or the id makes, unwrapped."""
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
                f"env.make._target_={make.target} makes a vector environment: set "
                "env.vectorization=vector_entry_point, and labrl makes it with env.num_envs environments",
                code="contradiction",
                key="env.vectorization",
            )
        if not isinstance(env, gymnasium.Env):
            raise InputError(
                f"env.make._target_={make.target} must make a gymnasium.Env, it made a {type(env).__name__}",
                code="target",
                key="env.make._target_",
            )
        return env

    def _gymnasium_makes(self, env_id: str) -> Any:
        # The checker costs more than a step of CartPole does; labrl's own tests stand in for it.
        return gymnasium.make(
            env_id, max_episode_steps=self.max_episode_steps, disable_env_checker=True, **self.kwargs
        )

    def _registered(self, env_id: str) -> Any:
        if not _ID.fullmatch(env_id):
            raise InputError(
                f"env.id={env_id} is not an id. Ids are written <name>-v<version>, such as CartPole-v1, "
                "some with a namespace before the name, such as env.id=ALE/Pong-v5",
                code="unknown-option",
                key="env.id",
            )
        try:
            with warnings.catch_warnings(record=True) as heard:
                env = self._gymnasium_makes(env_id)
        except LabrlError:
            raise
        except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
            raise InputError(_unknown(env_id, problem), code="unknown-option", key="env.id") from problem
        except (error.DependencyNotInstalled, ImportError) as problem:
            raise InputError(_missing(env_id, problem), code="not-installed", key="env.id") from problem
        except (Exception, SystemExit) as problem:  # it says in its own way that it cannot take something
            reason = f"{type(problem).__name__}: {problem}"
            if self.kwargs:
                reason = str(problem) if isinstance(problem, TypeError) else reason
                told, key = f"env.kwargs={self.kwargs} do not fit env.id={env_id}: {reason}", "env.kwargs"
            else:
                told, key = f"env.id={env_id}: this environment cannot be made: {reason}", "env.id"
            raise InputError(told, code="environment", key=key) from problem
        for warning in heard:  # where it is refused, the message says it all
            if str(warning.message) not in _told:
                _told.add(str(warning.message))
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return env


class FreshPerEpisode(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes its environment anew for every episode, because a seeded reset does not forget the last one."""

    def __init__(self, make: MakeEnv) -> None:
        super().__init__(make())
        self._make = make
        self._used = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation and info of an environment that has played nothing before."""
        if self._used:
            self.env.close()
            self.env = self._make()
        self._used = True
        return self.env.reset(seed=seed, options=options)


class FreshFactory:
    """Makes `FreshPerEpisode` environments. Picklable."""

    def __init__(self, make: MakeEnv) -> None:
        self.make = make

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """One new environment."""
        return FreshPerEpisode(self.make)


class Patience(gymnasium.wrappers.TimeLimit):
    """A limit that the user has not set; an episode that reaches it is reported once."""

    def __init__(self, env: gymnasium.Env[Any, Any], steps: int) -> None:
        super().__init__(env, max_episode_steps=steps)
        self._most, self._told = steps, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; truncate after the last step."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self._elapsed_steps == self._most and not (terminated or self._told):
            self._told = True
            _log.warning(
                "an episode of the evaluation had not ended after %s steps and was cut off there: set "
                "env.max_episode_steps=<steps> for training and evaluation alike",
                f"{self._most:,}",
            )
        return observation, reward, terminated, truncated, info


def takes(target: Any, name: str, needed: bool = False) -> bool:
    """Return whether a class or function has a parameter of that name; needed: one without a default."""
    try:
        parameter = inspect.signature(target).parameters.get(name)
    except (TypeError, ValueError):  # some classes written in C have no signature
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
    except (Exception, SystemExit) as problem:  # whatever a package of somebody's does when it is imported
        raise InputError(
            f"env.import_module={module}: importing it failed: {type(problem).__name__}: {problem}",
            code="environment",
            key="env.import_module",
        ) from problem


def _unknown(env_id: str, problem: error.Error) -> str:
    bare = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", env_id.removeprefix("ALE/"))
    game = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower()
    if game in games():
        return (
            f"env.id={env_id}: select games of the ALE by env=<game>: set env={game}. As an environment of "
            "Gymnasium it needs env.import_module=ale_py, and its frames are not preprocessed."
        )
    hint = did_you_mean(env_id, reversed(gymnasium.registry), "env.id=")  # of equals the newest
    if not hint:
        newest = re.search(r"Did you mean: `(.+?)`", str(problem))
        hint = f" Did you mean {newest[1]}?" if newest else ""
    return (
        f"env.id={env_id} is not registered in Gymnasium.{hint} Ids of other packages need"
        " env.import_module=<the package that registers them>; Atari games are env=<game>, such as env=pong."
    )


def _missing(env_id: str, problem: Exception) -> str:
    named = re.search(r"gymnasium\[([\w-]+)\]", str(problem))
    if named and named[1] in EXTRAS:
        return f'env.id={env_id} needs packages that are not installed: pip install "labrl[{named[1]}]"'
    return f"env.id={env_id} needs a package that is not installed: {problem}"
