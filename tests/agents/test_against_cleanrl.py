"""Tests that the recipes `experiment=cleanrl/...` make the first update of CleanRL's scripts, written out."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import BOX, DISCRETE, VECTOR, build, disturb
from first_updates import (
    layers,
    learn_from_rollout,
    learn_from_transitions,
    num_parameters,
    random_rollout,
    recipe,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from labrl.memory import Transitions
from labrl.schedules import value_at

IMAGES = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
CLOSE = {"rtol": 1e-5, "atol": 5e-6}


def convolutions() -> list[nn.Module]:
    maps = [nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()]
    return [*maps, nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()]


def perceptron(num_outputs: int) -> nn.Sequential:
    hidden = [nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(64, num_outputs))


class AtariAgent(nn.Module):
    """The network of ppo_atari.py."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(*convolutions())
        self.actor, self.critic = nn.Linear(512, 3), nn.Linear(512, 1)

    def forward(self, pixels: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values. [batch] each"""
        hidden = self.network(pixels / 255.0)
        policy = Categorical(logits=self.actor(hidden))
        return policy.log_prob(action), policy.entropy(), self.critic(hidden).view(-1)


class DiscreteAgent(nn.Module):
    """The networks of ppo.py."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = perceptron(3), perceptron(1)

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values. [batch] each"""
        policy = Categorical(logits=self.actor(observation))
        return policy.log_prob(action), policy.entropy(), self.critic(observation).view(-1)


class ContinuousAgent(nn.Module):
    """The networks of ppo_continuous_action.py."""

    def __init__(self) -> None:
        super().__init__()
        self.actor_mean, self.critic = perceptron(2), perceptron(1)
        self.actor_logstd = nn.Parameter(torch.zeros(1, 2))

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values. [batch] each"""
        policy = Normal(self.actor_mean(observation), self.actor_logstd.exp())
        value = self.critic(observation).view(-1)
        return policy.log_prob(action).sum(1), policy.entropy().sum(1), value


def parts(network: Any) -> tuple[nn.Module, ...]:
    """Return the parts of labrl's actor-critic in the order of CleanRL's."""
    if network.shared:
        return network.policy_torso, network.policy_head, network.value_head
    return network.policy_torso, network.policy_head, network.value_torso, network.value_head


def layers_of(network: Any) -> list[nn.Module]:
    return [layer for part in parts(network) for layer in layers(part)]


def copy(own: list[nn.Module], other: nn.Module) -> None:
    for mine, theirs in zip(own, layers(other), strict=True):
        theirs.load_state_dict(mine.state_dict())


def assert_same(own: list[nn.Module], other: nn.Module) -> None:
    for mine, theirs in zip(own, layers(other), strict=True):
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), **CLOSE)


def assert_initialized_like_cleanrl(network: Any) -> None:
    for layer in layers_of(network):
        # layer_init: orthogonal times sqrt(2), 0.01 for the policy and 1 for the value; biases of 0.
        gain = {1: 1.0, 2: 0.01, 3: 0.01}.get(len(layer.weight), 2**0.5)
        rows = layer.weight.detach().flatten(1)
        rows = rows if len(rows) <= rows.shape[1] else rows.T
        expected = gain**2 * torch.eye(len(rows))
        torch.testing.assert_close(rows @ rows.T, expected, rtol=1e-3, atol=1e-4 * gain**2)
        assert not layer.bias.any()


@pytest.mark.parametrize("name", ["ppo", "ppo_atari", "ppo_continuous"])
def test_first_update_equals_that_of_cleanrl_ppo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    images, discrete = name == "ppo_atari", name != "ppo_continuous"
    clip, (ent_coef, lr, epochs) = 0.1 if images else 0.2, (0.01, 2.5e-4, 4) if discrete else (0.0, 3e-4, 10)
    space, action_space = IMAGES if images else VECTOR, DISCRETE if discrete else BOX
    small = ["agent.horizon=4", "env.num_envs=4", "agent.batch_size=16"]
    agent, _, _ = build(recipe(f"cleanrl/{name}", *small), observation=space, action=action_space)
    network = agent.modules()["actor_critic"]
    assert_initialized_like_cleanrl(network)
    disturb(agent)
    theirs = {"ppo": DiscreteAgent, "ppo_atari": AtariAgent, "ppo_continuous": ContinuousAgent}[name]()
    assert num_parameters(network) == num_parameters(theirs)
    copy(layers_of(network), theirs)
    if isinstance(theirs, ContinuousAgent):
        theirs.actor_logstd.data.copy_(network.policy_head.log_std)

    if images:
        seen = torch.randint(0, 256, (16, 4, 84, 84), dtype=torch.uint8)
        stored = seen.permute(0, 2, 3, 1).contiguous()
    else:
        seen = stored = torch.randn(16, 3)
    rollout = random_rollout(stored, torch.randint(0, 3, (16,)) if discrete else torch.randn(16, 2))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=lr, eps=1e-5)
    advantage = (rollout.advantage - rollout.advantage.mean()) / (rollout.advantage.std() + 1e-8)
    policy_losses, value_losses = [], []
    for _ in range(epochs):
        log_prob, entropy, value = theirs(seen.float(), rollout.action)
        ratio = (log_prob - rollout.log_prob).exp()
        surrogates = -advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)
        policy_losses.append(torch.max(*surrogates).mean())
        clipped = rollout.value + (value - rollout.value).clamp(-clip, clip)
        errors = (value - rollout.value_target) ** 2, (clipped - rollout.value_target) ** 2
        value_losses.append(0.5 * torch.max(*errors).mean())
        # Both errors are the larger one somewhere, so that the test can tell the maximum from either.
        assert 0 < (errors[0] > errors[1]).sum() < 16
        loss = policy_losses[-1] - ent_coef * entropy.mean() + 0.5 * value_losses[-1]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()

    first = np.zeros((4, *space.shape), space.dtype)
    assert learn_from_rollout(agent, rollout, first, monkeypatch) == epochs
    metrics = agent.metrics()
    for key, losses in (("loss_policy", policy_losses), ("loss_value", value_losses)):
        assert metrics[key] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
    assert_same(layers_of(network), theirs)
    if isinstance(theirs, ContinuousAgent):
        torch.testing.assert_close(network.policy_head.log_std, theirs.actor_logstd, **CLOSE)


def test_first_update_equals_that_of_cleanrl_dqn(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    small = ["agent.memory.capacity=1000", "agent.memory.storage=ram", "agent.learning_starts=40"]
    agent, _, _ = build(recipe("cleanrl/dqn_atari", *small), observation=IMAGES, action=DISCRETE, num_envs=1)
    disturb(agent)
    networks = agent.modules()
    theirs, target = (nn.Sequential(*convolutions(), nn.Linear(512, 3)) for _ in range(2))
    for own, other in ((networks["q_network"], theirs), (networks["target"], target)):
        assert num_parameters(own) == num_parameters(other)
        copy(layers(own), other)
    seen, following = torch.randint(0, 256, (2, 32, 4, 84, 84), dtype=torch.uint8)
    action, reward = torch.randint(0, 3, (32,)), torch.randint(-1, 2, (32,)).float()
    done = (torch.rand(32) < 0.3).float()
    with torch.no_grad():
        td_target = reward + 0.99 * target(following / 255.0).max(dim=1)[0] * (1 - done)
    old_val = theirs(seen / 255.0).gather(1, action[:, None]).squeeze()
    loss = nn.functional.mse_loss(td_target, old_val)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-4)
    loss.backward()
    optimizer.step()

    weight, index = torch.ones(32), np.arange(32)
    batch = Transitions(seen, action, reward, following, 0.99 * (1 - done), weight, index)
    learn_from_transitions(agent, batch, monkeypatch)
    assert 2 * agent.metrics()["loss"] == pytest.approx(loss.item(), rel=1e-4)  # labrl halves squared errors
    assert_same(layers(networks["q_network"]), theirs)


def test_recipes_have_the_arguments_of_the_scripts() -> None:
    plain, atari, continuous = (recipe(f"cleanrl/ppo{kind}") for kind in ("", "_atari", "_continuous"))
    for config, num_envs, num_steps, num_minibatches, frames in (
        (plain, 4, 128, 4, 5 * 10**5),
        (atari, 8, 128, 4, 10**7),
        (continuous, 1, 2048, 32, 10**6),
    ):
        own, env = config.agent.config, config.env.config
        assert (env.num_envs, env.max_frame, own.horizon) == (num_envs, frames, num_steps)
        assert own.batch_size * num_minibatches == num_envs * num_steps
        assert (own.gamma, own.gae_lambda, own.target_kl) == (0.99, 0.95, None)
        half = pytest.approx(value_at(own.lr, 0) / 2)
        assert (value_at(own.lr, frames // 2), value_at(own.lr, frames)) == (half, 0.0)
        assert value_at(own.clip_range, frames) == value_at(own.clip_range, 0)  # constant
    observation, reward = (vars(one.config) for one in continuous.transforms.values())
    assert observation == {"clip": 10.0, "epsilon": 1e-8, "window": None}
    assert reward == {**observation, "gamma": 0.99}

    dqn = recipe("cleanrl/dqn_atari")
    own, env = dqn.agent.config, dqn.env.config
    assert (env.num_envs, env.max_frame, own.batch_size, own.gamma) == (1, 10**7, 32, 0.99)
    assert (own.memory.config.capacity, own.learning_starts, own.updates_per_frame) == (10**6, 80_000, 0.25)
    assert own.target.config.every == 1000
    epsilon = own.exploration.config.epsilon
    assert [value_at(epsilon, frame) for frame in (0, 10**6, 10**7)] == pytest.approx([1.0, 0.01, 0.01])
    for config in (atari, dqn):
        env = config.env.config
        assert (env.sticky_actions, env.noop_max, env.frame_skip, env.frame_stack) == (0.0, 31, 4, 4)
        assert (env.fire_reset, env.life_loss_signal, env.full_action_space) == ("each_life", True, False)
        assert config.transforms["reward"].target.endswith("SignReward")
