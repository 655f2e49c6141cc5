"""Transforms of observations and rewards, which define what the learner sees.

Their statistics are updated while training experience is collected, and frozen in evaluation. Transforms do
not affect returns, which the environment computes before any transform.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.errors import InputError
from labrl.learning.ranks import ALONE, Ranks
from labrl.networks.layers import Array, cast, library_of
from labrl.spaces import Spaces, array_dtype
from labrl.step import Step
from labrl.types import PositiveFloat, PositiveInt, Probability


class RunningMoments:
    """Mean and variance of a stream of batches (Chan et al., 1979, "Updating formulae", eq. 1.5)."""

    def __init__(self, shape: tuple[int, ...], window: int | None = None) -> None:
        """window: largest weight of all older samples, as a number of samples; None: they count fully."""
        self.count, self._window = 0.0, window
        self.ranks = ALONE
        """Ranks whose samples are included; each contributes the same number."""
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    def update(self, batch: NDArray) -> None:
        """Add samples. [n, *shape]"""
        batch = np.asarray(batch, np.float64)
        n, mean = len(batch), batch.mean(0)
        squares = ((batch - mean) ** 2).sum(0)
        if not self.ranks.alone:
            of_all = self.ranks.all_gather((mean, squares))
            means = np.array([each for each, _ in of_all])
            mean, within = means.mean(0), np.sum([each for _, each in of_all], axis=0)
            squares = within + n * ((means - mean) ** 2).sum(0)
            n *= len(of_all)
        difference, total = mean - self.mean, self.count + n
        self._squares += squares + difference**2 * (self.count * n / total)
        self.mean += difference * (n / total)
        self.count = total
        if self._window is not None and total > self._window:
            # Old samples fade: after `window` further ones, their weight has decreased by a factor of e.
            self._squares *= self._window / total
            self.count = float(self._window)

    @property
    def variance(self) -> NDArray:
        """Population variance; 1 if there are fewer than two samples."""
        return self._squares / self.count if self.count > 1 else np.ones_like(self._squares)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self._squares.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved sums."""
        self.count = float(state["count"])
        self.mean = np.array(state["mean"], np.float64)
        self._squares = np.array(state["squares"], np.float64)


class Transform:
    """Transform without effect or state, the base of all transforms.

    Built as `Target(config, spaces=Spaces)`.
    """

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """Return the space of the transformed observations. space: flat space of the given observations."""
        return space

    def observation(self, observation: NDArray) -> NDArray:
        """Return the transformed observations, without updating statistics. [num_envs, *obs]"""
        return observation

    def forward_torch(self, observation: Any) -> Any:
        """Return the transformed observations as tensors, for an exported policy.

        observation: a tensor [batch, *obs], or a dict of tensors for several inputs. Raises InputError if a
        class overrides `observation` but not this method.
        """
        if type(self).observation is not Transform.observation:
            raise InputError.unsupported(
                "transforms",
                f"{type(self).__qualname__} cannot be exported",
                "Define a method forward_torch(observation) that transforms tensors as observation() "
                "transforms arrays",
            )
        return observation

    def collect(self, observation: NDArray) -> None:
        """Update the statistics with new training observations. [num_envs, *obs]"""

    def reward(self, step: Step) -> NDArray:
        """Return the transformed rewards of a training step, and update statistics. [num_envs]"""
        return step.reward

    def statistics(self) -> Sequence[RunningMoments]:
        """Return the running statistics. While they change, the results for equal steps change, too."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of the transform."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""


@dataclass(kw_only=True)
class NormalizeObservationConfig:
    """Normalization of observations to mean 0 and variance 1 over all collected observations."""

    clip: PositiveFloat
    """Largest magnitude after normalization, in standard deviations, > 0."""
    epsilon: PositiveFloat
    """Number added to the variance, > 0."""
    window: PositiveInt | None
    """Number of observations after which older ones fade from the statistics, >= 1; null: never."""


class NormalizeObservation(Transform):
    """Running normalization of arrays of numbers.

    If there are several inputs, each array of numbers is normalized separately. Flags, discrete inputs and
    bytes, which networks scale to [0, 1], are unchanged.
    """

    Config = NormalizeObservationConfig

    def __init__(self, config: NormalizeObservationConfig, spaces: Spaces) -> None:
        space = spaces.observation
        inputs = space.spaces if isinstance(space, gym.spaces.Dict) else {"observation": space}
        self._config = config
        boxes = {name: inner for name, inner in inputs.items() if _is_number(inner)}
        self._moments = {name: RunningMoments(box.shape or (), config.window) for name, box in boxes.items()}
        # float32 is too coarse for the mean of numbers that are much larger than their standard deviation.
        self._types = {name: np.result_type(box.dtype, np.float32) for name, box in boxes.items()}
        self._dtype = array_dtype(self.space(space))
        if not self._moments:
            raise InputError.unsupported(
                "transforms.observation",
                "NormalizeObservation needs numbers other than bytes and flags, but this environment's "
                f"observations are {space}",
                "transforms.observation=null",
            )

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """Return the space with Boxes of float32 instead of those of numbers."""
        if isinstance(space, gym.spaces.Dict):
            return gym.spaces.Dict({name: self.space(inner) for name, inner in space.spaces.items()})
        return gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32) if _is_number(space) else space

    def observation(self, observation: Any) -> Any:
        """Return normalized, clipped observations in float32, as arrays or tensors. [num_envs, *obs]"""
        if self._dtype.names is None:
            return self._normalized(observation, "observation")
        exported = isinstance(observation, Mapping)
        view: Any = {} if exported else np.empty(len(observation), self._dtype)
        for name in self._dtype.names:
            given = observation[name]
            view[name] = self._normalized(given, name) if name in self._moments else given
        return view

    forward_torch = observation

    def collect(self, observation: NDArray) -> None:
        """Update mean and variance. [num_envs, *obs]"""
        for name, moments in self._moments.items():
            moments.update(observation if self._dtype.names is None else observation[name])

    def statistics(self) -> Sequence[RunningMoments]:
        """Return mean and variance of each vector."""
        return list(self._moments.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of each vector so far."""
        return {name: moments.state_dict() for name, moments in self._moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved sums."""
        for name, moments in self._moments.items():
            moments.load_state_dict(state[name])

    def _normalized(self, vector: Array, name: str) -> Array:
        as_constant, clip, moments = library_of(vector).asarray, self._config.clip, self._moments[name]
        mean = as_constant(moments.mean.astype(self._types[name]))
        scale = as_constant((1 / np.sqrt(moments.variance + self._config.epsilon)).astype(np.float32))
        return cast(((vector - mean) * scale).clip(-clip, clip), np.float32)


def _is_number(space: gym.Space[Any]) -> bool:
    """Return whether a space is an array of numbers other than bytes and flags."""
    return isinstance(space, gym.spaces.Box) and space.dtype.kind in "iuf" and space.dtype != np.uint8


@dataclass(kw_only=True)
class NormalizeRewardConfig:
    """Division of rewards by the standard deviation of the discounted return."""

    gamma: Probability
    """Discount factor, in [0, 1]. Rewards are divided by the running standard deviation of the return with
    this discount."""
    clip: PositiveFloat
    """Largest magnitude after scaling, > 0."""
    epsilon: PositiveFloat
    """Number added to the variance, > 0."""
    window: PositiveInt | None
    """Number of rewards after which older ones fade from the statistics, >= 1; null: never."""


class NormalizeReward(Transform):
    """Scales rewards without shifting them (Engstrom et al., 2020, arXiv:2005.12729, appendix A.1)."""

    Config = NormalizeRewardConfig

    def __init__(self, config: NormalizeRewardConfig, spaces: Spaces) -> None:
        self._config, self._moments = config, RunningMoments((), config.window)
        self._return = np.zeros(spaces.num_envs)

    def reward(self, step: Step) -> NDArray:
        """Return the scaled and clipped rewards in float32. [num_envs]"""
        self._return = self._return * self._config.gamma + step.reward
        self._moments.update(self._return)
        self._return[step.terminated | step.episode_over] = 0.0
        scale = 1 / np.sqrt(self._moments.variance + self._config.epsilon)
        return np.clip(step.reward * scale, -self._config.clip, self._config.clip).astype(np.float32)

    def statistics(self) -> Sequence[RunningMoments]:
        """Return mean and variance of the discounted return."""
        return [self._moments]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far and the returns of the unfinished episodes."""
        return {"moments": self._moments.state_dict(), "return": self._return.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved sums."""
        self._moments.load_state_dict(state["moments"])
        self._return = np.array(state["return"], np.float64)


@dataclass(kw_only=True)
class SignRewardConfig:
    """Reduction of rewards to their sign: -1, 0 or 1."""


class SignReward(Transform):
    """Reduces rewards to their sign (Mnih et al., 2015), so that one configuration fits all Atari games."""

    Config = SignRewardConfig

    def __init__(self, config: SignRewardConfig, spaces: Spaces) -> None:
        pass

    def reward(self, step: Step) -> NDArray:
        """Return -1, 0 or 1. [num_envs]"""
        return np.sign(step.reward)


@dataclass(kw_only=True)
class ScaleRewardConfig:
    """A fixed scale of rewards, clip(scale * r + shift, low, high)."""

    scale: float
    """Factor by which every reward is multiplied, not 0; 1: no scaling."""
    shift: float
    """Constant added to every scaled reward. It changes the task if episodes vary in length. 0: no shift."""
    low: float | None
    """Lower bound to which results are clipped, so that no single reward dominates; null: no bound."""
    high: float | None
    """Upper bound to which results are clipped, > low; null: no bound."""

    def __post_init__(self) -> None:
        if self.scale == 0:
            raise ValueError("must have a scale other than 0, because 0 makes all rewards equal")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"must have low < high, got low={self.low:g} and high={self.high:g}")


class ScaleReward(Transform):
    """Scales, shifts and clips rewards by constants, in this order."""

    Config = ScaleRewardConfig

    def __init__(self, config: ScaleRewardConfig, spaces: Spaces) -> None:
        self._scale, self._shift = np.float32(config.scale), np.float32(config.shift)
        self._low, self._high = config.low, config.high

    def reward(self, step: Step) -> NDArray:
        """Return clip(scale * r + shift, low, high). [num_envs]"""
        reward = step.reward * self._scale + self._shift
        return reward if self._low is self._high is None else np.clip(reward, self._low, self._high)


class _Copying(Transform):
    """Wrapper that copies arrays for a user's transform, which may modify what it received or returned."""

    def __init__(self, part: Transform) -> None:
        self._part = part

    def observation(self, observation: NDArray) -> NDArray:
        """Return a copy of the result for a copy of the observations. [num_envs, *obs]"""
        return np.array(self._part.observation(observation.copy()))

    def collect(self, observation: NDArray) -> None:
        """Update the statistics with a copy of the observations. [num_envs, *obs]"""
        self._part.collect(observation.copy())

    def reward(self, step: Step) -> NDArray:
        """Return a copy of the result for a copy of the step. [num_envs]"""
        return np.array(self._part.reward(step.copied()))


def _is_own(target: str) -> bool:
    """Return whether a class is part of labrl, whose classes do not modify shared arrays."""
    return target.partition(".")[0] == __name__.partition(".")[0]


class Transforms:
    """All transforms of a session, applied in order."""

    spaces: Spaces
    """Spaces of what the learner sees."""

    def __init__(self, parts: Mapping[str, Transform], copies: bool = False) -> None:
        """copies: whether the agent receives copies, because it may modify its inputs."""
        self._parts, self._copies = dict(parts), copies
        self._active: Sequence[Transform] = [
            part if _is_own(type(part).__module__) else _Copying(part) for part in self._parts.values()
        ]
        self.active = bool(self._active) or copies
        """Whether the learner sees a different step from the one that the environment returned."""

    @classmethod
    def build(
        cls,
        components: Mapping[str, Component | None],
        spaces: Spaces,
        ranks: Ranks = ALONE,
        agent: Component | None = None,
    ) -> Transforms:
        """Build the transforms of a configuration. Raises InputError for one that does not fit the spaces.

        ranks: ranks whose experience enters the statistics; agent: agent that receives the results, as copies
        if its class is not part of labrl.
        """
        parts: dict[str, Transform] = {}
        for name, component in components.items():
            if component is None:
                continue
            parts[name] = component.build(spaces=spaces)
            if not isinstance(parts[name], Transform):
                raise InputError.about(
                    f"transforms.{name}",
                    f"{component.target} must be derived from labrl.agents.transforms.Transform, which "
                    "defines all methods of a transform",
                    code="target",
                    key=f"transforms.{name}._target_",
                )
            spaces = dataclasses.replace(spaces, observation=parts[name].space(spaces.observation))
            for moments in parts[name].statistics():
                moments.ranks = ranks
        transforms = cls(parts, copies=agent is not None and not _is_own(agent.target))
        transforms.spaces = spaces
        return transforms

    @property
    def drifting(self) -> list[str]:
        """Names of the transforms whose results for equal steps change when their statistics do."""
        return [name for name, part in self._parts.items() if part.statistics()]

    def frozen(self, observation: NDArray) -> NDArray:
        """Return observations transformed as in evaluation, without updating statistics. [num_envs, *obs]"""
        for part in self._active:
            observation = part.observation(observation)
        return observation.copy() if self._copies else observation

    def forward_torch(self, observation: Any) -> Any:
        """Return the transformed observations as tensors, for an exported policy.

        Raises InputError for a transform that cannot be exported.
        """
        for part in self._parts.values():
            observation = part.forward_torch(observation)
        return observation

    def collected(self, observation: NDArray) -> NDArray:
        """Update the statistics with new observations, and transform these observations. [num_envs, *obs]"""
        for part in self._active:
            part.collect(observation)
            observation = part.observation(observation)
        return observation.copy() if self._copies else observation

    def step(self, step: Step) -> Step:
        """Return a training step as the learner sees it."""
        if not self._active:
            return step.copied() if self._copies else step
        same = step.next_observation is step.observation
        view = dataclasses.replace(step, observation=self.collected(step.observation))
        view.next_observation = view.observation if same else self.frozen(step.next_observation)
        for part in self._active:
            view.reward = part.reward(view)
        return view.copied() if self._copies else view

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each part by its name in the configuration."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Raises ValueError if it lacks the statistics of a part."""
        for name, part in self._parts.items():
            if name in state:
                part.load_state_dict(state[name])
            elif part.state_dict():
                raise ValueError(f"the checkpoint has no statistics for transforms.{name}")

    def part(self, name: str) -> tuple[str | None, dict[str, Any]]:
        """Return the class path and the state of the transform `name`; None and {} if there is none."""
        if name not in self._parts:
            return None, {}
        kind = type(self._parts[name])
        return f"{kind.__module__}.{kind.__qualname__}", self._parts[name].state_dict()

    def restore_part(self, name: str, state: Mapping[str, Any]) -> None:
        """Restore the saved state of one transform."""
        self._parts[name].load_state_dict(state)
