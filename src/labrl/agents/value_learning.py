"""Targets and losses of Q-learning and its distributional kin: pure functions of tensors.

`reward` is the discounted sum over the n steps of a transition and `discount` what the value at their end
counts: gamma^n, or 0 where the task ended within them. Both are [batch].
"""

from __future__ import annotations

import torch
from torch import Tensor


def chosen(outputs: Tensor, action: Tensor) -> Tensor:
    """Outputs of one action each: outputs [batch, actions, n], action [batch]. Returns [batch, n]."""
    index = action.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


def td_target(next_value: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """The n-step target r + gamma^n V(s') (Sutton & Barto, 2018, eq. 7.4).

    next_value: [batch] or [batch, n], for instance n quantiles. Returns the same shape.
    """
    if next_value.dim() == 2:
        reward, discount = reward.unsqueeze(1), discount.unsqueeze(1)
    return torch.addcmul(reward, discount, next_value)


def categorical_target(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """The distribution of r + gamma^n Z, projected onto the support (Bellemare et al., 2017, eq. 7).

    Atom i gets the share [1 - |clip(r + gamma^n z_j) - z_i| / dz], if positive, of each p_j: what falls
    between two atoms goes to both, the nearer the more.

    probability: of the atoms of Z, [batch, atoms]; support: the evenly spaced atoms z, [atoms].
    Returns [batch, atoms].
    """
    moved = td_target(support.expand_as(probability), reward, discount)
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    distance = (moved.clamp(support[0], support[-1]).unsqueeze(1) - support.unsqueeze(1)).abs()
    # All pairs of atoms, rather than a sum into two rounded places: exact at the edges, and the order of
    # the sums is fixed on a GPU too. [batch, atoms, atoms]
    share = (1 - distance / spacing).clamp_(min=0)
    return torch.bmm(share, probability.unsqueeze(2)).squeeze(2)


def categorical_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """D_KL(target || softmax(logits)), the loss of C51 (Bellemare et al., 2017, section 4.2).

    The cross entropy, less the target's own entropy: the gradient is the same, and a distribution that is
    met exactly has loss 0, as the priorities of Rainbow want it (Hessel et al., 2018, section 3).

    logits, target: [batch, atoms]. Returns [batch].
    """
    cross_entropy = -(target * torch.log_softmax(logits, dim=1)).sum(1)
    return cross_entropy - torch.special.entr(target).sum(1)


def quantile_huber_loss(quantile: Tensor, target: Tensor, fraction: Tensor, kappa: float) -> Tensor:
    """Quantile regression by the Huber loss (Dabney et al., 2018, arXiv:1710.10044, eq. 10).

    With u the target sample minus the quantile at fraction tau, rho(u) = |tau - 1{u < 0}| L_kappa(u), summed
    over the quantiles and averaged over the samples. L is divided by kappa, as the authors' later work does
    (arXiv:1806.06923, eq. 3): the same at kappa 1, and the limit at 0 is |tau - 1{u < 0}| |u|, eq. 8.

    quantile: [batch, n]; target: samples of the target, [batch, m]; fraction: tau of each quantile, [n].
    Returns [batch].
    """
    u = target.unsqueeze(1) - quantile.unsqueeze(2)  # [batch, n, m]
    with torch.no_grad():
        weight = (fraction.unsqueeze(1) - (u < 0).to(u.dtype)).abs_()
    size = u.abs()
    if kappa > 0:
        size = torch.where(size <= kappa, u.square() * (0.5 / kappa), size - 0.5 * kappa)
    return (weight * size).mean(2).sum(1)
