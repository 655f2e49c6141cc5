"""Action distributions as functions of a network's outputs, so that no object is created per call.

One `ActionDistribution` is built for each action space. The parameters of its distributions are one tensor,
`[batch, num_parameters]`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labrl.errors import InputError
from labrl.networks.actions import Actions, BoxActions, clip_to_space, standard_normal
from labrl.networks.layers import Array, cast, library_of
from labrl.spaces import has_bounds

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


def log_tanh_slope(u: Tensor) -> Tensor:
    """Compute log d tanh(u)/du = log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), in the shape of u.

    The result is finite and accurate even where tanh(u) rounds to 1.
    """
    return 2 * (-u + math.log(2) - torch.nn.functional.softplus(-2 * u))


@cache
def _kolmogorov(nodes: int = 16, low: float = 0.25, high: float = 2.8) -> tuple[Tensor, Tensor]:
    """Return nodes and weights with which to average over the Kolmogorov distribution, [nodes] each.

    They are those of Gauss-Legendre quadrature between `low` and `high`, outside of which the distribution
    has almost no mass. Its density is 8 b sum_k (-1)^(k-1) k^2 exp(-2 k^2 b^2).
    """
    at, weight = np.polynomial.legendre.leggauss(nodes)
    b, k = (low + high + (high - low) * at) / 2, np.arange(1, 50)[:, None]
    weight *= b * ((-1.0) ** (k - 1) * k**2 * np.exp(-2 * (k * b) ** 2)).sum(0)
    return torch.from_numpy(b), torch.from_numpy(weight / weight.sum())


def mean_log_tanh_slope(parameters: Tensor) -> Tensor:
    """Compute the sum over components of E log(1 - tanh(u)^2) for Gaussian u, accurate to 1e-5 in each.

    parameters: means m and log standard deviations log s, [batch, 2 size]. Returns [batch]. The second
    derivative of log(1 - tanh(u)^2) is -4 times the density of a logistic variable t of scale 1/2, so it
    equals 2 log 2 - 2 E|u - t|. This t is a Gaussian whose standard deviation b has the Kolmogorov
    distribution (Andrews and Mallows, 1974), so u - t is a mixture of Gaussians with standard deviations
    sigma = sqrt(s^2 + b^2), each of which has the mean absolute value sqrt(2/pi) sigma exp(-m^2 / 2 sigma^2)
    + m erf(m / sqrt(2) sigma).
    """
    mean, log_std = parameters.chunk(2, dim=1)
    scales, weights = (each.to(mean) for each in _kolmogorov())
    sigma = torch.hypot(log_std.exp().unsqueeze(-1), scales)  # [batch, size, nodes]
    ratio = mean.unsqueeze(-1) / sigma
    bell = math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio.square())
    sign = torch.erf(math.sqrt(0.5) * ratio) @ weights
    return 2 * (math.log(2) - mean * sign - (sigma * bell) @ weights).sum(1)


def categorical(parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of actions and entropies for p = softmax(x). [batch] each

    parameters: x, [batch, actions]; action: [batch].
    """
    log_p = torch.log_softmax(parameters, dim=1)
    return log_p.gather(1, action.unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(1)


def gaussian(parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-densities of actions and entropies for independent Gaussians. [batch] each

    parameters: means and log standard deviations, [batch, 2 size]; action: [batch, *action].
    """
    mean, log_std = parameters.chunk(2, dim=1)
    z = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
    log_prob = (-0.5 * z.square() - log_std - HALF_LOG_2_PI).sum(1)
    return log_prob, (log_std + (HALF_LOG_2_PI + 0.5)).sum(1)


def beta(parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-densities of samples in (0, 1) and entropies for independent Beta distributions.

    parameters: a' and b', [batch, 2 size], where a = 1 + softplus(a') and b = 1 + softplus(b') give a density
    with a single mode; action: samples, [batch, *action]. Returns [batch] each.
    """
    over = torch.nn.functional.softplus(
        parameters.double()
    )  # a - 1 and b - 1; large log gammas are subtracted
    x = action.reshape(len(action), -1).double()
    log_x, whole = torch.cat([x.log(), torch.log1p(-x)], dim=1), over.unflatten(1, (2, -1)).sum(1) + 2
    log_beta = torch.lgamma(over + 1).sum(1) - torch.lgamma(whole).sum(1)
    log_prob = (over * log_x).sum(1) - log_beta
    mean_log = (over * torch.digamma(over + 1)).sum(1) - ((whole - 2) * torch.digamma(whole)).sum(1)
    return log_prob.to(parameters.dtype), (log_beta - mean_log).to(parameters.dtype)


class ActionDistribution(Actions):
    """Action distribution of a policy-gradient agent. The best action is the most likely one."""

    num_parameters: int
    """Number of parameters of a distribution."""
    action_shape: tuple[int, ...]
    """Shape of a sampled action as the agent stores it."""

    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array:
        """Draw Gumbel noise of the shape of the parameters: the argmax of logits plus noise is a sample."""
        if type(parameters) is np.ndarray:
            assert generator is not None
            return generator.gumbel(size=parameters.shape)
        assert isinstance(parameters, Tensor)
        return -torch.log(-torch.log(torch.rand_like(parameters)))

    @abstractmethod
    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of the action and the entropy of each row. [batch] each"""

    @abstractmethod
    def numbers(self, parameters: NDArray) -> dict[str, NDArray]:
        """Return the quantities that define the distributions, by name, for histograms. [batch, ...] each"""

    def statistics(self, parameters: Tensor) -> dict[str, float]:
        """Return the columns of a metrics row that describe the distributions."""
        return {}


class Categorical(ActionDistribution):
    """Distribution over a discrete space; the parameters are unnormalized log-probabilities."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.num_parameters = int(space.n)
        self.action_shape: tuple[int, ...] = ()
        self._first = int(space.start)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the actions with the largest logit, or sample actions with the Gumbel-max trick. [batch]"""
        logits = parameters if noise is None else parameters + noise
        return logits.argmax(1)

    log_prob_entropy = staticmethod(categorical)  # it needs no `self`

    def to_env(self, action: Array) -> Array:
        """Add `start`, the first action of the space. [batch]"""
        return action + self._first if self._first else action

    def numbers(self, parameters: NDArray) -> dict[str, NDArray]:
        """Return the probability of each action. [batch, actions]"""
        return {"probability": torch.softmax(torch.from_numpy(parameters), dim=1).numpy()}


class MultiCategorical(ActionDistribution):
    """Distribution over several independent choices; the parameters are their concatenated logits."""

    def __init__(self, space: gym.spaces.MultiDiscrete) -> None:
        self.action_shape = tuple(space.shape)
        self.sizes = [int(n) for n in space.nvec.flat]
        """Number of options of each choice."""
        ends = np.cumsum(self.sizes).tolist()
        self._slices = [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]
        self._first = space.start
        self.num_parameters = sum(self.sizes)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the option of each choice with the largest logit, or sample one. [batch, *action_shape]"""
        logits = parameters if noise is None else parameters + noise
        choices = [logits[:, own].argmax(1) for own in self._slices]
        return library_of(parameters).stack(choices, 1).reshape(-1, *self.action_shape)

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, summed over the independent choices. [batch] each"""
        choices = action.flatten(1).unbind(1)
        parts = map(categorical, parameters.split(self.sizes, dim=1), choices)
        log_probs, entropies = zip(*parts, strict=True)
        return sum(log_probs[1:], start=log_probs[0]), sum(entropies[1:], start=entropies[0])

    def to_env(self, action: Array) -> Array:
        """Add `start`, the first option of each choice. [batch, *action_shape]"""
        return action + library_of(action).asarray(self._first)

    def numbers(self, parameters: NDArray) -> dict[str, NDArray]:
        """Return the probability of each option of each choice. [batch, options]"""
        logits = torch.from_numpy(parameters).split(self.sizes, dim=1)
        return {"probability": torch.cat([torch.softmax(one, dim=1) for one in logits], dim=1).numpy()}


class Bernoulli(ActionDistribution):
    """Distribution over independent binary switches; the parameters are their log-odds."""

    def __init__(self, space: gym.spaces.MultiBinary) -> None:
        self.action_shape = tuple(space.shape)
        self.num_parameters = int(np.prod(self.action_shape))

    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array:
        """Draw logistic noise. A switch is 1 if the sum of its log-odds and its noise is above 0."""
        if isinstance(parameters, Tensor):
            return torch.logit(torch.rand_like(parameters))
        assert generator is not None
        return generator.logistic(size=parameters.shape)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the more likely value of each switch, or sample the switches. [batch, *action_shape]"""
        log_odds = parameters if noise is None else parameters + noise
        return cast(log_odds > 0, np.int8).reshape(-1, *self.action_shape)

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, summed over the switches. [batch] each"""
        log_on, log_off = nn.functional.logsigmoid(parameters), nn.functional.logsigmoid(-parameters)
        log_prob = torch.where(action.flatten(1) > 0, log_on, log_off).sum(1)
        return log_prob, -(log_on.exp() * log_on + log_off.exp() * log_off).sum(1)

    def to_env(self, action: Array) -> Array:
        """Return the action unchanged. [batch, *action_shape]"""
        return action

    def numbers(self, parameters: NDArray) -> dict[str, NDArray]:
        """Return the probability that each switch is 1. [batch, switches]"""
        return {"probability": torch.sigmoid(torch.from_numpy(parameters)).numpy()}


class DiagonalGaussian(ActionDistribution):
    """Gaussian over a Box space; the parameters are means and log standard deviations, concatenated.

    Samples are unbounded. For the environment, they are clipped to the bounds of the space, and rounded if
    the space has an integer dtype.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self.action_shape = tuple(space.shape)
        self._size = math.prod(self.action_shape)
        self.num_parameters = 2 * self._size
        self._low: NDArray | float = space.low
        self._high: NDArray | float = space.high
        self._dtype = space.dtype

    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array:
        """Draw standard normal noise. [batch, size]"""
        return standard_normal(parameters[:, : self._size], generator)

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the mean, or the mean plus the scaled noise. [batch, *action_shape]"""
        mean = parameters[:, : self._size]
        if noise is not None:
            mean = mean + library_of(parameters).exp(parameters[:, self._size :]) * noise
        return mean.reshape(-1, *self.action_shape)

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies, summed over the dimensions of the action. [batch] each"""
        return gaussian(parameters, action)

    def to_env(self, action: Array) -> Array:
        """Clip actions to the bounds of the space. [batch, *action_shape]"""
        return clip_to_space(action, self._low, self._high, self._dtype)

    def numbers(self, parameters: NDArray) -> dict[str, NDArray]:
        """Return the means and standard deviations of samples. [batch, size] each"""
        mean, log_std = np.split(parameters, 2, axis=1)
        return {"mean": mean, "std": np.exp(log_std)}

    def statistics(self, parameters: Tensor) -> dict[str, float]:
        """Return the mean standard deviation of samples before they are clipped or squashed."""
        return {"policy_std": float(parameters.chunk(2, dim=-1)[1].exp().mean())}


class RescaledGaussian(DiagonalGaussian):
    """Gaussian whose samples are clipped to [-1, 1], then scaled to the bounds of a Box space."""

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self._low, self._high = -1.0, 1.0
        self._box = BoxActions(space, np.float64)

    def to_env(self, action: Array) -> Array:
        """Clip samples and scale them to the bounds of the space. [batch, *action_shape]"""
        return self._box.to_env(action.clip(-1, 1).reshape(-1, self._box.size))


class SquashedGaussian(RescaledGaussian):
    """The hyperbolic tangent of a Gaussian, scaled to the bounds of the space (Haarnoja et al., 2018).

    The Gaussian sample u is stored; the action is a = center + reach tanh(u). If a were stored, its rounding
    would make u inaccurate near the bounds.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        # Exclude dimensions in which the lower and upper bound are equal.
        self.log_reach = float(np.log(self._box.half[self._box.half > 0]).sum())

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the squashed actions. [batch] each

        The log-probability is that of the Gaussian minus log |da/du| = log(reach (1 - tanh(u)^2))
        (arXiv:1801.01290, appendix C, eq. 21), and the entropy is that of the Gaussian plus the mean of log
        |da/du|.
        """
        log_prob, entropy = super().log_prob_entropy(parameters, action)
        log_prob = log_prob - log_tanh_slope(action.reshape(len(action), -1)).sum(1)
        return log_prob - self.log_reach, entropy + mean_log_tanh_slope(parameters) + self.log_reach

    def to_env(self, action: Array) -> Array:
        """Squash samples and scale them to the bounds of the space. [batch, *action_shape]"""
        return super().to_env(library_of(action).tanh(action))


class ScaledBeta(ActionDistribution):
    """Beta distribution whose support ends at the bounds of a Box space (Chou et al., 2017, PMLR 70:834).

    Samples in (0, 1) are stored and scaled to the bounds. The parameters are those of `beta`.
    """

    TRIES = 8
    """Number of candidates for a gamma-distributed sample; each is accepted with a probability of over 0.95.
    """
    EDGE = 1e-6
    """Minimum distance of a sample from 0 and from 1, where the log-density is infinite."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self.action_shape = tuple(space.shape)
        self._box = BoxActions(space, np.float64)
        self.num_parameters = 2 * self._box.size
        half = self._box.half
        self._log_width = float(np.log(2 * half[half > 0]).sum())

    def noise(self, parameters: Array, generator: np.random.Generator | None = None) -> Array:
        """Draw standard normal numbers and logarithms of uniform numbers. [2, TRIES, batch, 2 size]"""
        shape = (self.TRIES, *parameters.shape)
        if isinstance(parameters, Tensor):
            like = parameters.expand(shape)
            return torch.stack([torch.randn_like(like), torch.log(torch.rand_like(like))])
        assert generator is not None
        log_uniform = -generator.standard_exponential(shape, np.float32)
        return np.stack([generator.standard_normal(shape, np.float32), log_uniform])

    def sample_or_mode(self, parameters: Array, noise: Array | None = None) -> Array:
        """Return the modes, or samples x / (x + y) with gamma-distributed x and y. [batch, *action_shape]

        A gamma-distributed sample is d v with d = a - 1/3 and v = (1 + z / sqrt(9 d))^3 for a normal z,
        accepted if log u < z^2 / 2 + d (1 - v + log v) (Marsaglia & Tsang, 2000, doi:10.1145/358407.358414).
        """
        library, over = library_of(parameters), self._over(parameters)
        part = over + 1e-6  # the mode is (a - 1) / (a + b - 2), and 1/2 where both are 0
        if noise is not None:
            z, d = noise[0], over + 2 / 3
            v = ((1 + z / library.sqrt(9 * d)) ** 3).clip(1e-30)
            fits = noise[1] < 0.5 * z**2 + d * (1 - v + library.log(v))
            part, found = v[0], fits[0]
            for candidate, fit in zip(v[1:], fits[1:], strict=True):
                part, found = library.where(found | ~fit, part, candidate), found | fit
            part = d * part
        x = part[:, : self._box.size] / (part[:, : self._box.size] + part[:, self._box.size :])
        return x.clip(self.EDGE, 1 - self.EDGE).reshape(-1, *self.action_shape)

    def _over(self, parameters: Array) -> Array:
        """Return a - 1 and b - 1, each the softplus of a parameter. [batch, 2 size]"""
        library = library_of(parameters)
        return parameters.clip(0) + library.log1p(library.exp(-abs(parameters)))

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies of scaled actions, summed over their components. [batch] each"""
        log_prob, entropy = beta(parameters, action)
        return log_prob - self._log_width, entropy + self._log_width

    def to_env(self, action: Array) -> Array:
        """Scale samples to the bounds of the space. [batch, *action_shape]"""
        return self._box.to_env((2 * action - 1).reshape(-1, self._box.size))

    def numbers(self, parameters: NDArray) -> dict[str, NDArray]:
        """Return the means and standard deviations of actions scaled to [-1, 1]. [batch, size] each"""
        a, b = np.split(self._over(parameters) + 1, 2, axis=1)
        return {"mean": (a - b) / (a + b), "std": 2 / (a + b) * np.sqrt(a * b / (a + b + 1))}

    def statistics(self, parameters: Tensor) -> dict[str, float]:
        """Return the mean standard deviation of actions scaled to [-1, 1]."""
        return {"policy_std": float(self.numbers(parameters.numpy())["std"].mean())}


ActionBounds = Literal["clip", "rescale", "squash", "beta"]
"""Treatment of the bounds of a Box space. clip: Gaussian samples are clipped to the bounds; rescale: Gaussian
samples are clipped to [-1, 1] and scaled to the bounds; squash: the hyperbolic tangent of Gaussian samples is
scaled to the bounds; beta: samples of a Beta distribution are scaled to the bounds."""

_IN_BOX: dict[ActionBounds, type[DiagonalGaussian] | type[ScaledBeta]] = {
    "clip": DiagonalGaussian,
    "rescale": RescaledGaussian,
    "squash": SquashedGaussian,
    "beta": ScaledBeta,
}


def distribution_for(
    space: gym.Space[Any], agent: str, bounds: ActionBounds | None = None
) -> ActionDistribution:
    """Return the distribution over an action space. Raises InputError for a space that is not supported.

    agent: name of the agent, for messages; bounds: treatment of the bounds of a Box space, None for clip.
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(space)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli(space)
    if not isinstance(space, gym.spaces.Box):
        raise InputError(
            f"agent: {agent} supports Discrete, MultiDiscrete, MultiBinary and Box action spaces, but this "
            f"environment's is {space}.",
            code="unsupported",
            key="agent",
        )
    if bounds not in (None, "clip") and not has_bounds(space):
        raise InputError(
            f"agent.action_bounds={bounds} needs actions that are bounded above and below, but this "
            f"environment's actions are {space}. Set agent.action_bounds=clip.",
            code="unsupported",
            key="agent.action_bounds",
        )
    return _IN_BOX[bounds or "clip"](space)
