"""Tests that losses, gradients and updates equal those of Stable-Baselines3 for the same weights and data.

The recipes `experiment=sb3/...` and `experiment=zoo/...` are its agents with their published values.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import build, disturb, made_up
from first_updates import (
    layers,
    learn_from_rollout,
    learn_from_transitions,
    num_parameters,
    random_rollout,
    recipe,
)
from torch import Tensor, nn

from labrl.config import config_folder
from labrl.memory import Minibatch
from labrl.schedules import value_at

sb3 = pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3")
from stable_baselines3.common.logger import configure  # noqa: E402
from stable_baselines3.common.type_aliases import ReplayBufferSamples, RolloutBufferSamples  # noqa: E402

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
CHOICE = gym.spaces.Discrete(3)
SEEN = np.zeros((4, 3), np.float32)
CLOSE = {"rtol": 1e-5, "atol": 5e-6}


class Spaces(gym.Env):
    """An environment that only has spaces and is never stepped."""

    observation_space = gym.spaces.Box(-5, 5, (3,), np.float32)

    def __init__(self, action_space: gym.Space, observation_space: gym.Space = observation_space) -> None:
        self.action_space, self.observation_space = action_space, observation_space


def sb3_agent(kind: Any, action: gym.Space, **options: Any) -> Any:
    """Build an agent of Stable-Baselines3; its default learning rate of 0 leaves all weights unchanged."""
    env: Any = sb3.common.vec_env.DummyVecEnv([lambda: Spaces(action)])
    model = kind("MlpPolicy", env, device="cpu", **{"learning_rate": 0.0, **options})
    model.set_logger(configure(format_strings=[]))
    return model


def logged(model: Any, name: str) -> float:
    """Return a value that an agent of Stable-Baselines3 has logged in its update."""
    return float(model.logger.name_to_value[f"train/{name}"])


def copy_layers(own: list[nn.Module], other: nn.Module) -> None:
    """Copy the weights of the layers `own` in order into the linear layers of `other`."""
    for mine, yours in zip(own, layers(other), strict=True):
        yours.load_state_dict(mine.state_dict())


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


def assert_weights(pairs: list[tuple[nn.Module, nn.Module]]) -> None:
    """Compare the linear layers of each module of labrl with those of a module of Stable-Baselines3."""
    for own, other in pairs:
        for mine, yours in zip(layers(own), layers(other), strict=True):
            torch.testing.assert_close(mine.state_dict(), yours.state_dict(), **CLOSE)


def as_replay(batch: Any, action: Tensor) -> ReplayBufferSamples:
    ended = (batch.discount == 0).float().unsqueeze(1)
    return ReplayBufferSamples(
        batch.observation, action, batch.next_observation, ended, batch.reward.unsqueeze(1)
    )


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
        for i, each in enumerate(layers_of(critics)):
            copy_layers(each, getattr(other, f"qf{i}"))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_losses_and_gradients_of_sac_and_td3_equal_those_of_sb3(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = build(recipe(f"sb3/{name}", "agent.memory.capacity=1000"), action=BOX)
    model = sb3_agent(getattr(sb3, name.upper()), BOX, **({"policy_delay": 1} if name == "td3" else {}))
    disturb(agent)
    copy_critics(agent, model)
    policy, critics = agent.modules()["policy"], agent.modules()["critics"]
    assert num_parameters(policy) == num_parameters(model.actor)
    assert num_parameters(critics) == num_parameters(model.critic)
    if name == "sac":
        copy_layers(layers(policy.torso), model.actor.latent_pi)
        last = layers(policy.outputs)[0]
        with torch.no_grad():
            for rows, head in ((slice(0, 2), model.actor.mu), (slice(2, 4), model.actor.log_std)):
                head.weight.copy_(last.weight[rows])
                head.bias.copy_(last.bias[rows])
        # Stable-Baselines3 adds epsilon inside the logarithm of the tanh correction; the density has none.
        monkeypatch.setattr(model.actor.action_dist, "epsilon", 0.0)
    else:
        for own, other in (("policy", model.actor), ("target_policy", model.actor_target)):
            copy_layers(layers(agent.modules()[own]), other.mu)
    batch = made_up(BOX)
    discount = torch.where(batch.discount == 0, 0.0, 0.99)
    batch = replace(batch, discount=discount, weight=torch.ones_like(batch.weight))
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: as_replay(batch, batch.action))
    of_critics, of_policy = map(gradients_at_steps, (model.critic.optimizer, model.actor.optimizer))
    torch.manual_seed(0)
    model.train(1, batch_size=16)

    torch.manual_seed(0)
    noises = [torch.normal(torch.zeros(16, 2), torch.ones(16, 2)) for _ in range(2)]
    if name == "td3":
        torch.manual_seed(0)
        noises = [noises[0], torch.empty(16, 2).normal_(0, 0.2).clamp(-0.5, 0.5)]
    loss, _ = agent.critic_loss(critics, replace(batch, noise=noises[1]))
    loss.backward()
    assert loss.item() == pytest.approx(logged(model, "critic_loss"), rel=1e-5)
    assert_gradients([layer for each in layers_of(critics) for layer in each], of_critics[0])
    loss, means = agent.policy_loss(policy, replace(batch, noise=noises[0]))
    loss.backward()
    assert loss.item() == pytest.approx(logged(model, "actor_loss"), rel=1e-5)
    expected = of_policy[0]
    if name == "sac":  # two heads of Stable-Baselines3 are one of labrl
        expected = [*expected[:4], *(torch.cat([expected[4 + i], expected[6 + i]]) for i in (0, 1))]
        assert model.target_entropy == agent.metrics()["target_entropy"] == -2
        temperature_loss = float(model.log_ent_coef.detach()) * (float(means[1]) + 2)
        assert temperature_loss == pytest.approx(logged(model, "ent_coef_loss"), rel=1e-5)
    assert_gradients(layers(policy), expected)


def test_first_update_of_dqn_equals_that_of_sb3(monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe("sb3/dqn", "agent.batch_size=16", "agent.memory.capacity=1000")
    model = sb3_agent(sb3.DQN, CHOICE, gamma=0.9, learning_rate=1e-4)
    agent, _, _ = build(config, observation=Spaces.observation_space, action=CHOICE)
    disturb(agent)
    network, target = agent.modules()["q_network"], agent.modules()["target"]
    assert num_parameters(network) == num_parameters(model.q_net)
    for own, other in ((network, model.q_net), (target, model.q_net_target)):
        copy_layers(layers(own), other)
    batch = made_up(CHOICE)
    given = as_replay(batch, batch.action.unsqueeze(1))
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: given)
    seen = gradients_at_steps(model.policy.optimizer)
    model.train(1, batch_size=16)
    learn_from_transitions(agent, batch, monkeypatch)
    assert agent.metrics()["loss"] == pytest.approx(logged(model, "loss"), rel=1e-5)
    assert_gradients(layers(network), seen[0])
    assert_weights([(network, model.q_net)])


def parts_of(network: Any, policy: Any) -> list[tuple[nn.Module, nn.Module]]:
    """Return pairs of the parts of labrl's network and the corresponding parts of Stable-Baselines3's."""
    torsos = (network.policy_torso, network.value_torso)
    sb3_torsos = (policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net)
    heads = (network.policy_head, network.value_head)
    return list(zip(torsos + heads, (*sb3_torsos, policy.action_net, policy.value_net), strict=True))


def copy_actor_critic(network: Any, policy: Any) -> None:
    for own, other in parts_of(network, policy):
        copy_layers(layers(own), other)
    if hasattr(policy, "log_std"):
        policy.log_std.data.copy_(network.policy_head.log_std[0])


def rollout_of(draw: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> Minibatch:
    """Return a random rollout, and make it the one that Stable-Baselines3's `model` learns from."""
    rollout = random_rollout(draw.observation, draw.action)
    stored = (draw.observation, draw.action, rollout.value, rollout.log_prob, rollout.advantage)

    def minibatches(batch_size: int | None) -> Iterator[RolloutBufferSamples]:
        yield RolloutBufferSamples(*stored, rollout.value_target)

    monkeypatch.setattr(model.rollout_buffer, "get", minibatches)
    return rollout


def lin(start: float) -> Callable[[float], float]:
    """Return the Zoo's `lin_<start>`, a function of the remaining progress."""
    return partial(operator.mul, start)


LANDER = {
    **{"n_envs": 16, "n_timesteps": 1e6, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98},
    **{"gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
}
ZOO: dict[str, dict[str, Any]] = {
    "cartpole": {
        **{"n_envs": 8, "n_timesteps": 1e5, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8},
        **{"gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0, "learning_rate": lin(0.001)},
        **{"clip_range": lin(0.2)},
    },
    "mountain_car": {
        **{"normalize": True, "n_envs": 16, "n_timesteps": 1e6, "n_steps": 16, "gae_lambda": 0.98},
        **{"gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    },
    "acrobot": {
        **{"normalize": True, "n_envs": 16, "n_timesteps": 1e6, "n_steps": 256, "gae_lambda": 0.94},
        **{"gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    },
    "bipedal_walker": {
        **{"normalize": True, "n_envs": 32, "n_timesteps": 5e6, "n_steps": 2048, "batch_size": 64},
        **{"gae_lambda": 0.95, "gamma": 0.999, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4},
        **{"clip_range": 0.18},
    },
    "lunar_lander": LANDER,
    "lunar_lander_continuous": LANDER,
}
"""Entries of `hyperparams/ppo.yml` of RL Baselines3 Zoo, by labrl's environment, without those that use
state-dependent exploration."""
ABOUT_ENV = ("n_envs", "n_timesteps", "normalize")


def published(name: str) -> dict[str, Any]:
    """Return the arguments of the agent of Stable-Baselines3 that a recipe names, with the Zoo's values."""
    folder, _, kind = name.partition("/")
    signature = inspect.signature(getattr(sb3, kind.partition("_")[0].upper()).__init__)
    defaults = {key: one.default for key, one in signature.parameters.items() if one.default is not one.empty}
    return {**defaults, "n_envs": 1, **(ZOO[kind.removeprefix("ppo_")] if folder == "zoo" else {})}


ON_POLICY_KEYS = {
    **{"gamma": "gamma", "gae_lambda": "gae_lambda", "n_steps": "horizon", "ent_coef": "entropy_coef"},
    **{"max_grad_norm": "max_grad_norm", "normalize_advantage": "normalize_advantage"},
}
PPO_KEYS = {"batch_size": "batch_size", "n_epochs": "epochs", "clip_range_vf": "value_clip_range"}
REPLAY_KEYS = {
    **{"gamma": "gamma", "batch_size": "batch_size", "learning_starts": "learning_starts"},
    **{"n_steps": "n_step", "buffer_size": "memory.config.capacity"},
}
POLYAK = {"tau": "target.config.tau"}
TD3_KEYS = {"policy_delay": "policy_delay", "target_policy_noise": "target_noise"}
SAME_KEYS = {
    "ppo": {**ON_POLICY_KEYS, **PPO_KEYS, "target_kl": "target_kl"},
    "a2c": ON_POLICY_KEYS,
    "dqn": {**REPLAY_KEYS, "max_grad_norm": "max_grad_norm", "target_update_interval": "target.config.every"},
    "sac": {**REPLAY_KEYS, **POLYAK},
    "td3": {**REPLAY_KEYS, **POLYAK, **TD3_KEYS, "target_noise_clip": "target_noise_clip"},
}
"""Arguments of the agents of Stable-Baselines3, and the keys of labrl with the same meaning."""
ON_POLICY_RECIPES = ["sb3/ppo", "sb3/a2c", *(f"zoo/ppo_{env}" for env in ZOO)]
RECIPES = [*ON_POLICY_RECIPES, "sb3/dqn", "sb3/sac", "sb3/td3"]


def test_every_recipe_is_compared() -> None:
    folder = config_folder() / "experiment"
    files = [*folder.glob("sb3/*.yaml"), *folder.glob("zoo/*.yaml")]
    assert sorted(RECIPES) == sorted(str(file.relative_to(folder).with_suffix("")) for file in files)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_published_values(name: str) -> None:
    config, given = recipe(name), published(name)
    own, env = config.agent.config, config.env.config
    keys = SAME_KEYS[name.partition("/")[2].partition("_")[0]]
    assert {key: operator.attrgetter(key)(own) for key in keys.values()} == {
        key: given[argument] for argument, key in keys.items()
    }
    schedules = {"lr": given["learning_rate"]}
    if hasattr(own, "clip_range"):
        schedules["clip_range"] = given["clip_range"]
    for key, schedule in schedules.items():
        for progress in (0.0, 0.25, 1.0):
            expected = schedule(1 - progress) if callable(schedule) else schedule
            assert value_at(getattr(own, key), int(progress * env.max_frame)) == pytest.approx(expected)
    if "train_freq" in given:
        assert own.updates_per_frame == given["gradient_steps"] / given["train_freq"]
        assert own.warmup_actions == "random"
    if name == "sb3/dqn":
        epsilon, fraction = own.exploration.config.epsilon, given["exploration_fraction"]
        assert value_at(epsilon, 0) == given["exploration_initial_eps"]
        assert value_at(epsilon, int(0.99 * fraction * env.max_frame)) > given["exploration_final_eps"]
        final = pytest.approx(given["exploration_final_eps"])
        assert value_at(epsilon, int(fraction * env.max_frame)) == final
    if name == "sb3/td3":
        assert own.noise.config.std == 0  # like action_noise=None
    assert (env.num_envs, env.max_frame) == (given["n_envs"], given.get("n_timesteps", env.max_frame))
    # Those of Stable-Baselines3's VecNormalize, which the Zoo gives the discount of the agent.
    scaled = {"clip": 10.0, "epsilon": 1e-8, "window": None}
    expected = [scaled, {**scaled, "gamma": own.gamma}] if given.get("normalize") else []
    assert [vars(one.config) for one in config.transforms.values() if one] == expected


@pytest.mark.parametrize("name", ON_POLICY_RECIPES)
def test_first_update_of_a_recipe_equals_that_of_sb3(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = published(name)
    ppo = "n_epochs" in values
    action = BOX if name.endswith(("continuous", "walker", "a2c")) else CHOICE
    own_size = ["agent.batch_size=16"] if ppo else []
    config = recipe(name, "agent.horizon=4", "env.num_envs=4", *own_size)
    agent, _, _ = build(config, action=action)
    options = {
        key: value for key, value in values.items() if key not in (*ABOUT_ENV, "device", "policy_kwargs")
    }
    options |= {"n_steps": 16, **({"batch_size": 16} if ppo else {})}
    model = sb3_agent(sb3.PPO if ppo else sb3.A2C, action, **options)
    network = agent.modules()["actor_critic"]
    assert num_parameters(network) == num_parameters(model.policy)
    for own_part, other in parts_of(network, model.policy):
        for mine, yours in zip(layers(own_part), layers(other), strict=True):
            scales = (torch.linalg.svdvals(layer.weight.detach()) for layer in (mine, yours))
            torch.testing.assert_close(*scales, rtol=1e-4, atol=1e-5)
    disturb(agent)
    copy_actor_critic(network, model.policy)
    rollout = rollout_of(made_up(action, seed=2), model, monkeypatch)
    model._current_progress_remaining = 1.0
    seen = gradients_at_steps(model.policy.optimizer)
    model.train()
    learn_from_rollout(agent, rollout, SEEN, monkeypatch)
    assert len(seen) == (config.agent.config.epochs if ppo else 1)
    assert_weights(parts_of(network, model.policy))
    if action is BOX:
        torch.testing.assert_close(network.policy_head.log_std[0], model.policy.log_std, **CLOSE)
    own = agent.metrics()
    policy_loss = "policy_gradient_loss" if ppo else "policy_loss"
    assert own["loss_policy"] == pytest.approx(logged(model, policy_loss), rel=1e-4)
    assert -own["entropy"] == pytest.approx(logged(model, "entropy_loss"), rel=1e-4)


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn"])
def test_recipes_have_the_networks_of_sb3_for_images(name: str) -> None:
    images = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    config = recipe(f"sb3/{name}", *(["agent.memory.capacity=100"] if name == "dqn" else []))
    agent, _, _ = build(config, observation=images, action=CHOICE, num_envs=1)
    smaller = {"buffer_size": 100} if name == "dqn" else {}
    model = getattr(sb3, name.upper())("CnnPolicy", Spaces(CHOICE, images), device="cpu", **smaller)
    other = model.q_net if name == "dqn" else model.policy
    assert num_parameters(next(iter(agent.modules().values()))) == num_parameters(other)
