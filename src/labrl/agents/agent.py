"""Interface between an agent and the session that makes it act and learn."""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.component import Component
from labrl.errors import InputError

if TYPE_CHECKING:
    from labrl.learning.flat import FlatParameters
    from labrl.spaces import Spaces
    from labrl.step import Masks, Step

Options = TypeVar("Options")


@dataclass(slots=True)
class Observation:
    """Transformed observations for `act`, with action masks and episode-start flags."""

    array: NDArray
    """[num_envs, *obs]"""
    mask: Masks = None
    """Valid actions, [num_envs, flags]; None if all are always valid."""
    start: NDArray[np.bool_] | None = None
    """Whether each observation is the first of its episode, [num_envs]. Evaluation provides it, to reset
    recurrent states; None in training, where `Agent.observe` reports which episodes are over."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Capabilities of a class of agents besides acting, observing and learning.

    A session calls the methods that a trait names only if the class declares the trait.
    """

    actions: tuple[type[gym.Space[Any]], ...] = ()
    """Classes of action spaces that the agent supports; () if only the agent's method `check` knows them."""
    masks: bool = False
    """Whether the agent respects the action masks of an environment."""
    greedy: bool = False
    """Whether the agent's policy has a best action, which `greedy_action` returns."""
    policy_numbers: bool = False
    """Whether the agent has `policy_numbers`, which returns the numbers from which actions are drawn."""
    exports: bool = False
    """Whether the agent's policy can be exported as one module, which `actor` returns."""
    stochastic: bool = True
    """Whether the agent's policy samples actions, so that `actor(sampled=True)` is available."""
    data_parallel: bool = False
    """Whether several ranks of torchrun can train the agent together; `for_rank` divides its options."""
    learns_from_copies: bool = False
    """Whether the agent can learn from the actions of a copy with older weights (off-policy learning), using
    `decision` and `adopt`."""
    shares_weights: bool = False
    """Whether the sessions of a trial can share the agent's `weights` and train them together."""
    graphs: bool = False
    """Whether the agent's updates read and change only tensors at fixed addresses, so that a CUDA graph can
    repeat the updates."""
    wide: bool = False
    """Whether the agent makes many updates of wide networks, so that a GPU is faster even without images."""
    loss_is_mean: bool = True
    """Whether the gradient over a minibatch is the mean of the gradients over its halves."""


class Actor(nn.Module):
    """A policy that maps network inputs to actions with tensors only, so that it can be exported."""

    network: Any
    """Network that chooses the actions."""
    state_size = 0
    """Size of the recurrent state, 0 if there is none."""

    def layout(self, observation: Any) -> Tensor:
        """Return the network's input. observation: a tensor [batch, *obs], or a dict of such tensors."""
        read: Tensor = self.network.layout(observation)
        return read.float() if read.dtype == torch.float64 else read

    def forward(
        self, inputs: Tensor, mask: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return actions for the environment, the network outputs that determined them, and the next state.

        inputs: observations in the network's layout, [batch, ...]; mask: valid actions, [batch, flags], None
        if all are valid; state: recurrent state, [batch, state_size], None if there is none. The results have
        the shapes [batch, *action], [batch, numbers] and [batch, state_size].
        """
        raise NotImplementedError


class Pauses(Protocol):
    """Phases in which the environments are not played and the agent only learns."""

    @property
    def collecting(self) -> bool:
        """Whether the environments are currently played."""

    @property
    def frames_played(self) -> int:
        """Number of frames so far in which the environments were played."""


class Agent(ABC):
    """Acts, observes the outcome, and learns when an update is due.

    Built as `Target(config, spaces=Spaces, clock=Clock, streams=Streams, compute=Compute)`. An agent does not
    depend on environments, sessions or files. A class without an attribute `Config` receives its options as
    keyword arguments instead of `config`.
    """

    NAME: ClassVar[str] = ""
    """Name of the agent in messages; '' to use the path of its class."""
    TRAITS: ClassVar[Traits] = Traits()
    pauses: Pauses | None = None
    """Phases in which the environments are not played; None if there are none."""

    @classmethod  # noqa: B027 - may be left out
    def check_config(cls, config: Any, env: Any) -> None:
        """Raise InputError if the options contradict the environment's. Called before anything is built."""

    @classmethod
    def fits(cls, space: gym.Space[Any]) -> bool:
        """Return whether the agent supports an action space."""
        return isinstance(space, cls.TRAITS.actions)

    @classmethod  # noqa: B027 - may be left out
    def check(cls, config: Any, spaces: Spaces) -> None:
        """Raise InputError for unsupported options and spaces. Called before anything is built."""

    @classmethod
    def for_rank(cls, config: Any, ranks: int) -> Any:
        """Return one rank's share of the options. Raises InputError if they cannot be divided equally."""
        return config

    @abstractmethod
    def act(self, observation: Observation) -> NDArray:
        """Return actions for the environments. [num_envs, ...]"""

    @abstractmethod
    def observe(self, step: Step) -> None:
        """Receive the outcome of the last actions, as the learner sees it."""

    @abstractmethod
    def learn(self) -> int:
        """Make the updates that are due. Returns the number of optimizer updates made.

        The clock has not counted the current step yet: code that is timed by frames adds the frames of a
        vector step to `clock.frame`, as `Experience.due` does.
        """

    @abstractmethod
    def evaluation_action(self, observation: Observation, generator: np.random.Generator) -> NDArray:
        """Return the policy's actions in evaluation, sampled with `generator`. [num_envs, ...]"""

    def greedy_action(self, observation: Observation) -> NDArray:
        """Return the policy's best actions, without random numbers. [num_envs, ...]"""
        raise NotImplementedError

    def policy_numbers(self, observation: Observation) -> dict[str, NDArray]:
        """Return the numbers from which actions are drawn: probabilities, or means and standard deviations.

        [num_envs, ...] each
        """
        raise NotImplementedError

    def actor(self, sampled: bool) -> Actor:
        """Return the policy as one module, which shares the agent's weights.

        sampled: whether actions are drawn; otherwise they are the actions of `greedy_action`.
        """
        raise NotImplementedError

    def decision(self) -> dict[str, NDArray]:
        """Return the results of the last `act`, to be sent to the learner's process. [num_envs, ...] each

        They include values that only the agent knows, such as recurrent states and unconverted actions.
        """
        raise NotImplementedError

    def adopt(self, observation: Observation, decision: Mapping[str, NDArray]) -> None:
        """Register a remote copy's actions for `observation`; the next `observe` receives their outcome."""
        raise NotImplementedError

    @property
    def weights(self) -> FlatParameters:
        """All weights, for sessions that train them together (`meta.distributed`)."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return the learning columns of a training row: always the same keys, nan where unknown.

        The call must not change the agent's state: it is made for the final row of a run, which a run with a
        larger budget does not write.
        """
        return {}

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks by name, for summaries and weight norms."""
        return {}

    def followers(self) -> dict[str, str]:
        """Return which modules follow another one, as target networks do: {name: name of the other one}.

        When weights are loaded from another run, a module that follows another one receives the weights of
        the other one.
        """
        return {}

    def acting_modules(self) -> dict[str, nn.Module]:
        """Return the entries of `modules` that choose actions.

        A copy of the agent in another process acts with only these modules, the clock and the transforms.
        """
        return self.modules()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of the agent, except its random streams."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - may be left out
        """Restore a saved state."""

    def close(self) -> None:  # noqa: B027 - may be left out
        """Stop background threads and processes."""


def agent_class(component: Component) -> type[Agent]:
    """Return the class that `component` names; if it names a function, `Agent`, which has no traits.

    Raises InputError for a class that is not derived from `Agent` or lacks a method.
    """
    target = component.load()
    if not isinstance(target, type):
        return Agent
    if not issubclass(target, Agent):
        raise no_agent(component, f"{component.target} is not derived from it")
    if inspect.isabstract(target):
        missing = sorted(target.__abstractmethods__)
        raise no_agent(component, f"{component.target} does not define {', '.join(missing)}")
    return target


def divide_option(
    options: Options, name: str, ranks: int, parent: str = "agent", sequence_length: int = 1
) -> Options:
    """Return `options` for one rank, with option `name` divided by the number of ranks.

    parent: key of the options; sequence_length: number of steps in a sequence. Raises InputError unless the
    option's value is a multiple of the number of ranks times the sequence length.
    """
    number, unit = vars(options)[name], ranks * sequence_length
    if number % unit:
        sequences = f" in sequences of {sequence_length} steps" if sequence_length > 1 else ""
        near = number // unit + 1 if sequence_length > 1 else max(number // unit, 1)
        raise InputError.value(
            f"{parent}.{name}",
            number,
            f"be a multiple of {unit}, because it is divided among all {ranks} ranks (torchrun's "
            f"--nproc-per-node times --nnodes){sequences}",
            fix=f"{parent}.{name}={near * unit}",
        )
    changed: Any = dataclasses.replace(options, **{name: number // ranks})  # type: ignore[type-var]
    return changed


def no_agent(component: Component, why: str) -> InputError:
    """Return the error for a class that is not a complete agent."""
    return InputError.about(
        f"agent._target_={component.target}",
        f"it must name a class derived from labrl.agents.agent.Agent, but {why}",
        "See docs/how-to/extend.md for an example.",
        code="target",
    )


def wrong_statistics(agent: Agent, where: str, names: Sequence[str], count: int) -> InputError:
    """Return the error for a loss whose number of statistics differs from the number of their names.

    where: attribute of the agent's class that holds the names; count: number of statistics returned.
    """
    kind = type(agent)
    return InputError.about(
        f"agent._target_={kind.__module__}.{kind.__qualname__}",
        f"its loss returned {count} statistics, but {where} has {len(names)} names: {', '.join(names)}",
        "Return one statistic for each name.",
        code="target",
    )


def joined(agent: Agent, *parts: Mapping[str, float] | Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Return the columns of all parts. Raises InputError, which names the agent's class, if two columns have
    the same name."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items() if isinstance(part, Mapping) else part:
            if name in found:
                kind = type(agent)
                raise InputError.about(
                    f"agent._target_={kind.__module__}.{kind.__qualname__}",
                    f"two of its columns in train.csv have the name {name!r}",
                    "Choose another name for your statistic.",
                    code="target",
                )
            found[name] = value
    return found


class NonFiniteError(Exception):
    """A loss, a gradient or a weight is no longer finite, so training cannot continue."""

    def __init__(self, term: str, frame: int) -> None:
        super().__init__(
            f"{term} is not finite at frame {frame}. The last checkpoint before that frame is kept. "
            "Usual causes are a learning rate that is too high, and rewards or observations of extreme size."
        )
        self.term = term
        self.frame = frame


def check_finite(frame: int, terms: Mapping[str, float]) -> None:
    """Raise NonFiniteError for the first term that is not finite."""
    for term, value in terms.items():
        if not math.isfinite(value):
            raise NonFiniteError(term, frame)
