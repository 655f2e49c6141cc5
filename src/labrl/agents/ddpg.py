"""Deep deterministic policy gradient (Lillicrap et al., 2016, arXiv:1509.02971)."""

from __future__ import annotations

import torch
from torch import Tensor

from labrl.agents.deterministic_policy import DeterministicActorCritic, DeterministicConfig
from labrl.agents.replay_actor_critic import Batch
from labrl.agents.value_learning import td_target
from labrl.networks.critics import Critics, PolicyNetwork


def critic_loss(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Mean squared error, summed over the critics.

    value: [critics, batch]; target: [batch]; weight: importance weights, [batch].
    """
    return ((value - target).square().sum(0) * weight).mean()


class DDPG(DeterministicActorCritic):
    """One critic, one policy, and a delayed twin of each."""

    Config: type[DeterministicConfig] = DeterministicConfig
    NAME = "ddpg"
    NUM_CRITICS = 1

    def _learn_from(self, batch: Batch, update: int) -> None:
        self._step(self._critics, self._critic_averages, self._critic_gradient(batch, None), self._critic_lr)
        self._step(self._policy, self._policy_averages, self._policy_gradient(batch), self._lr)
        self._target_critics.updated()
        self._target_policy.updated()

    def _critic_gradient(self, batch: Batch, noise: Tensor | None) -> Tensor:
        """Gradient of the critics' loss, section 3. Returns CRITIC_STATISTICS but for the norm.

        noise: added to the next actions, which stay in [-1, 1], [batch, size]; None: none.
        """
        policy, delayed = self._target_policy.network, self._target_critics.network

        def loss(critics: Critics, share: slice) -> tuple[Tensor, Tensor]:
            with self._compute.autocast():
                with torch.no_grad():
                    following = batch.next_observation[share]
                    action = policy.forward(following).tanh_()
                    if noise is not None:
                        action = action.add_(noise[share]).clamp_(-1, 1)
                    value = delayed.forward(following, action).amin(0)
                    target = td_target(value, batch.reward[share], batch.discount[share])
                values = critics.forward(batch.observation[share], batch.action[share])
            mean = critic_loss(values, target, batch.weight[share])
            return mean, self._critic_statistics(share, mean.detach(), values, target)

        return self._critics.backward(loss, len(batch.reward))

    def _policy_gradient(self, batch: Batch) -> Tensor:
        """Gradient of -Q_1(s, pi(s)), eq. 6. Returns POLICY_STATISTICS but for the norm."""

        def loss(policy: PolicyNetwork, share: slice) -> tuple[Tensor, Tensor]:
            with self._compute.autocast():
                observation = batch.observation[share]
                values = self._judges.forward(observation, policy.forward(observation).tanh(), first=True)
            mean = -values.mean()
            return mean, mean.detach().unsqueeze(0)

        return self._policy.backward(loss, len(batch.reward))
