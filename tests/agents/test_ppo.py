"""Tests of PPO: the update equals the paper's equations, bootstrapping is correct, and runs are exact."""

from __future__ import annotations

import copy
import dataclasses

import dqn_cases
import gymnasium as gym
import numpy as np
import on_policy_cases
import pytest
import torch
from dqn_cases import weights_of
from on_policy_cases import network_of, rollouts
from options import options
from refusals import refused

from labrl.agents.agent import NonFiniteError, Observation
from labrl.agents.ppo import PPO, PPOConfig, clipped_surrogate, value_loss
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.errors import Code
from labrl.learning.compute import Compute
from labrl.networks.actor_critic import ActorCritic
from labrl.schedules import AdaptiveRate, LinearSchedule
from labrl.seeding import Streams
from labrl.spaces import Spaces
from labrl.step import Episode, Step
from labrl.trial.create import check

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
CONFIG: PPOConfig = options("agent", "agent=ppo", horizon=8, epochs=2, batch_size=16)
NETWORK = CONFIG.network
DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


def build(
    config: PPOConfig = CONFIG,
    observation: gym.Space = VECTOR,
    action: gym.Space = DISCRETE,
    num_threads: int = 1,
    precision: str = "fp32",
    streams: Streams | None = None,
) -> tuple[PPO, Clock]:
    clock = Clock(10_000)
    spaces = Spaces(observation, action, num_envs=4)
    compute = Compute.choose("cpu", precision, num_threads)
    return PPO(config, spaces=spaces, clock=clock, streams=streams or Streams(3), compute=compute), clock


def play(agent: PPO, clock: Clock, space: gym.Space, steps: int, seed: int = 0) -> int:
    """Run the agent in a random environment and return the number of updates.

    The reward depends on the action; episodes are terminated and truncated at random.
    """
    rng = np.random.default_rng(seed)

    def random_observations() -> np.ndarray:
        if space.dtype == np.uint8:
            return rng.integers(0, 256, (4, *space.shape)).astype(np.uint8)
        return rng.normal(size=(4, *space.shape)).astype(np.float32)

    observation, updates = random_observations(), 0
    for _ in range(steps):
        action = agent.act(Observation(observation))
        terminated, truncated = rng.random(4) < 0.1, rng.random(4) < 0.1
        over = terminated | truncated
        next_observation = random_observations()
        episodes = [Episode(int(i), 0, 0, 0.0, 1, bool(truncated[i])) for i in np.flatnonzero(over)]
        reward = np.asarray(action, np.float32).reshape(4, -1).sum(1)
        agent.observe(
            Step(random_observations(), next_observation, reward, terminated, truncated, over, episodes)
        )
        updates += agent.learn()
        clock.tick(4)
        observation = random_observations()
    return updates


def test_clipped_surrogate_is_pessimistic() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.05])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    expected = torch.tensor([1.2, -1.5, 0.5, -0.8, 2.1]).mean()
    torch.testing.assert_close(clipped_surrogate(ratio, advantage, 0.2), expected)


def test_value_loss_equals_hand_computed_values() -> None:
    value, old, target = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    torch.testing.assert_close(value_loss(value, old, target, None), torch.tensor(0.5))
    # Clipping moves the first value to 0.5; its squared error, 0.25, is below the unclipped 1, which counts.
    torch.testing.assert_close(value_loss(value, old, target, 0.5), torch.tensor(0.5))
    torch.testing.assert_close(
        value_loss(torch.tensor([1.0]), torch.zeros(1), torch.ones(1), 0.5), torch.tensor(0.125)
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_update_is_adam_on_the_gradient_of_equation_9(
    shared: bool, action: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute the new weights from the paper's equation for one rollout, one epoch and one minibatch."""
    config = dataclasses.replace(
        CONFIG,
        network=dataclasses.replace(NETWORK, shared=shared),
        epochs=1,
        batch_size=32,
        entropy_coef=0.02,
        max_grad_norm=0.3,
        lr=1e-3,
    )
    agent, clock = build(config, action=action)
    play(agent, clock, VECTOR, 7)
    reference = copy.deepcopy(network_of(agent))
    batches = rollouts(monkeypatch)
    assert play(agent, clock, VECTOR, 1) == 1
    (batch,) = batches

    parameters, value, _ = reference(batch.observation)
    if action is DISCRETE:
        policy = torch.distributions.Categorical(logits=parameters)
        log_prob, entropy = policy.log_prob(batch.action), policy.entropy()
    else:
        normal = torch.distributions.Normal(parameters[:, :2], parameters[:, 2:].exp())
        log_prob, entropy = normal.log_prob(batch.action).sum(1), normal.entropy().sum(1)
    ratio = (log_prob - batch.log_prob).exp()
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss = -surrogate + 0.5 * 0.5 * (value - batch.value_target).square().mean() - 0.02 * entropy.mean()
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3, eps=1e-5)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
    optimizer.step()
    for ours, expected in zip(network_of(agent).parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_stored_log_probabilities_are_those_of_the_acting_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock = build()
    play(agent, clock, VECTOR, 7)
    network, batches = copy.deepcopy(network_of(agent)), rollouts(monkeypatch)
    play(agent, clock, VECTOR, 1)
    (batch,) = batches
    with torch.no_grad():
        policy = torch.distributions.Categorical(logits=network(batch.observation).parameters)
    torch.testing.assert_close(batch.log_prob, policy.log_prob(batch.action), rtol=1e-4, atol=1e-5)


def test_truncation_bootstraps_from_the_true_final_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = build(dataclasses.replace(CONFIG, horizon=2, batch_size=8, gae_lambda=0.0, gamma=0.5))
    first, final, reset = (np.full((4, 3), x, np.float32) for x in (0.1, 2.0, -2.0))
    batches, values = rollouts(monkeypatch), {}
    for name, observation in (("first", first), ("final", final), ("reset", reset)):
        with torch.no_grad():
            values[name] = float(network_of(agent)(torch.from_numpy(observation)).value[0])
    never, reward = np.zeros(4, bool), np.ones(4, np.float32)
    truncated = np.array([True, False, False, True])
    terminated = np.array([False, True, False, False])
    over = truncated | terminated
    next_observation = np.where(over[:, None], reset, final)
    episodes = [Episode(i, 0, 0, 1.0, 1, True) for i in (0, 1, 3)]
    agent.act(Observation(first))
    agent.observe(Step(next_observation, final, reward, terminated, truncated, over, episodes))
    agent.act(Observation(next_observation))
    agent.observe(Step(next_observation, next_observation, reward, never, never, never))
    agent.learn()
    (batch,) = batches
    expected = {0: values["final"], 1: 0.0, 2: values["final"], 3: values["final"]}
    for env, bootstrap in expected.items():
        assert float(batch.advantage[env]) == pytest.approx(1 + 0.5 * bootstrap - values["first"], abs=1e-5)


def test_statistics_of_large_values_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    (agent, clock), seen = build(), rollouts(monkeypatch)
    with torch.no_grad():
        list(network_of(agent).value_head.parameters())[-1].add_(1e5)
    play(agent, clock, VECTOR, 8)
    value, advantage = (each.double().numpy() for each in (seen[0].value, seen[0].advantage))
    found = agent.metrics()
    assert found["value_std"] == pytest.approx(value.std(), rel=1e-9)
    explained = 1 - advantage.var() / (advantage + value).var()
    assert found["explained_variance"] == pytest.approx(explained, rel=1e-9)


def test_schedules_follow_the_clock() -> None:
    falling = LinearSchedule(kind="linear", start=1.0, end=0.0, horizon=100, warmup=0)
    agent, clock = build(dataclasses.replace(CONFIG, lr=falling, clip_range=falling, entropy_coef=falling))
    clock.tick(25)
    metrics = agent.metrics()
    assert [metrics[name] for name in ("lr", "clip_range", "entropy_coef")] == [0.75, 0.75, 0.75]


def test_target_kl_stops_the_epochs() -> None:
    eager = dataclasses.replace(CONFIG, epochs=10, lr=0.1)
    agent, clock = build(eager)
    assert play(agent, clock, VECTOR, 8) == 20
    agent, clock = build(dataclasses.replace(eager, target_kl=1e-4))
    assert play(agent, clock, VECTOR, 8) == 2  # two minibatches, one epoch


def test_non_finite_loss_raises_an_error_with_term_and_frame() -> None:
    agent, clock = build(dataclasses.replace(CONFIG, lr=1e30))
    with pytest.raises(NonFiniteError) as caught:
        play(agent, clock, VECTOR, 32)
    assert caught.value.frame > 0
    assert caught.value.term


def test_bfloat16_update_is_close_to_float32() -> None:
    vectors = []
    for precision in ("fp32", "bf16"):
        agent, clock = build(observation=IMAGE, precision=precision)
        before = weights_of(network_of(agent))
        play(agent, clock, IMAGE, 8)
        vectors.append(weights_of(network_of(agent)) - before)
        assert weights_of(network_of(agent)).dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(*vectors, dim=0) > 0.5


@pytest.mark.parametrize("layout", [(2, 40, 40), (40, 40, 3)])
def test_pixels_are_scaled_and_their_channels_may_be_first_or_last(layout: tuple[int, ...]) -> None:
    space = gym.spaces.Box(0, 255, layout, np.uint8)
    network = ActorCritic(NETWORK, Spaces(space, DISCRETE, 1), 3, None)
    images = np.random.default_rng(0).integers(0, 256, (5, *layout)).astype(np.uint8)
    (cnn,) = network.policy_torso
    channels_first = images if layout[0] == 2 else images.transpose(0, 3, 1, 2)
    pixels = torch.from_numpy(channels_first / 255).float()
    maps = torch.nn.functional.conv2d(pixels, cnn.first.weight, cnn.first.bias, cnn.first.stride)
    expected = cnn.linear(cnn.convolutions(maps))
    torch.testing.assert_close(network.policy_torso(torch.from_numpy(network.layout(images))), expected)


def test_automatic_network_accepts_small_images() -> None:
    tiny = gym.spaces.Box(0, 255, (3, 10, 10), np.uint8)
    agent, clock = build(observation=tiny)
    assert play(agent, clock, tiny, 8) == 4


@pytest.mark.parametrize("agent", ["ppo", "a2c", "reinforce", "recurrent_ppo", "sarsa"])
def test_vector_observations_are_learned_from_in_float32_under_bf16(agent: str) -> None:
    weights = []
    for precision in ("fp32", "bf16"):
        made, clock, _ = on_policy_cases.build(agent, compute=Compute.choose("cpu", precision, 1))
        dqn_cases.play(made, clock, on_policy_cases.noise(), 130)
        weights.append(next(iter(made.modules().values())).state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_last_layers_compute_in_float32_under_bfloat16() -> None:
    network = ActorCritic(NETWORK, Spaces(IMAGE, DISCRETE, 1), 3, None)
    images = torch.from_numpy(network.layout(np.stack([IMAGE.sample() for _ in range(64)])))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features = network.policy_torso(images)
        parameters, value, _ = network(images)
    assert features.dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(parameters, network.policy_head(features.float()))
        torch.testing.assert_close(value, network.value_head(features.float()).squeeze(1))


RATE = AdaptiveRate(kind="kl", rate=1e-3, target=0.01, factor=2.0, min=4e-4, max=2e-3)


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (1e-3, 0.021, 5e-4),
        (5e-4, 0.021, 4e-4),
        (1e-3, 0.019, 1e-3),
        (1e-3, 0.006, 1e-3),
        (1e-3, 0.004, 2e-3),
        (1.5e-3, -0.001, 2e-3),
        (1e-3, float("nan"), 1e-3),
    ],
)
def test_adapted_rate_keeps_the_divergence_within_a_factor_of_two(
    rate: float, kl: float, expected: float
) -> None:
    assert RATE.adapted(rate, kl) == expected


@pytest.mark.parametrize(("target", "expected"), [(1e-9, 0.001 / 1.5**2), (1e3, 0.001 * 1.5**2)])
def test_rate_is_adapted_after_each_epoch(target: float, expected: float) -> None:
    rate = AdaptiveRate(kind="kl", rate=1e-3, target=target)
    agent, clock = build(dataclasses.replace(CONFIG, lr=rate))
    play(agent, clock, VECTOR, 7)
    assert agent.metrics()["lr"] == 1e-3
    assert play(agent, clock, VECTOR, 1) == 4
    assert agent.metrics()["lr"] == pytest.approx(expected)
    plain, clock = build(dataclasses.replace(CONFIG, lr=1e-3, epochs=1))
    adapted, other = build(dataclasses.replace(CONFIG, lr=rate, epochs=1))
    play(plain, clock, VECTOR, 8)
    play(adapted, other, VECTOR, 8)
    assert torch.equal(plain.learner.weights, adapted.learner.weights)


@pytest.mark.parametrize(("typed", "expected"), [(1e-3, 7e-4), (5e-3, 5e-3)])
def test_rate_that_is_typed_for_a_resume_replaces_the_adapted_one(typed: float, expected: float) -> None:
    rate = AdaptiveRate(kind="kl", rate=1e-3, target=0.01)
    agent, _ = build(dataclasses.replace(CONFIG, lr=rate))
    state = {**agent.state_dict(), "lr": [1e-3, 7e-4]}
    resumed, _ = build(dataclasses.replace(CONFIG, lr=dataclasses.replace(rate, rate=typed)))
    resumed.load_state_dict(state)
    assert resumed.metrics()["lr"] == expected


BETA = ["preset=none", "agent.action_bounds=beta"]


@pytest.mark.parametrize("shared", [False, True])
def test_normalized_values_are_learned_in_units_of_running_deviations(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollouts of two agents that act alike have the same returns, one of them in other units."""
    network = dataclasses.replace(NETWORK, shared=shared)
    plain, clock = build(dataclasses.replace(CONFIG, network=network, lr=0.0))
    scaled, other = build(dataclasses.replace(CONFIG, network=network, lr=0.0, normalize_value=True))
    batches = rollouts(monkeypatch)
    play(plain, clock, VECTOR, 16)
    play(scaled, other, VECTOR, 16)
    before, _, now, later = batches
    # Before the first rollout, outputs of the network are values.
    torch.testing.assert_close(now.advantage, before.advantage)
    returns = before.value_target.double()
    mean, std = returns.mean(), (returns.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(now.value_target.double(), (returns - mean) / std, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(now.value.double(), (before.value.double() - mean) / std, atol=1e-5, rtol=1e-5)
    # The network has not changed, so its outputs are now values in units of the first rollout.
    values = now.value * std + mean  # of the first rollout, as they were computed
    outputs = scaled.values(now.observation.numpy())
    saved = scaled.state_dict()["returns"]
    spread = float((saved["squares"] / saved["count"] + 1e-5) ** 0.5)
    np.testing.assert_allclose(outputs, values * spread + float(saved["mean"]), rtol=1e-4, atol=1e-4)
    assert saved["count"] == 64
    assert later.value_target.mean().abs() < 1


def test_normalization_of_equal_returns_is_finite() -> None:
    agent, clock = build(dataclasses.replace(CONFIG, normalize_value=True, gamma=0.0))
    for _ in range(16):
        agent.act(Observation(np.zeros((4, 3), np.float32)))
        none = np.zeros(4, np.bool_)
        observation = np.zeros((4, 3), np.float32)
        agent.observe(Step(observation, observation, np.full(4, 7.0), none, none, none))
        agent.learn()
        clock.tick(4)
    assert np.isfinite(list(agent.metrics().values())[:5]).all()


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (["agent=sil_ppo"], "contradiction", "agent.normalize_value"),
        (["env=pendulum", *BETA, "agent.log_std_init=-1"], "contradiction", "agent.log_std_init"),
        (["env=cartpole", *BETA], "unsupported", "agent.action_bounds"),
        (["agent=reinforce"], "contradiction", "agent.normalize_value"),
        (
            ["agent=ppo", "meta.distributed=shared", "meta.max_session=2"],
            "contradiction",
            "agent.normalize_value",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(overrides: list[str], code: Code, key: str) -> None:
    config = resolve(compose([*overrides, "agent.normalize_value=true"]))
    with refused(code, key):
        check(config)
