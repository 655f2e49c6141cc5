"""Linear layers with noise in their weights, so that exploration is learned (NoisyNet).

Fortunato et al., 2018, arXiv:1706.10295. The noise is handed to `forward` and not kept in the module: whoever
draws it decides how long it holds, copies of a network for several threads see the same, and there is
nothing to save but the generator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def factor_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """f(x) = sgn(x) sqrt(|x|) of standard normal numbers, section 3 (b), on the generator's device."""
    noise = torch.randn(shape, generator=generator, device=generator.device)
    return noise.sign() * noise.abs().sqrt()


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w eps_w) x + mu_b + sigma_b eps_b, eq. 9, with factorized noise, eqs. 10 and 11."""

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float) -> None:
        """sigma: initial size of the noise, sigma_0, relative to 1 / sqrt(num_inputs)."""
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        self.num_inputs = num_inputs
        self.num_noise = num_inputs + num_outputs
        """Noise variables: one for each input and each output."""
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), sigma * bound))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """x: [batch, num_inputs]. Returns [batch, num_outputs].

        noise: made by `factor_noise`, one for all rows [num_noise] or one for each [batch, num_noise];
        None: the mean weights alone.
        """
        mean = nn.functional.linear(x, self.weight, self.bias)
        if noise is None:
            return mean
        inputs, outputs = noise[..., : self.num_inputs], noise[..., self.num_inputs :]
        # eps_w is an outer product: it is applied to inputs and outputs and never made.
        spread = nn.functional.linear(x * inputs, self.weight_sigma, self.bias_sigma)
        return mean + outputs * spread
