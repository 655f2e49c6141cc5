"""The learner's view of what the environment gives: transforms of observations and rewards.

Statistics are updated when training experience is collected, and frozen in evaluation. What a
transform does never enters a return: returns are counted by the environment, before any transform.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from labrl.agents.running_moments import RunningMoments
from labrl.config.component import Component, lacking
from labrl.config.types import PositiveFloat, PositiveInt, Probability
from labrl.errors import InputError
from labrl.networks.ranks import ALONE, Ranks
from labrl.networks.spaces import Spaces, is_image
from labrl.step import Step


class Transform(Protocol):
    """One part of the learner's view. Derived from `Identity`, it defines only what it changes."""

    def observation(self, observation: NDArray) -> NDArray:
        """The learner's view of observations, [num_envs, *obs]; statistics stay as they are."""
        ...

    def collect(self, observation: NDArray) -> None:
        """Take fresh training observations into the statistics, [num_envs, *obs]."""
        ...

    def reward(self, step: Step) -> NDArray:
        """The learner's view of the rewards of a training step, [num_envs]; statistics are updated."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What has to be remembered."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved state."""
        ...


class Identity:
    """Changes nothing and remembers nothing; transforms override what they change."""

    def observation(self, observation: NDArray) -> NDArray:
        """As it is."""
        return observation

    def collect(self, observation: NDArray) -> None:
        """Nothing to remember."""

    def reward(self, step: Step) -> NDArray:
        """As it is."""
        return step.reward

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


@dataclass(kw_only=True)
class NormalizeObservationConfig:
    """Observations with mean 0 and variance 1 over all that was collected."""

    clip: PositiveFloat
    """Largest magnitude after normalization, in standard deviations, > 0."""
    epsilon: PositiveFloat
    """Added to the variance, > 0."""
    window: PositiveInt | None
    """Observations after which older ones fade from the statistics, >= 1; null: never."""


class NormalizeObservation(Identity):
    """Running normalization of vector observations."""

    Config = NormalizeObservationConfig

    def __init__(self, config: NormalizeObservationConfig, spaces: Spaces) -> None:
        shape = spaces.observation.shape
        if shape is None or not _is_real(spaces.observation):
            raise InputError(
                "transforms.observation: NormalizeObservation needs vectors of real numbers, and this "
                f"environment's observations are {spaces.observation}. Set transforms.observation=null.",
                code="unsupported",
                key="transforms.observation",
            )
        self._config, self.moments = config, RunningMoments(shape, config.window)
        self._refresh()

    def __new__(cls, config: NormalizeObservationConfig, spaces: Spaces) -> Any:
        """Of several inputs, `NormalizeInputs`."""
        several = isinstance(spaces.observation, gym.spaces.Dict)
        return NormalizeInputs(config, spaces) if several else super().__new__(cls)

    def _refresh(self) -> None:
        self._mean = self.moments.mean.astype(np.float32)
        self._scale = (1 / np.sqrt(self.moments.variance + self._config.epsilon)).astype(np.float32)

    def observation(self, observation: NDArray) -> NDArray:
        """Normalized and clipped, float32. [num_envs, *obs]"""
        # A mean in float32 is no mean of numbers that are large beside their deviation.
        mean = self.moments.mean if observation.dtype == np.float64 else self._mean
        scaled = np.clip((observation - mean) * self._scale, -self._config.clip, self._config.clip)
        return scaled.astype(np.float32, copy=False)

    def collect(self, observation: NDArray) -> None:
        """Update mean and variance. [num_envs, *obs]"""
        self.moments.update(observation)
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        """Sums so far."""
        return self.moments.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved sums."""
        self.moments.load_state_dict(state)
        self._refresh()


class NormalizeInputs(Identity):
    """The same of each input that is a vector of real numbers; images and choices stay as they are."""

    def __init__(self, config: NormalizeObservationConfig, spaces: Spaces) -> None:
        inputs = spaces.observation.spaces  # type: ignore[attr-defined]  # of a Dict
        self.parts = {
            name: NormalizeObservation(config, dataclasses.replace(spaces, observation=inner))
            for name, inner in inputs.items()
            if _is_real(inner)
        }
        if not self.parts:
            raise InputError(
                "transforms.observation: NormalizeObservation needs vectors of real numbers, and none of "
                f"this environment's observations ({', '.join(inputs)}) is one. Set "
                "transforms.observation=null.",
                code="unsupported",
                key="transforms.observation",
            )

    def observation(self, observation: NDArray) -> NDArray:
        """With the normalized vectors in their places. [num_envs]"""
        observation = observation.copy()
        for name, part in self.parts.items():
            observation[name] = part.observation(observation[name])
        return observation

    def collect(self, observation: NDArray) -> None:
        """Update means and variances. [num_envs]"""
        for name, part in self.parts.items():
            part.collect(observation[name])

    def state_dict(self) -> dict[str, Any]:
        """Sums so far, by input."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved sums."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def _is_real(space: gym.Space[Any]) -> bool:
    return (
        isinstance(space, gym.spaces.Box) and not is_image(space) and np.issubdtype(space.dtype, np.floating)
    )


@dataclass(kw_only=True)
class NormalizeRewardConfig:
    """Rewards divided by the standard deviation of the discounted return."""

    gamma: Probability
    """Discount factor of the running return whose deviation is the scale, in [0, 1]."""
    clip: PositiveFloat
    """Largest magnitude after scaling, > 0."""
    epsilon: PositiveFloat
    """Added to the variance, > 0."""
    window: PositiveInt | None
    """Rewards after which older ones fade from the statistics, >= 1; null: never."""


class NormalizeReward(Identity):
    """Scaling of rewards without shifting them (Engstrom et al., 2020, arXiv:2005.12729, appendix A.1)."""

    Config = NormalizeRewardConfig

    def __init__(self, config: NormalizeRewardConfig, spaces: Spaces) -> None:
        self._config, self.moments = config, RunningMoments((), config.window)
        self._return = np.zeros(spaces.num_envs)

    def reward(self, step: Step) -> NDArray:
        """Scaled and clipped, float32. [num_envs]"""
        self._return = self._return * self._config.gamma + step.reward
        self.moments.update(self._return)
        self._return[step.terminated | step.episode_over] = 0.0
        scale = 1 / np.sqrt(self.moments.variance + self._config.epsilon)
        return np.clip(step.reward * scale, -self._config.clip, self._config.clip).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Sums and the returns of the episodes under way."""
        return {"moments": self.moments.state_dict(), "return": self._return.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved sums."""
        self.moments.load_state_dict(state["moments"])
        self._return = np.array(state["return"], np.float64)


@dataclass(kw_only=True)
class SignRewardConfig:
    """Rewards reduced to -1, 0 or 1."""


class SignReward(Identity):
    """The sign of the reward (Mnih et al., 2015), so that one set of hyperparameters fits all Atari games."""

    Config = SignRewardConfig

    def __init__(self, config: SignRewardConfig, spaces: Spaces) -> None:
        pass

    def reward(self, step: Step) -> NDArray:
        """[num_envs], in {-1, 0, 1}."""
        return np.sign(step.reward)


@dataclass(kw_only=True)
class ScaleRewardConfig:
    """Rewards times a constant."""

    scale: float
    """What every reward is multiplied by."""


class ScaleReward(Identity):
    """A change of the unit of reward."""

    Config = ScaleRewardConfig

    def __init__(self, config: ScaleRewardConfig, spaces: Spaces) -> None:
        self._scale = np.float32(config.scale)

    def reward(self, step: Step) -> NDArray:
        """[num_envs]."""
        return step.reward * self._scale


@dataclass(kw_only=True)
class ShiftRewardConfig:
    """Rewards plus a constant."""

    shift: float
    """What is added to every reward."""


class ShiftReward(Identity):
    """A bonus or a price for each step: of weight wherever an episode can end early or late."""

    Config = ShiftRewardConfig

    def __init__(self, config: ShiftRewardConfig, spaces: Spaces) -> None:
        self._shift = np.float32(config.shift)

    def reward(self, step: Step) -> NDArray:
        """[num_envs]."""
        return step.reward + self._shift


@dataclass(kw_only=True)
class ClipRewardConfig:
    """Rewards within bounds."""

    low: float
    """The smallest reward that the learner sees."""
    high: float
    """The largest, > low."""

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"must have low < high, got low={self.low:g} and high={self.high:g}")


class ClipReward(Identity):
    """What lies beyond the bounds becomes the bound, so that no single reward outweighs all others."""

    Config = ClipRewardConfig

    def __init__(self, config: ClipRewardConfig, spaces: Spaces) -> None:
        self._low, self._high = np.float32(config.low), np.float32(config.high)

    def reward(self, step: Step) -> NDArray:
        """[num_envs]."""
        return np.clip(step.reward, self._low, self._high)


class Lent(Identity):
    """A user's own transform, which may write into what it is given and into what it gave before."""

    def __init__(self, part: Transform) -> None:
        self._part = part

    def observation(self, observation: NDArray) -> NDArray:
        """A copy of its view of a copy. [num_envs, *obs]"""
        return np.array(self._part.observation(observation.copy()))

    def collect(self, observation: NDArray) -> None:
        """Let it take in a copy. [num_envs, *obs]"""
        self._part.collect(observation.copy())

    def reward(self, step: Step) -> NDArray:
        """A copy of its view of a copy. [num_envs]"""
        return np.array(self._part.reward(step.copied()))


def _is_own(target: str) -> bool:
    """Whether a class is labrl's, whose parts write into no array that they share."""
    return target.partition(".")[0] == __name__.partition(".")[0]


def _moments_of(transform: Transform) -> list[RunningMoments]:
    """Its statistics, and those of its `parts`."""
    parts = [transform, *getattr(transform, "parts", {}).values()]
    found = [getattr(part, "moments", None) for part in parts]
    return [moments for moments in found if isinstance(moments, RunningMoments)]


class Transforms:
    """All transforms of a session, in order."""

    def __init__(self, parts: Mapping[str, Transform], lends: bool = False) -> None:
        """lends: whether the agent gets copies, because it may write into them."""
        self._parts, self._lends = dict(parts), lends
        self._active: Sequence[Transform] = [
            part if _is_own(type(part).__module__) else Lent(part) for part in self._parts.values()
        ]

    @classmethod
    def build(
        cls,
        components: Mapping[str, Component | None],
        spaces: Spaces,
        ranks: Ranks = ALONE,
        agent: Component | None = None,
    ) -> Transforms:
        """Build the transforms of a configuration. Raises InputError for one that does not fit the spaces.

        ranks: over which the statistics of those are taken that have `moments`, or `parts` that do. agent:
        who sees what they make, and gets copies if its class is a user's own.
        """
        parts: dict[str, Transform] = {}
        for name, component in components.items():
            if component is None:
                continue
            parts[name] = component.build(spaces=spaces)
            if missing := lacking(parts[name], Transform):
                raise InputError(
                    f"transforms.{name}: {component.target} has no {', '.join(missing)}. Derive it from "
                    "labrl.agents.transforms.Identity, which defines every method of a transform.",
                    code="target",
                    key=f"transforms.{name}._target_",
                )
            for moments in _moments_of(parts[name]):
                moments.ranks = ranks
        return cls(parts, lends=agent is not None and not _is_own(agent.target))

    @property
    def drifting(self) -> list[str]:
        """Names of those whose view of the same step changes, because their statistics do."""
        return [name for name, part in self._parts.items() if _moments_of(part)]

    def frozen(self, observation: NDArray) -> NDArray:
        """The view in evaluation: no statistics change. [num_envs, *obs]"""
        for part in self._active:
            observation = part.observation(observation)
        return observation.copy() if self._lends else observation

    def collected(self, observation: NDArray) -> NDArray:
        """The view of fresh training observations, which enter the statistics first. [num_envs, *obs]"""
        for part in self._active:
            part.collect(observation)
            observation = part.observation(observation)
        return observation.copy() if self._lends else observation

    def step(self, step: Step) -> Step:
        """The learner's view of a training step."""
        if not self._active:
            return step.copied() if self._lends else step
        same = step.next_observation is step.observation
        view = dataclasses.replace(step, observation=self.collected(step.observation))
        view.next_observation = view.observation if same else self.frozen(step.next_observation)
        for part in self._active:
            view.reward = part.reward(view)
        return view.copied() if self._lends else view

    def state_dict(self) -> dict[str, Any]:
        """The state of each part by its name in the configuration."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved statistics."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
