"""The contract between an agent and the session that lets it act and learn."""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.component import Component
from labrl.errors import InputError

if TYPE_CHECKING:
    from labrl.learning.learner import FlatParameters
    from labrl.spaces import Spaces
    from labrl.step import Masks, Step

Options = TypeVar("Options")


@dataclass(slots=True)
class Observation:
    """The learner's view of the observations to act on, with masks and starts of episodes."""

    array: NDArray
    """[num_envs, *obs]"""
    mask: Masks = None
    """Valid actions, [num_envs, flags]; None where all always are."""
    start: NDArray[np.bool_] | None = None
    """Whether observations are the first of their episodes, [num_envs]. Given in evaluation, where recurrent
    states are reset by it; None in training, where `Agent.observe` says which episodes are over."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Capabilities of a class of agents besides acting, observing and learning.

    A session calls the methods that a trait names only where the class declares it.
    """

    masks: bool = False
    """Whether it chooses only valid actions, where an environment provides masks."""
    greedy: bool = False
    """Whether its policy has a best action: `greedy_action`."""
    policy_numbers: bool = False
    """Whether it reports the numbers that its actions are drawn by: `policy_numbers`."""
    exports: bool = False
    """Whether its policy can be had as one module: `actor`."""
    draws: bool = True
    """Whether its policy draws actions, so that an exported one can: `actor(sampled=True)`."""
    ranks: bool = False
    """Whether several ranks of torchrun can train it together: `for_rank`."""
    learns_from_copies: bool = False
    """Whether it learns from the actions of a copy with older weights (it is off-policy): `decision` and
    `adopt`."""
    shares_weights: bool = False
    """Whether the sessions of a trial can train its `weights` together."""
    halves: bool = True
    """Whether the mean gradient of two halves of a minibatch is that of the whole."""


class Actor(nn.Module):
    """A policy from what a network reads to actions: tensors alone, so that it can be exported."""

    network: Any
    """Network that chooses actions."""
    state_size = 0
    """Numbers of a recurrent state, 0 without one."""

    def layout(self, observation: Any) -> Tensor:
        """Return what the network reads. observation: a tensor [batch, *obs], or a dict of such."""
        read: Tensor = self.network.layout(observation)
        return read.float() if read.dtype == torch.float64 else read

    def forward(
        self, inputs: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions, as the environment takes them, what they were chosen by, and the next state.

        inputs: in the network's layout, [batch, ...]; mask: valid actions, [batch, flags], None for all;
        state: [batch, state_size], None without one. Returns [batch, *action], [batch, numbers] and
        [batch, state_size].
        """
        raise NotImplementedError


class Pauses(Protocol):
    """Frames in which environments are not played and the agent only learns."""

    @property
    def collecting(self) -> bool:
        """Whether environments are played now."""

    @property
    def frames_played(self) -> int:
        """Frames so far in which environments were played."""


class Agent(ABC):
    """Acts, observes the outcome, and learns when it is time.

    Built as `Target(config, spaces=Spaces, clock=Clock, streams=Streams, compute=Compute)`. It knows no
    environment, no session and no file. A class without an attribute `Config` gets its options as keyword
    arguments instead of `config`.
    """

    NAME: ClassVar[str] = ""
    """Name of the agent in messages; empty: the path of its class."""
    TRAITS: ClassVar[Traits] = Traits()
    pauses: Pauses | None = None
    """Frames in which environments are not played; None: they always are."""

    @classmethod  # noqa: B027 - may be left out
    def check_config(cls, config: Any, env: Any) -> None:
        """Raise InputError where the options contradict those of the environment. Nothing is built yet."""

    @classmethod  # noqa: B027 - may be left out
    def check(cls, config: Any, spaces: Spaces) -> None:
        """Raise InputError for options and spaces that it cannot learn with. Nothing is built yet."""

    @classmethod
    def for_rank(cls, config: Any, ranks: int) -> Any:
        """Return the options of one of several ranks. Raise InputError where they have no equal part."""
        return config

    @abstractmethod
    def act(self, observation: Observation) -> NDArray:
        """Return actions for the environments. [num_envs, ...]"""

    @abstractmethod
    def observe(self, step: Step) -> None:
        """Receive the learner's view of the outcome of the last actions."""

    @abstractmethod
    def learn(self) -> int:
        """Update if it is time. Return the number of optimizer updates made.

        The clock has not counted this step yet: code that is timed by frames adds those of a vector step to
        `clock.frame`, as `Experience.due` does.
        """

    @abstractmethod
    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return actions of the policy under evaluation, sampled with `generator`. [num_envs, ...]"""

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the policy's best actions, without random numbers. [num_envs, ...]"""
        raise NotImplementedError

    def policy_numbers(self, observation: Observation) -> dict[str, NDArray]:
        """Return the numbers that actions are drawn by: probabilities, or means and deviations. [num_envs,
        ...] each"""
        raise NotImplementedError

    def actor(self, sampled: bool) -> Actor:
        """Return what chooses actions as one module, whose weights are the agent's own.

        sampled: whether actions are drawn; otherwise they are those of `greedy_action`.
        """
        raise NotImplementedError

    def decision(self) -> dict[str, NDArray]:
        """Return what the last `act` decided, in the agent's own terms. [num_envs, ...] each"""
        raise NotImplementedError

    def adopt(self, observation: Observation, decision: Mapping[str, NDArray]) -> None:
        """Adopt a copy's decision at `observation` as its own; `observe` then gives the outcome."""
        raise NotImplementedError

    @property
    def weights(self) -> FlatParameters:
        """All weights, for sessions that train them together (`meta.distributed`)."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return the columns of a training row about learning: the same keys each time, nan where unknown.

        It must change nothing: the end of a budget has a row that a longer run does not have.
        """
        return {}

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks by name, for summaries and norms."""
        return {}

    def followers(self) -> dict[str, str]:
        """Name those of `modules` that only follow another one, such as target networks, with that one.

        They get its weights where these are set from outside.
        """
        return {}

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return those of `modules` by which it chooses actions.

        A copy of the agent in another process acts by these, the clock and the transforms alone.
        """
        return self.modules()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state of the agent, except its random streams."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - may be left out
        """Continue from a saved state."""

    def close(self) -> None:  # noqa: B027 - may be left out
        """End threads and processes in the background."""


def agent_class(component: Component) -> type[Agent]:
    """Return the class that `component` names; `Agent` itself, without traits, where it names a function.

    Raises InputError for a class that is not derived from `Agent`, or lacks a method.
    """
    target = component.load()
    if not isinstance(target, type):
        return Agent
    if not issubclass(target, Agent):
        raise _no_agent(component, f"{component.target} is not derived from it")
    if inspect.isabstract(target):
        missing = sorted(target.__abstractmethods__)
        raise _no_agent(component, f"{component.target} does not define {', '.join(missing)}")
    return target


def build_agent(component: Component, ranks: int = 1, **runtime: Any) -> Agent:
    """Build the agent of one of `ranks` ranks; runtime: what else it is built with.

    Raises InputError where `component` makes no agent, or one that cannot be trained by so many ranks.
    """
    agent_class(component)
    agent = for_rank(component, ranks).build(**runtime)
    if not isinstance(agent, Agent):
        raise _no_agent(component, f"{component.target} returns a {type(agent).__name__}")
    return agent


def for_rank(component: Component, ranks: int) -> Component:
    """Return the agent of one of `ranks` ranks. Raises InputError where several cannot train it together."""
    if ranks == 1:
        return component
    kind = agent_class(component)
    if not kind.TRAITS.ranks:
        raise InputError(
            f"agent: {component.target} cannot learn on several ranks of torchrun. Use agent=ppo, a2c, "
            "sarsa, pqn, dqn, sac, tqc, iql, td3 or ddpg, or start labrl without torchrun.",
            code="unsupported",
            key="agent",
        )
    return dataclasses.replace(component, config=kind.for_rank(component.config, ranks))


def divided(
    options: Options, name: str, ranks: int, parent: str = "agent", sequence_length: int = 1
) -> Options:
    """Return `options` with the equal part of one rank of their option `name`.

    parent: key of the options; sequence_length: steps that a rank learns from together. Raises InputError
    where the number is no multiple of the ranks times that length.
    """
    number, unit = vars(options)[name], ranks * sequence_length
    if number % unit:
        sequences = f" times the {sequence_length} steps of a sequence" if sequence_length > 1 else ""
        near = number // unit + 1 if sequence_length > 1 else max(number // unit, 1)
        raise InputError(
            f"{parent}.{name} counts over all ranks and must be a multiple of {unit}, their number {ranks} "
            f"(torchrun's --nproc-per-node times --nnodes){sequences}, got {number}. Set "
            f"{parent}.{name}={near * unit}.",
            code="range",
            key=f"{parent}.{name}",
        )
    changed: Any = dataclasses.replace(options, **{name: number // ranks})  # type: ignore[type-var]
    return changed


def _no_agent(component: Component, why: str) -> InputError:
    return InputError(
        f"agent._target_={component.target} must name a class derived from labrl.agents.agent.Agent: {why}. "
        "docs/how-to/extend.md shows one.",
        code="target",
        key="agent._target_",
    )


class NonFiniteError(Exception):
    """A loss, a gradient or a weight is no longer a finite number, so that training cannot continue."""

    def __init__(self, term: str, frame: int) -> None:
        super().__init__(
            f"{term} is not finite at frame {frame}. The last checkpoint before it is kept. "
            "Usual causes are a learning rate that is too high, rewards or observations of extreme size, and "
            "observations that are not finite, about which there is a warning above."
        )
        self.term = term
        self.frame = frame


def check_finite(frame: int, terms: Mapping[str, float]) -> None:
    """Raise NonFiniteError for the first of some terms that is not a finite number."""
    for term, value in terms.items():
        if not math.isfinite(value):
            raise NonFiniteError(term, frame)
