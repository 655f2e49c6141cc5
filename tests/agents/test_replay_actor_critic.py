"""Tests of SAC, CrossQ, TD3 and DDPG: updates follow the papers, actions stay in bounds, resume is exact."""

from __future__ import annotations

import copy
import math
import threading
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise, play
from replay_actor_critic_cases import (
    BOX,
    CHOICE,
    CONTINUOUS,
    KINDS,
    VECTOR,
    adam,
    assert_same,
    build,
    config_of,
    disturb,
    gaussian,
    made_up,
    taken,
)
from torch import Tensor

from labrl.agents.agent import NonFiniteError, Observation
from labrl.networks.critics import Critics
from labrl.spaces import Spaces

LR, TAU = 1e-2, 0.05
IMAGE = gym.spaces.Box(0, 255, (4, 36, 36), np.uint8)


class World(Noise):
    """Random environment, as for DQN, that accepts actions of any shape."""

    def step(self, action: np.ndarray) -> Any:
        return super().step(action.reshape(len(action), -1).sum(1))


def soft_value(policy: Any, critics: Critics, observation: Tensor, noise: Tensor, alpha: float) -> Tensor:
    """Compute the soft value of each state, min Q - alpha log pi. [batch]

    noise: [batch, action size] for one sample per state; empty ([batch, 0]) for a sum over discrete actions.
    """
    outputs = policy(observation)
    if noise.shape[1] == 0:
        probability = torch.softmax(outputs, 1)
        values = critics(observation, probability)
        smaller = torch.minimum(values[0], values[1])
        return (probability * (smaller - alpha * probability.log())).sum(1)
    action, log_prob = gaussian(outputs, noise)
    values = critics(observation, action)
    return torch.minimum(values[0], values[1]) - alpha * log_prob


def mean_entropy(policy: Any, observation: Tensor, noise: Tensor) -> float:
    outputs = policy(observation)
    if noise.shape[1] == 0:
        probability = torch.softmax(outputs, 1)
        return float(-(probability * probability.log()).sum(1).mean().detach())
    return float(-gaussian(outputs, noise)[1].detach().mean())


def learner_threads() -> set[threading.Thread]:
    """Return the threads of learners, those of earlier tests included."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("learner")}


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["box", "choice"])
def test_sac_update_follows_the_paper(action: gym.Space) -> None:
    """Compare two updates with a computation from the paper's equations and PyTorch's Adam."""
    agent, _, streams = build(config_of("sac", f"agent.lr={LR}", f"agent.target.tau={TAU}"), action)
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    policy, critics, target = nets["policy"], nets["critics"], nets["target"]
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizers = adam(policy, LR), adam(critics, LR), torch.optim.Adam([log_alpha], lr=LR)
    target_entropy = -2.0 if action is BOX else 0.6 * math.log(3)
    noises = copy.deepcopy(streams.torch("noise"))
    for update in (1, 2):
        batch = made_up(action, seed=update)
        noise = torch.randn((2, 16, 2), generator=noises) if action is BOX else torch.empty((2, 16, 0))
        alpha = float(log_alpha.detach().exp())
        errors = agent.update(batch)

        with torch.no_grad():
            value = soft_value(policy, target, batch.next_observation, noise[0], alpha)
            target_value = batch.reward + batch.discount * value
        error = taken(critics, batch) - target_value
        optimizers[1].zero_grad()
        (0.5 * error.square().sum(0) * batch.weight).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-soft_value(policy, critics, batch.observation, noise[1], alpha).mean()).backward()
        entropy = mean_entropy(nets["policy"], batch.observation, noise[1])
        optimizers[0].step()
        optimizers[2].zero_grad()
        (log_alpha * (entropy - target_entropy)).sum().backward()
        optimizers[2].step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critics.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        torch.testing.assert_close(errors, error.detach().abs().mean(0), rtol=1e-3, atol=1e-4)
    for name, module in agent.modules().items():
        assert_same(module, nets[name])
    assert agent.metrics()["temperature"] == pytest.approx(float(log_alpha.detach().exp()), rel=1e-5)


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_td3_and_ddpg_updates_follow_the_papers(name: str) -> None:
    """Compare three updates, of which TD3 changes policy and target networks in the second only."""
    overrides = (f"agent.lr={LR}", f"agent.target.tau={TAU}")
    agent, _, streams = build(config_of(name, *overrides))
    disturb(agent)
    nets = copy.deepcopy(agent.modules())
    policy, critics = nets["policy"], nets["critics"]
    slow_policy, slow_critics = nets["target_policy"], nets["target_critics"]
    optimizers = adam(policy, LR), adam(critics, LR)
    noises = copy.deepcopy(streams.torch("noise"))
    for update in (1, 2, 3):
        batch = made_up(BOX, seed=update)
        agent.update(batch)
        with torch.no_grad():
            action = torch.tanh(slow_policy(batch.next_observation))
            if name == "td3":
                noise = (0.2 * torch.randn((16, 2), generator=noises)).clamp(-0.5, 0.5)
                action = (action + noise).clamp(-1, 1)
            values = slow_critics(batch.next_observation, action)
            target_value = batch.reward + batch.discount * values.min(0).values
        error = critics(batch.observation, batch.action) - target_value
        assert len(error) == (2 if name == "td3" else 1)
        optimizers[1].zero_grad()
        (error.square().sum(0) * batch.weight).mean().backward()
        optimizers[1].step()
        if name == "ddpg" or update % 2 == 0:
            optimizers[0].zero_grad()
            chosen = torch.tanh(policy(batch.observation))
            (-critics(batch.observation, chosen)[0].mean()).backward()
            optimizers[0].step()
            with torch.no_grad():
                for slow, fast in ((slow_policy, policy), (slow_critics, critics)):
                    for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                        old.lerp_(new, TAU)
    for module_name, module in agent.modules().items():
        assert_same(module, nets[module_name])


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["box", "choice"])
def test_crossq_update_uses_one_pass_for_both_steps_and_no_target(action: gym.Space) -> None:
    agent, _, streams = build(config_of("crossq", f"agent.lr={LR}"), action)
    disturb(agent)
    assert set(agent.modules()) == {"policy", "critics"}
    critics, policy = (copy.deepcopy(agent.modules()[name]) for name in ("critics", "policy"))
    batch, optimizer = made_up(action), torch.optim.Adam(critics.parameters(), lr=LR, betas=(0.5, 0.999))
    noise = torch.randn((2, 16, 2), generator=copy.deepcopy(streams.torch("noise")))
    agent.update(batch)
    with torch.no_grad():
        outputs = policy(batch.next_observation)
        if action is BOX:
            choice, log_prob = gaussian(outputs, noise[0])
            actions = torch.cat([batch.action, choice])
        else:
            choice, actions = torch.softmax(outputs, 1), batch.action
            log_prob = (choice * choice.log()).sum(1)
    values = critics(torch.cat([batch.observation, batch.next_observation]), actions)
    now, after = values[:, :16], values[:, 16:].detach()
    smaller = torch.minimum(after[0], after[1])
    if action is CHOICE:
        now = now[:, torch.arange(16), batch.action]
        smaller = (smaller * choice).sum(1)
    target_value = batch.reward + batch.discount * (smaller - log_prob)
    (0.5 * (now - target_value).square().sum(0) * batch.weight).mean().backward()
    optimizer.step()
    assert_same(agent.modules()["critics"], critics)
    assert_same(agent.modules()["policy"], policy)  # the policy learns at every third update only
    for own, other in zip(agent.modules()["critics"].buffers(), critics.buffers(), strict=True):
        torch.testing.assert_close(own, other)
    for _ in range(2):
        agent.update(batch)
    with pytest.raises(AssertionError):
        assert_same(agent.modules()["policy"], policy)


def test_crossq_policy_loss_leaves_the_critics_statistics_unchanged() -> None:
    agent, clock, _ = build(config_of("crossq"))
    play(agent, clock, World(VECTOR, 4), 30)
    policy, critics = agent.modules()["policy"], agent.modules()["critics"]
    before = copy.deepcopy(critics)
    noise = torch.zeros((16, 2))
    batch = replace(made_up(BOX), noise=noise)
    loss, _ = agent.policy_loss(policy, batch)
    loss.backward()
    after = critics.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.state_dict().items())
    with torch.no_grad():
        value = soft_value(policy, before.eval(), batch.observation, noise, agent.metrics()["temperature"])
    torch.testing.assert_close(loss.detach(), -value.mean())


@pytest.mark.parametrize("name", CONTINUOUS)
def test_actions_fill_their_box_and_stay_inside(name: str) -> None:
    """Check random, exploring and best actions; stored actions must lie in [-1, 1]."""
    agent, clock, _ = build(config_of(name))
    disturb(agent)
    with torch.no_grad():
        for weight in agent.modules()["policy"].parameters():
            weight.mul_(100)  # large outputs, far into the tails of tanh
    observation = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    kinds = []
    for frame in (0, 10_000):
        clock.tick(frame)
        kinds.append(np.concatenate([agent.act(Observation(observation)) for _ in range(200)]))
        assert np.abs(agent.decision()["action"]).max() <= 1
    kinds.append(agent.evaluation_action(Observation(observation), np.random.default_rng(0)))
    for actions in kinds:
        assert actions.dtype == np.float32
        assert all(BOX.contains(action) for action in actions)
    assert np.allclose([kinds[0].min(0), kinds[0].max(0)], [BOX.low, BOX.high], atol=0.2)


def test_two_threads_in_large_products_are_exact_and_set_back() -> None:
    """Use an agent whose minibatches must not be halved."""
    large = ("agent.network.torso.hidden=[128,128]", "agent.batch_size=256")
    before, weights = torch.get_num_threads(), []
    for overrides, num_threads in ((large, 2), (large, 2), ((), before)):
        agent, clock, _ = build(config_of("crossq", *overrides), num_threads=2)
        critics = agent.modules()["critics"]
        found: set[int] = set()
        handle = critics.register_forward_hook(lambda *_, found=found: found.add(torch.get_num_threads()))
        assert play(agent, clock, World(VECTOR, 4), 68) > 10
        assert found == {num_threads}
        assert torch.get_num_threads() == before
        handle.remove()
        weights.append(torch.cat([weight.detach().flatten() for weight in critics.parameters()]))
    assert torch.equal(*weights[:2])


@pytest.mark.parametrize(
    ("name", "action"),
    [("sac", BOX), ("sac", CHOICE), ("td3", BOX), ("td3_bc", BOX), ("tqc", BOX)],
)
def test_two_threads_on_halves_of_the_rows_compute_the_gradient_of_one(name: str, action: gym.Space) -> None:
    """Split large products, computed by kernels, into halves of a minibatch of an odd size.

    The result must be close to that of one thread and exactly repeatable. The loss sees the whole minibatch,
    which TD3+BC needs.
    """
    overrides = ["agent.network.torso.mlp.hidden=[128,128]", "agent.batch_size=512"]
    overrides += ["agent.policy_delay=1"] if name.startswith("td3") else []
    gradients: list[list[Tensor]] = []
    before = learner_threads()
    for num_threads in (1, 2, 2):
        agent, _, _ = build(config_of(name, *overrides), action, num_threads=num_threads)
        disturb(agent)
        errors = agent.update(made_up(action, 511))
        threads = learner_threads() - before
        assert bool(threads) == (num_threads > 1)
        nets = agent.modules()
        weights = [*nets["critics"].parameters(), *nets["policy"].parameters()]
        # Small entries of a gradient are sums that nearly cancel, so errors are relative to the largest.
        gradients.append([errors, *(weight.grad / weight.grad.abs().max() for weight in weights)])
        agent.close()
    for one, other, repeated in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert torch.equal(other, repeated)


def test_stacked_critics_equal_separate_perceptrons() -> None:
    """Compare stacked critics, each with its own weights, with a computation of one at a time.

    Critics with layer normalization are not stacked.
    """
    config = config_of("sac").agent.config.network
    spaces = Spaces(VECTOR, BOX, 1)
    stacked = Critics(config, spaces, 3)
    assert stacked.perceptrons is not None
    observation, action = torch.randn(5, 3), torch.randn(5, 2)
    values = stacked(observation, action)
    for i, value in enumerate(values):
        x = torch.cat([observation, action], 1)
        for weight, bias in zip(stacked.perceptrons.weights, stacked.perceptrons.biases, strict=True):
            last = x @ weight[i] + bias[i]
            x = torch.relu(last)
        torch.testing.assert_close(value, last.squeeze(1))
    assert len(values.unique()) == 15
    torch.testing.assert_close(stacked(observation, action, first=True), values[:1])
    normalized = Critics(
        config_of("sac", "agent.network.torso.mlp.layer_norm=true").agent.config.network, spaces, 2
    )
    assert normalized.perceptrons is None
    assert normalized(observation, action).shape == (2, 5)


ON_IMAGES = [(name, action) for name, action in KINDS if name not in ("ddpg", "td3_bc")]
BF16_CASES = [("sac", BOX), ("crossq", CHOICE)]


@pytest.mark.parametrize(
    ("name", "action", "precision"),
    [
        *((name, action, "fp32") for name, action in ON_IMAGES),
        *(
            pytest.param(*one, "bf16", marks=() if one in BF16_CASES else pytest.mark.matrix)
            for one in ON_IMAGES
        ),
    ],
)
def test_agents_learn_from_images(name: str, action: gym.Space, precision: str) -> None:
    small = f"agent.network.torso.{'features' if name == 'crossq' else 'cnn.features'}=16"
    agent, clock, _ = build(config_of(name, small), action, IMAGE, num_threads=2, precision=precision)
    assert play(agent, clock, World(IMAGE, 4), 11) == 4
    assert np.isfinite(agent.metrics()["grad_norm_critic"])
    agent.close()


@pytest.mark.parametrize("name", ["sac", "tqc", "td3", "crossq", "iql"])
def test_agents_learn_from_discrete_observations(name: str) -> None:
    class Doors(World):
        def _look(self) -> np.ndarray:
            return self._rng.integers(5, size=self._num_envs)

    agent, clock, _ = build(config_of(name), BOX, gym.spaces.Discrete(5))
    assert play(agent, clock, Doors(gym.spaces.Discrete(5), 4), 15) == 20
    assert np.isfinite(agent.metrics()["grad_norm_critic"])


def test_non_finite_loss_raises_an_error_with_its_term() -> None:
    agent, clock, _ = build(config_of("td3", "agent.lr=1e30"))
    with pytest.raises(NonFiniteError) as caught:
        play(agent, clock, World(VECTOR, 4), 40)
    assert caught.value.term in ("loss_critic", "grad_norm_critic", "loss_policy", "grad_norm_policy")


def test_schedules_follow_the_clock() -> None:
    falling = "{kind: linear, start: 1.0, end: 0.0, horizon: 100}"
    overrides = ("~agent.lr", f"+agent.lr={falling}", "~agent.temperature", f"+agent.temperature={falling}")
    agent, clock, _ = build(config_of("sac", *overrides, "agent.critic_lr=0.5"))
    clock.tick(25)
    metrics = agent.metrics()
    assert (metrics["lr"], metrics["temperature"], metrics["critic_lr"]) == (0.75, 0.75, 0.5)
    assert math.isnan(metrics["target_entropy"])


def test_fixed_temperature_is_not_learned() -> None:
    agent, clock, _ = build(config_of("sac", "agent.temperature=0.3"))
    play(agent, clock, World(VECTOR, 4), 20)
    assert agent.metrics()["temperature"] == 0.3


def test_function_after_an_update_may_differ_in_each_update() -> None:
    agent, _, _ = build(config_of("td3"))
    called: list[str] = []
    for name in ("first", "second", "third"):
        agent.descend(
            "critics", agent.critic_loss, made_up(BOX), after=lambda _, name=name: called.append(name)
        )
    assert called == ["first", "second", "third"]
