"""Tests that losses and gradients equal those of Stable-Baselines3 for the same weights and minibatch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import build as build_dqn
from dqn_cases import config_of as dqn_config
from replay_actor_critic_cases import build, config_of, disturb, made_up
from torch import Tensor, nn

from labrl.agents.agent import Observation
from labrl.agents.parts.experience import Experience
from labrl.agents.policy_agent import PolicyAgent
from labrl.config.compose import compose, resolve
from labrl.memory.replay import Transitions
from labrl.memory.rollout import Minibatch
from labrl.step import Step

sb3 = pytest.importorskip("stable_baselines3", reason="pip install 'labrl[bench]' brings Stable-Baselines3")
from stable_baselines3.common.logger import configure  # noqa: E402
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike  # noqa: E402
from stable_baselines3.common.type_aliases import ReplayBufferSamples, RolloutBufferSamples  # noqa: E402

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
CHOICE = gym.spaces.Discrete(3)
STORED = ("observation", "action", "reward", "next_observation", "discount")
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class Spaces(gym.Env):
    """An environment that only has spaces and is never stepped."""

    observation_space = gym.spaces.Box(-5, 5, (3,), np.float32)

    def __init__(self, action_space: gym.Space) -> None:
        self.action_space = action_space


def sb3_agent(kind: Any, action: gym.Space, hidden: Any, **options: Any) -> Any:
    """Build an agent of Stable-Baselines3; its default learning rate of 0 leaves all weights unchanged."""
    env: Any = sb3.common.vec_env.DummyVecEnv([lambda: Spaces(action)])
    model = kind(
        "MlpPolicy",
        env,
        learning_rate=options.pop("learning_rate", 0.0),
        device="cpu",
        policy_kwargs={"net_arch": hidden, **options.pop("policy", {})},
        **options,
    )
    model.set_logger(configure(format_strings=[]))
    return model


def logged(model: Any, name: str) -> float:
    """Return a value that an agent of Stable-Baselines3 has logged in its update."""
    return float(model.logger.name_to_value[f"train/{name}"])


def copy_layers(own: list[nn.Module], other: nn.Module) -> None:
    """Copy the weights of the layers `own` in order into the linear layers of `other`."""
    layers = [module for module in other.modules() if isinstance(module, nn.Linear)]
    for mine, yours in zip(own, layers, strict=True):
        yours.load_state_dict(mine.state_dict())


def linear(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, nn.Linear)]


def gradients_at_steps(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """Return a list that collects the gradients at every step of `optimizer`."""
    seen: list[list[Tensor]] = []

    def keep(*_: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        seen.append([weight.grad.clone() for weight in weights])

    optimizer.register_step_pre_hook(keep)
    return seen


def assert_gradients(own: list[nn.Module], given: list[Tensor]) -> None:
    mine = [weight.grad for layer in own for weight in (layer.weight, layer.bias)]
    for one, other in zip(mine, given, strict=True):
        assert isinstance(one, Tensor)
        torch.testing.assert_close(one, other, **CLOSE)


def as_replay(batch: Any, action: Tensor) -> ReplayBufferSamples:
    ended = (batch.discount == 0).float().unsqueeze(1)
    return ReplayBufferSamples(
        batch.observation, action, batch.next_observation, ended, batch.reward.unsqueeze(1)
    )


@pytest.fixture
def batch() -> Any:
    whole = made_up(BOX)
    return replace(whole, weight=torch.ones_like(whole.weight))


def layers_of(critics: Any) -> list[list[nn.Module]]:
    """Return the linear layers of each critic, with copies of its weights and gradients."""
    found = []
    for i in range(len(critics.perceptrons.weights[0])):
        layers: list[nn.Module] = []
        for weight, bias in zip(critics.perceptrons.weights, critics.perceptrons.biases, strict=True):
            layer = nn.Linear(*weight[i].shape)
            layer.weight.data, layer.bias.data = weight[i].T.detach().clone(), bias[i, 0].detach().clone()
            if weight.grad is not None:
                layer.weight.grad, layer.bias.grad = weight.grad[i].T.clone(), bias.grad[i, 0].clone()
            layers.append(layer)
        found.append(layers)
    return found


def copy_critics(agent: Any, model: Any) -> None:
    """Copy the critics and target critics of `agent` into `model`."""
    modules = agent.modules()
    following = modules["target"] if "target" in modules else modules["target_critics"]
    for critics, other in ((modules["critics"], model.critic), (following, model.critic_target)):
        for i, layers in enumerate(layers_of(critics)):
            copy_layers(layers, getattr(other, f"qf{i}"))


def critic_layers(agent: Any) -> list[nn.Module]:
    return [layer for layers in layers_of(agent.modules()["critics"]) for layer in layers]


def test_sac_losses_and_gradients_equal_those_of_sb3(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _, _ = build(config_of("sac", "agent.initial_temperature=0.7"), BOX)
    disturb(agent)
    model = sb3_agent(sb3.SAC, BOX, [16, 16], ent_coef="auto_0.7", gamma=0.9)
    copy_critics(agent, model)
    policy = agent.modules()["policy"]
    copy_layers(linear(policy.torso), model.actor.latent_pi)
    last = linear(policy.outputs)[0]
    with torch.no_grad():
        for rows, head in ((slice(0, 2), model.actor.mu), (slice(2, 4), model.actor.log_std)):
            head.weight.copy_(last.weight[rows])
            head.bias.copy_(last.bias[rows])
    # Stable-Baselines3 adds epsilon inside the logarithm of the tanh correction; the true density has none.
    monkeypatch.setattr(model.actor.action_dist, "epsilon", 0.0)
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: as_replay(batch, batch.action))
    of_critics, of_policy = (
        gradients_at_steps(model.critic.optimizer),
        gradients_at_steps(model.actor.optimizer),
    )
    torch.manual_seed(0)
    model.train(1, batch_size=16)

    torch.manual_seed(0)
    here, following = (torch.normal(torch.zeros(16, 2), torch.ones(16, 2)) for _ in range(2))
    loss, _ = agent.critic_loss(agent.modules()["critics"], replace(batch, noise=following))
    loss.backward()
    assert loss.item() == pytest.approx(logged(model, "critic_loss"), rel=1e-5)
    assert_gradients(critic_layers(agent), of_critics[0])
    loss, (_, entropy) = agent.policy_loss(policy, replace(batch, noise=here))
    loss.backward()
    assert loss.item() == pytest.approx(logged(model, "actor_loss"), rel=1e-5)
    weight, bias = (torch.cat([of_policy[0][4 + i], of_policy[0][6 + i]]) for i in (0, 1))
    assert_gradients([*linear(policy.torso), last], [*of_policy[0][:4], weight, bias])
    assert model.target_entropy == agent.metrics()["target_entropy"] == -2
    temperature_loss = float(model.log_ent_coef.detach()) * (float(entropy) + 2)
    assert temperature_loss == pytest.approx(logged(model, "ent_coef_loss"), rel=1e-5)


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_td3_and_ddpg_losses_and_gradients_equal_those_of_sb3(
    name: str, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = build(config_of(name), BOX)
    disturb(agent)
    options = {"policy_delay": 1} if name == "td3" else {}
    model = sb3_agent(getattr(sb3, name.upper()), BOX, [16, 16], gamma=0.9, **options)
    copy_critics(agent, model)
    for own, other in (("policy", model.actor), ("target_policy", model.actor_target)):
        copy_layers(linear(agent.modules()[own]), other.mu)
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: as_replay(batch, batch.action))
    of_critics, of_policy = (
        gradients_at_steps(model.critic.optimizer),
        gradients_at_steps(model.actor.optimizer),
    )
    torch.manual_seed(0)
    model.train(1, batch_size=16)

    torch.manual_seed(0)
    noise = torch.empty(16, 2).normal_(0, 0.2).clamp(-0.5, 0.5) if name == "td3" else None
    loss, _ = agent.critic_loss(agent.modules()["critics"], replace(batch, noise=noise))
    loss.backward()
    assert loss.item() == pytest.approx(logged(model, "critic_loss"), rel=1e-5)
    assert_gradients(critic_layers(agent), of_critics[0])
    policy = agent.modules()["policy"]
    loss, _ = agent.policy_loss(policy, batch)
    loss.backward()
    assert loss.item() == pytest.approx(logged(model, "actor_loss"), rel=1e-5)
    assert_gradients(linear(policy), of_policy[0])


def test_dqn_loss_and_gradients_equal_those_of_sb3(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dqn_config("dqn", "agent.batch_size=16", "agent.lr=0", "agent.max_grad_norm=null")
    agent, _, _ = build_dqn(config, Spaces.observation_space, actions=3)
    model = sb3_agent(sb3.DQN, CHOICE, [32], gamma=0.9, max_grad_norm=1e9)
    disturb(agent)
    network, target = agent.modules()["q_network"], agent.modules()["target"]
    for own, other in ((network, model.q_net), (target, model.q_net_target)):
        copy_layers(linear(own), other)
    batch = made_up(CHOICE)
    monkeypatch.setattr(
        model.replay_buffer, "sample", lambda *_, **__: as_replay(batch, batch.action.unsqueeze(1))
    )
    seen = gradients_at_steps(model.policy.optimizer)
    model.train(1, batch_size=16)
    columns = {name: getattr(batch, name).numpy() for name in STORED}
    drawn = Transitions(**columns, weight=np.ones(16, np.float32), index=np.arange(16))
    monkeypatch.setattr(Experience, "due", lambda _: 1)
    monkeypatch.setattr(Experience, "sample", lambda _: drawn)
    assert agent.learn() == 1
    assert agent.metrics()["loss"] == pytest.approx(logged(model, "loss"), rel=1e-5)
    assert_gradients(linear(network), seen[0])


ON_POLICY = ["preset=none", "agent/network=mlp", "agent.network.torso.hidden=[16,16]"]
ON_POLICY += ["agent.network.shared=false", "agent.horizon=4", "env.num_envs=4"]
PPO = ["agent.batch_size=16", "agent.epochs=1", "agent.lr=0", "agent.max_grad_norm=null"]
PPO += ["agent.normalize_advantage=false", "agent.clip_range=0.2", "agent.entropy_coef=0.01"]
SEPARATE_NETWORKS = {"pi": [16, 16], "vf": [16, 16]}


def parts_of(network: Any, policy: Any) -> list[tuple[nn.Module, nn.Module]]:
    """Return pairs of the parts of labrl's network and the corresponding parts of Stable-Baselines3's."""
    torsos = (network.policy_torso, network.value_torso)
    sb3_torsos = (policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net)
    heads = (network.policy_head, network.value_head)
    return list(zip(torsos + heads, (*sb3_torsos, policy.action_net, policy.value_net), strict=True))


def copy_actor_critic(network: Any, policy: Any) -> None:
    for own, other in parts_of(network, policy):
        copy_layers(linear(own), other)
    if hasattr(policy, "log_std"):
        policy.log_std.data.copy_(network.policy_head.log_std[0])


def rollout_of(draw: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> Minibatch:
    """Return a random rollout, and make it the one that Stable-Baselines3's `model` learns from."""
    old_value, advantage, target, old_log_prob = (torch.randn(16) for _ in range(4))
    old_log_prob = old_log_prob - 1

    def minibatches(batch_size: int | None) -> Iterator[RolloutBufferSamples]:
        yield RolloutBufferSamples(draw.observation, draw.action, old_value, old_log_prob, advantage, target)

    monkeypatch.setattr(model.rollout_buffer, "get", minibatches)
    return Minibatch(
        observations=draw.observation,
        rows=None,
        action=draw.action,
        advantage=advantage,
        value_target=target,
        value=old_value,
        log_prob=old_log_prob,
        mask=None,
        sequence_length=1,
        state=torch.zeros(16, 0),
        start=np.zeros((16, 1), np.bool_),
    )


def learn_from(rollout: Minibatch, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent fill its rollout of 4 steps, but make its update on the given one."""
    monkeypatch.setattr(PolicyAgent, "batch", lambda *_, **__: rollout)
    seen, no = np.zeros((4, 3), np.float32), np.zeros(4, np.bool_)
    updates = []
    for _ in range(4):
        agent.act(Observation(seen))
        agent.observe(Step(seen, seen, np.zeros(4, np.float32), no, no, no))
        updates.append(agent.learn())
    assert updates == [0, 0, 0, 1]


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["box", "choice"])
def test_ppo_losses_and_gradients_equal_those_of_sb3(
    action: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = build(resolve(compose(["agent=ppo", *ON_POLICY, *PPO])), action)
    disturb(agent)
    options = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "normalize_advantage": False}
    options |= {"clip_range": 0.2, "ent_coef": 0.01, "vf_coef": 0.25, "max_grad_norm": 1e9}
    model = sb3_agent(sb3.PPO, action, SEPARATE_NETWORKS, **options)
    network = agent.modules()["actor_critic"]
    copy_actor_critic(network, model.policy)
    rollout = rollout_of(made_up(action, seed=2), model, monkeypatch)
    seen = gradients_at_steps(model.policy.optimizer)
    model._current_progress_remaining = 1.0
    model.train()

    learn_from(rollout, agent, monkeypatch)
    own = agent.metrics()
    assert own["loss_policy"] == pytest.approx(logged(model, "policy_gradient_loss"), rel=1e-5)
    assert 2 * own["loss_value"] == pytest.approx(logged(model, "value_loss"), rel=1e-5)
    assert -own["entropy"] == pytest.approx(logged(model, "entropy_loss"), rel=1e-5)
    assert own["clip_fraction"] == pytest.approx(logged(model, "clip_fraction"))
    assert own["kl"] == pytest.approx(logged(model, "approx_kl"), rel=1e-4)
    if action is BOX:
        log_std = network.policy_head.log_std.grad
        torch.testing.assert_close(log_std[0], seen[0].pop(0), **CLOSE)
    parts = (network.policy_torso, network.value_torso, network.policy_head, network.value_head)
    assert_gradients([layer for part in parts for layer in linear(part)], seen[0])


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["box", "choice"])
def test_a2c_weights_after_three_updates_equal_those_of_sb3(
    action: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [
        "agent=a2c",
        *ON_POLICY,
        "agent/optimizer=rmsprop",
        "agent.entropy_coef=0.01",
        "agent.lr=7e-3",
    ]
    overrides += ["agent.optimizer.eps=1e-5"]
    agent, _, _ = build(resolve(compose(overrides)), action)
    disturb(agent)
    options = {"ent_coef": 0.01, "vf_coef": 0.25, "max_grad_norm": 0.5, "gae_lambda": 1.0}
    as_baselines = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
    model = sb3_agent(sb3.A2C, action, SEPARATE_NETWORKS, learning_rate=7e-3, policy=as_baselines, **options)
    # RMSpropTFLike starts the mean square of the gradients at 1, labrl starts it at 0.
    for weight in model.policy.parameters():
        model.policy.optimizer.state[weight] = {"step": 0, "square_avg": torch.zeros_like(weight)}
    network = agent.modules()["actor_critic"]
    copy_actor_critic(network, model.policy)
    rollout = rollout_of(made_up(action, seed=2), model, monkeypatch)
    model._current_progress_remaining = 1.0
    before = [weight.detach().clone() for weight in network.parameters()]
    for _ in range(3):
        model.train()
        learn_from(rollout, agent, monkeypatch)
    own = agent.metrics()
    assert own["loss_policy"] == pytest.approx(logged(model, "policy_loss"), rel=1e-5)
    assert 2 * own["loss_value"] == pytest.approx(logged(model, "value_loss"), rel=1e-5)
    assert -own["entropy"] == pytest.approx(logged(model, "entropy_loss"), rel=1e-5)
    for own_part, other in parts_of(network, model.policy):
        for mine, yours in zip(linear(own_part), linear(other), strict=True):
            torch.testing.assert_close(mine.state_dict(), yours.state_dict(), **CLOSE)
    if action is BOX:
        torch.testing.assert_close(network.policy_head.log_std[0], model.policy.log_std, **CLOSE)
    assert all(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
