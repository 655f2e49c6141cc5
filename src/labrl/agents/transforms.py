"""The learner's view of what the environment gives: transforms of observations and rewards.

Statistics are updated when training experience is collected, and frozen in evaluation. What a transform does
never enters a return: returns are counted by the environment, before any transform.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labrl.component import Component
from labrl.errors import InputError
from labrl.learning.ranks import ALONE, Ranks
from labrl.spaces import Spaces, is_image
from labrl.step import Step
from labrl.types import PositiveFloat, PositiveInt, Probability


class RunningMoments:
    """Mean and variance of a stream of batches (Chan et al., 1979, "Updating formulae", eq. 1.5)."""

    def __init__(self, shape: tuple[int, ...], window: int | None = None) -> None:
        """window: number of samples as which older ones count at most; None: all count alike."""
        self.count, self._window = 0.0, window
        self.ranks = ALONE
        """Ranks whose samples are taken in too, the same number on each."""
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    def update(self, batch: NDArray) -> None:
        """Take in samples. [n, *shape]"""
        batch = np.asarray(batch, np.float64)
        n, mean = len(batch), batch.mean(0)
        squares = ((batch - mean) ** 2).sum(0)
        if not self.ranks.alone:
            of_all = self.ranks.gathered((mean, squares))
            means = np.array([each for each, _ in of_all])
            mean, within = means.mean(0), np.sum([each for _, each in of_all], axis=0)
            squares = within + n * ((means - mean) ** 2).sum(0)
            n *= len(of_all)
        difference, total = mean - self.mean, self.count + n
        self._squares += squares + difference**2 * (self.count * n / total)
        self.mean += difference * (n / total)
        self.count = total
        if self._window is not None and total > self._window:
            # Old samples fade: after `window` further ones they weigh 1/e of what they did.
            self._squares *= self._window / total
            self.count = float(self._window)

    @property
    def variance(self) -> NDArray:
        """Population variance; 1 before there are two samples."""
        return self._squares / self.count if self.count > 1 else np.ones_like(self._squares)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self._squares.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums."""
        self.count = float(state["count"])
        self.mean = np.array(state["mean"], np.float64)
        self._squares = np.array(state["squares"], np.float64)


class Identity:
    """A transform that changes nothing and remembers nothing: others derive from it.

    Built as `Target(config, spaces=Spaces)`.
    """

    def observation(self, observation: NDArray) -> NDArray:
        """Return the learner's view of observations; statistics stay as they are. [num_envs, *obs]"""
        return observation

    def in_graph(self, observation: Any) -> Any:
        """Return the same view of observations as tensors, in an exported policy.

        observation: a tensor [batch, *obs], or a dict of tensors for several inputs. Raises InputError where
        a class with an `observation` of its own does not define this.
        """
        if type(self).observation is not Identity.observation:
            raise InputError(
                f"transforms: {type(self).__qualname__} cannot be exported: define its method "
                "in_graph(observation), which does with tensors what observation() does with arrays",
                code="unsupported",
                key="transforms",
            )
        return observation

    def collect(self, observation: NDArray) -> None:
        """Take fresh training observations into the statistics. [num_envs, *obs]"""

    def reward(self, step: Step) -> NDArray:
        """Return the learner's view of the rewards of a training step; statistics are updated. [num_envs]"""
        return step.reward

    def statistics(self) -> Sequence[RunningMoments]:
        """Return the statistics that change the view of the same step as training goes on."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return what has to be remembered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


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
    """Running normalization of vectors of real numbers.

    Of several inputs, those that are such vectors are normalized, each for itself; images and choices stay as
    they are.
    """

    Config = NormalizeObservationConfig

    def __init__(self, config: NormalizeObservationConfig, spaces: Spaces) -> None:
        space = spaces.observation
        self._several = isinstance(space, gym.spaces.Dict)
        inputs = space.spaces if isinstance(space, gym.spaces.Dict) else {"observation": space}
        self._config = config
        self._moments = {
            name: RunningMoments(inner.shape or (), config.window)
            for name, inner in inputs.items()
            if isinstance(inner, gym.spaces.Box)
            and not is_image(inner)
            and np.issubdtype(inner.dtype, np.floating)
        }
        if not self._moments:
            raise InputError(
                "transforms.observation: NormalizeObservation needs vectors of real numbers, and this "
                f"environment's observations are {space}. Set transforms.observation=null.",
                code="unsupported",
                key="transforms.observation",
            )

    def observation(self, observation: NDArray) -> NDArray:
        """Normalize and clip to float32. [num_envs, *obs]"""
        if not self._several:
            return self._normalized(observation, self._moments["observation"])
        view = observation.copy()
        for name, moments in self._moments.items():
            view[name] = self._normalized(observation[name], moments)
        return view

    def in_graph(self, observation: Any) -> Any:
        """Normalize and clip tensors to float32. [batch, *obs], or a dict of such"""
        if not self._several:
            return self._normalized_tensor(observation, self._moments["observation"])
        seen = {name: self._normalized_tensor(observation[name], own) for name, own in self._moments.items()}
        return {**observation, **seen}

    def collect(self, observation: NDArray) -> None:
        """Update mean and variance. [num_envs, *obs]"""
        for name, moments in self._moments.items():
            moments.update(observation[name] if self._several else observation)

    def statistics(self) -> Sequence[RunningMoments]:
        """Return mean and variance of each vector."""
        return list(self._moments.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of each vector so far."""
        return {name: moments.state_dict() for name, moments in self._moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums."""
        for name, moments in self._moments.items():
            moments.load_state_dict(state[name])

    def _normalized_tensor(self, vector: Tensor, moments: RunningMoments) -> Tensor:
        mean = torch.from_numpy(moments.mean).to(vector.dtype)
        scaled = (vector - mean) * torch.from_numpy(self._scale(moments))
        return scaled.clamp(-self._config.clip, self._config.clip).float()

    def _scale(self, moments: RunningMoments) -> NDArray[np.float32]:
        return (1 / np.sqrt(moments.variance + self._config.epsilon)).astype(np.float32)

    def _normalized(self, vector: NDArray, moments: RunningMoments) -> NDArray:
        # A mean in float32 is no mean of numbers that are large beside their deviation.
        mean = moments.mean if vector.dtype == np.float64 else moments.mean.astype(np.float32)
        scale = self._scale(moments)
        scaled = np.clip((vector - mean) * scale, -self._config.clip, self._config.clip)
        return scaled.astype(np.float32, copy=False)


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
        self._config, self._moments = config, RunningMoments((), config.window)
        self._return = np.zeros(spaces.num_envs)

    def reward(self, step: Step) -> NDArray:
        """Scale and clip to float32. [num_envs]"""
        self._return = self._return * self._config.gamma + step.reward
        self._moments.update(self._return)
        self._return[step.terminated | step.episode_over] = 0.0
        scale = 1 / np.sqrt(self._moments.variance + self._config.epsilon)
        return np.clip(step.reward * scale, -self._config.clip, self._config.clip).astype(np.float32)

    def statistics(self) -> Sequence[RunningMoments]:
        """Return mean and variance of the discounted return."""
        return [self._moments]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far and the returns of the running episodes."""
        return {"moments": self._moments.state_dict(), "return": self._return.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums."""
        self._moments.load_state_dict(state["moments"])
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
        """Return -1, 0 or 1. [num_envs]"""
        return np.sign(step.reward)


@dataclass(kw_only=True)
class ScaleRewardConfig:
    """Rewards times a constant."""

    scale: float
    """Factor of every reward, not 0."""

    def __post_init__(self) -> None:
        if self.scale == 0:
            raise ValueError("must have a scale other than 0, which would make every reward 0")


class ScaleReward(Identity):
    """A change of the unit of reward."""

    Config = ScaleRewardConfig

    def __init__(self, config: ScaleRewardConfig, spaces: Spaces) -> None:
        self._scale = np.float32(config.scale)

    def reward(self, step: Step) -> NDArray:
        """Return scaled rewards. [num_envs]"""
        return step.reward * self._scale


@dataclass(kw_only=True)
class ShiftRewardConfig:
    """Rewards plus a constant."""

    shift: float
    """Constant added to every reward."""


class ShiftReward(Identity):
    """A bonus or a price for each step: of weight wherever an episode can end early or late."""

    Config = ShiftRewardConfig

    def __init__(self, config: ShiftRewardConfig, spaces: Spaces) -> None:
        self._shift = np.float32(config.shift)

    def reward(self, step: Step) -> NDArray:
        """Return shifted rewards. [num_envs]"""
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
    """Clips rewards to bounds, so that no single one outweighs all others."""

    Config = ClipRewardConfig

    def __init__(self, config: ClipRewardConfig, spaces: Spaces) -> None:
        self._low, self._high = np.float32(config.low), np.float32(config.high)

    def reward(self, step: Step) -> NDArray:
        """Return clipped rewards. [num_envs]"""
        return np.clip(step.reward, self._low, self._high)


class _Copying(Identity):
    """A user's own transform, which may write into arrays that it was given and that it returned."""

    def __init__(self, part: Identity) -> None:
        self._part = part

    def observation(self, observation: NDArray) -> NDArray:
        """Return a copy of its view of a copy. [num_envs, *obs]"""
        return np.array(self._part.observation(observation.copy()))

    def collect(self, observation: NDArray) -> None:
        """Let it take in a copy. [num_envs, *obs]"""
        self._part.collect(observation.copy())

    def reward(self, step: Step) -> NDArray:
        """Return a copy of its view of a copy. [num_envs]"""
        return np.array(self._part.reward(step.copied()))


def _is_own(target: str) -> bool:
    """Return whether a class is labrl's, whose parts write into no array that they share."""
    return target.partition(".")[0] == __name__.partition(".")[0]


class Transforms:
    """The transforms of a session, in order."""

    def __init__(self, parts: Mapping[str, Identity], copies: bool = False) -> None:
        """copies: whether the agent gets copies, because it may write into what it is given."""
        self._parts, self._copies = dict(parts), copies
        self._active: Sequence[Identity] = [
            part if _is_own(type(part).__module__) else _Copying(part) for part in self._parts.values()
        ]
        self.active = bool(self._active) or copies
        """Whether the learner's view of a step is another step."""

    @classmethod
    def build(
        cls,
        components: Mapping[str, Component | None],
        spaces: Spaces,
        ranks: Ranks = ALONE,
        agent: Component | None = None,
    ) -> Transforms:
        """Build the transforms of a configuration. Raises InputError for one that does not fit the spaces.

        ranks: over which the statistics are taken; agent: who sees what they make, and gets copies if its
        class is a user's own.
        """
        parts: dict[str, Identity] = {}
        for name, component in components.items():
            if component is None:
                continue
            parts[name] = component.build(spaces=spaces)
            if not isinstance(parts[name], Identity):
                raise InputError(
                    f"transforms.{name}: {component.target} must be derived from "
                    "labrl.agents.transforms.Identity, which defines every method of a transform.",
                    code="target",
                    key=f"transforms.{name}._target_",
                )
            for moments in parts[name].statistics():
                moments.ranks = ranks
        return cls(parts, copies=agent is not None and not _is_own(agent.target))

    @property
    def drifting(self) -> list[str]:
        """Names of those whose view of the same step changes, because their statistics do."""
        return [name for name, part in self._parts.items() if part.statistics()]

    def frozen(self, observation: NDArray) -> NDArray:
        """Return the view in evaluation: no statistics change. [num_envs, *obs]"""
        for part in self._active:
            observation = part.observation(observation)
        return observation.copy() if self._copies else observation

    def in_graph(self, observation: Any) -> Any:
        """Return the same view of tensors. Raises InputError for a transform that cannot be exported."""
        for part in self._parts.values():
            observation = part.in_graph(observation)
        return observation

    def collected(self, observation: NDArray) -> NDArray:
        """Return the view of fresh observations, which enter the statistics first. [num_envs, *obs]"""
        for part in self._active:
            part.collect(observation)
            observation = part.observation(observation)
        return observation.copy() if self._copies else observation

    def step(self, step: Step) -> Step:
        """Return the learner's view of a training step."""
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
        """Continue with saved statistics."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def part(self, name: str) -> tuple[str | None, dict[str, Any]]:
        """Return the class and the state of one transform by its name in the configuration; None and {}
        without one."""
        if name not in self._parts:
            return None, {}
        kind = type(self._parts[name])
        return f"{kind.__module__}.{kind.__qualname__}", self._parts[name].state_dict()

    def restore_part(self, name: str, state: Mapping[str, Any]) -> None:
        """Continue one transform with saved statistics."""
        self._parts[name].load_state_dict(state)
