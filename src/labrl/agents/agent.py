"""The contract between an agent and the session that lets it act and learn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import nn

from labrl.config.component import lacking
from labrl.errors import InputError
from labrl.step import Step


class Agent(Protocol):
    """Acts, observes what came of it, and learns when it is time.

    Built as `Target(config, spaces=Spaces, clock=Clock, streams=Streams, compute=Compute)`. It knows no
    environment, no session and no file. A target may check a configuration before anything is built:
    `check_config(config, env)` against the environment's configuration, `check(config, spaces)` against
    its spaces; both raise InputError.

    An agent whose `act` and `evaluation_action` (and `greedy_action`) take a keyword argument `mask` gets
    which actions are valid, [num_envs, flags], from an environment that says so; others are refused there,
    unless env.action_mask=false.
    One whose `evaluation_action` (and `greedy_action`) take a keyword argument `start` gets which
    observations are the first of their episodes, [num_envs]: there it forgets what it remembers.
    """

    def act(self, observation: NDArray) -> NDArray:
        """Actions for the environments, given the learner's view of observations. [num_envs, ...]"""
        ...

    def observe(self, step: Step) -> None:
        """Take in the learner's view of what the last actions led to."""
        ...

    def learn(self) -> int:
        """Update if it is time. Returns the number of optimizer updates made.

        The clock has not counted this step yet: what is timed by frames asks for `clock.frame` and those of a
        vector step, as `Experience.due` does.
        """
        ...

    def evaluation_action(self, observation: NDArray, generator: np.random.Generator) -> NDArray:
        """Actions of the policy under evaluation, sampled with `generator`. [num_envs, ...]"""
        ...

    def metrics(self) -> dict[str, float]:
        """What a training row says of learning: the same keys each time, nan where unknown.

        Asking changes nothing: the end of a budget has a row that a longer run has not.
        """
        ...

    def modules(self) -> dict[str, nn.Module]:
        """The networks by name, for summaries and norms.

        A copy of the agent in another process acts by them, by the clock and by transforms, and by nothing
        else. Where only some of them act, a method `acting_modules` gives these.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the agent remembers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...


def check_agent(agent: Any, target: str) -> None:
    """Raises InputError if the agent that `target` made lacks a method of Agent."""
    if missing := lacking(agent, Agent):
        raise InputError(
            f"agent._target_={target}: the agent has no {', '.join(missing)}. Define every method of "
            "labrl.agents.agent.Agent.",
            code="target",
            key="agent._target_",
        )


@runtime_checkable
class Collecting(Protocol):
    """What an agent also has that does not always collect; what it learns from is its own affair then."""

    @property
    def collecting(self) -> bool:
        """Whether environments are to be played now; else it only learns, and frames pass all the same."""
        ...

    @property
    def frames_played(self) -> int:
        """Frames so far in which they were."""
        ...


def heeded(
    choose: Callable[..., NDArray],
    mask: NDArray[np.bool_] | None,
    start: NDArray[np.bool_] | None = None,
) -> dict[str, NDArray[np.bool_]]:
    """The keyword arguments `mask` and `start` for a method of an agent, as far as it takes them.

    start: which observations are the first of their episodes; told in evaluation, [num_envs].
    """
    if mask is None and start is None:
        return {}
    told = {"mask": mask, "start": start}
    taken = _parameters(_function(choose))
    return {name: value for name, value in told.items() if value is not None and name in taken}


def heeds_masks(agent: Any) -> bool:
    """Whether an agent, or a class of agents, acts among the valid actions alone where it is told them.

    A function that makes an agent does not say, and is believed to.
    """
    act = getattr(agent, "act", None)
    return act is None or "mask" in _parameters(_function(act))


def _function(choose: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a method, or a partial one, which lasts longer than the agent."""
    if isinstance(choose, functools.partial):
        return _function(choose.func)
    return getattr(choose, "__func__", choose)


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names of what it takes. Asked in every step, and as dear as one of a small environment."""
    return frozenset(inspect.signature(function).parameters)


def acting_modules(agent: Any) -> dict[str, nn.Module]:
    """The networks by which an agent chooses actions: all of them, unless it says which."""
    return getattr(agent, "acting_modules", agent.modules)()


class LearnsFromCopies(Protocol):
    """What an agent also has that learns from what a copy of it did with older weights: it is off-policy."""

    def decision(self) -> dict[str, NDArray]:
        """What the last `act` decided, in the agent's own terms. [num_envs, ...] each"""
        ...

    def adopt(self, observation: NDArray, decision: Mapping[str, NDArray]) -> None:
        """Take a copy's decision at `observation` for one's own; `observe` tells then what came of it."""
        ...


@runtime_checkable
class Greedy(Protocol):
    """What an agent also has if its policy has a best action; `labrl +enjoy greedy=true` asks for it."""

    def greedy_action(self, observation: NDArray) -> NDArray:
        """The action of each environment that the policy thinks best; nothing is drawn. [num_envs, ...]"""
        ...
