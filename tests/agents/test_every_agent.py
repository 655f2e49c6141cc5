"""Tests of what all agents have in common: greedy actions, inputs, precision, schedules and failures."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import (
    BOX,
    DISCRETE,
    IMAGE,
    Noise,
    build,
    cpu,
    gradient_of,
    network_of,
    play,
    weights_of,
)
from exact_cases import ALIKE, small, unequal

from labrl.agents.agent import NonFiniteError, Observation
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.errors import InputError
from labrl.trial.create import check

AGENTS = sorted(path.stem for path in (config_folder() / "agent").glob("*.yaml"))
TASKS = {"cartpole": (4, gym.spaces.Discrete(2)), "pendulum": (3, gym.spaces.Box(-2, 2, (1,), np.float32))}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "agent", [pytest.param(name, marks=pytest.mark.matrix if name in ALIKE else ()) for name in AGENTS]
)
def test_greedy_action_is_deterministic_and_draws_no_random_numbers(agent: str, task: str) -> None:
    try:
        config = resolve(compose(small(agent, task)))
        check(config)
    except InputError:
        pytest.skip("the agent does not support the task")
    size, action = TASKS[task]
    space = gym.spaces.Box(-5, 5, (size,), np.float32)
    built, _, streams = build(config, observation=space, action=action)
    assert built.TRAITS.greedy == (agent != "random")
    if built.TRAITS.greedy:
        before = streams.state_dict()
        seen = Observation(Noise(space, 9).observation, start=np.ones(9, np.bool_))
        first, second = built.greedy_action(seen), built.greedy_action(seen)
        assert np.array_equal(first, second)
        assert all(action.contains(one) for one in first)
        assert not unequal(before, streams.state_dict())
    built.close()


def test_greedy_action_is_the_mean_or_has_the_largest_value() -> None:
    seen = Observation(Noise(num_envs=1).observation)
    ppo, _, _ = build("ppo", action=BOX)
    draws = [ppo.evaluation_action(seen, np.random.default_rng(seed)) for seed in range(300)]
    assert np.abs(np.mean(draws, 0) - ppo.greedy_action(seen)).max() < 0.2
    dqn, _, _ = build("dqn", action=gym.spaces.Discrete(5, start=3))
    with torch.no_grad():
        best = (
            dqn.modules()["q_network"](torch.from_numpy(seen.array)).outputs.squeeze(2).argmax(1).numpy() + 3
        )
    assert np.array_equal(dqn.greedy_action(seen), best)


ROLLOUTS = ("agent.horizon=8", "agent.batch_size=16")
EARLY = ("agent.learning_starts=16", "agent.batch_size=16", "agent.memory.capacity=400")
INPUTS: list[Any] = [
    *((agent, action, IMAGE, "fp32") for agent in ("sac", "crossq", "iql") for action in (BOX, DISCRETE)),
    *((agent, BOX, IMAGE, "fp32") for agent in ("tqc", "td3")),
    *((agent, DISCRETE, IMAGE, "bf16") for agent in ("ppo", "c51", "rainbow", "crossq")),
    ("sac", BOX, IMAGE, "bf16"),
    ("ppo", DISCRETE, gym.spaces.Box(0, 255, (3, 10, 10), np.uint8), "fp32"),
    *((agent, None, gym.spaces.Discrete(5), "fp32") for agent in ("ppo", "dqn", "sac", "crossq", "iql")),
]


@pytest.mark.parametrize(("agent", "action", "observation", "precision"), INPUTS)
def test_agents_learn_from_images_and_discrete_observations(
    agent: str, action: gym.Space | None, observation: gym.Space, precision: str
) -> None:
    overrides = ROLLOUTS if agent == "ppo" else EARLY
    spaces: Any = {"observation": observation, "action": action, "compute": cpu(2, precision)}
    player, clock, _ = build(agent, *overrides, **spaces)
    before = weights_of(player)
    assert play(player, clock, Noise(observation), 9) > 0
    assert not torch.equal(weights_of(player), before)
    metrics = player.metrics()
    assert np.isfinite([metrics[name] for name in metrics if name.startswith("grad_norm")]).all()
    player.close()


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_two_workers_compute_the_gradient_of_one(agent: str) -> None:
    """Two workers use the same noise as one, and return the errors in the order of the samples."""
    gradients, errors, metrics = [], [], []
    for num_threads in (1, 2):
        spaces: Any = {"observation": IMAGE, "compute": cpu(num_threads)}
        player, clock, _ = build(agent, "agent/memory=prioritized", "agent.updates_per_frame=0.25", **spaces)
        memory = player.experience.memory
        memory.update_priorities = lambda index, error: errors.append(np.concatenate([index, error]))
        assert play(player, clock, Noise(IMAGE), 11) == 1
        gradients.append(gradient_of(player.modules()["q_network"]))
        metrics.append([player.metrics()[name] for name in ("loss", "td_error", "q_mean", "q_max")])
        player.close()
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(*errors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*metrics, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("agent", ["ppo", "a2c", "reinforce", "recurrent_ppo", "sarsa"])
def test_vector_observations_are_learned_from_in_float32_under_bf16(agent: str) -> None:
    weights = []
    for precision in ("fp32", "bf16"):
        made, clock, _ = build(agent, compute=cpu(1, precision))
        play(made, clock, Noise(), 130)
        weights.append(weights_of(made))
    assert torch.equal(*weights)


def test_images_are_learned_from_in_bfloat16_except_in_the_last_layers() -> None:
    changes = []
    for precision in ("fp32", "bf16"):
        agent, clock, _ = build("ppo", *ROLLOUTS, observation=IMAGE, compute=cpu(1, precision))
        before = weights_of(agent)
        play(agent, clock, Noise(IMAGE), 8)
        changes.append(weights_of(agent) - before)
    assert torch.nn.functional.cosine_similarity(*changes, dim=0) > 0.5
    network = network_of(agent)
    images = torch.from_numpy(network.layout(Noise(IMAGE, 64).observation))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features = network.policy_torso(images)
        parameters, value, _ = network(images)
    assert features.dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(parameters, network.policy_head(features.float()))
        torch.testing.assert_close(value, network.value_head(features.float()).squeeze(1))


@pytest.mark.parametrize(
    ("agent", "keys"),
    [
        ("ppo", {"lr": "lr", "clip_range": "clip_range", "entropy_coef": "entropy_coef"}),
        ("dqn", {"lr": "lr", "exploration": "exploration.epsilon"}),
        ("sac", {"critic_lr": "lr", "temperature": "temperature"}),
    ],
)
def test_coefficients_follow_their_schedules(agent: str, keys: dict[str, str]) -> None:
    falling = "{kind: linear, start: 1.0, end: 0.0, horizon: 100}"
    overrides = [
        f"{sign}agent.{key}{value}"
        for key in keys.values()
        for sign, value in (("~", ""), ("+", f"={falling}"))
    ]
    player, clock, _ = build(agent, *overrides)
    clock.tick(25)
    metrics = player.metrics()
    assert {name: metrics[name] for name in keys} == dict.fromkeys(keys, 0.75)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("agent", ["ppo", "dqn", "td3"])
def test_loss_that_is_not_finite_raises_an_error_with_term_and_frame(agent: str) -> None:
    more = {"ppo": ROLLOUTS, "dqn": ("agent.value.loss=squared",), "td3": ()}[agent]
    player, clock, _ = build(agent, *more, "agent.lr=1e30")
    with pytest.raises(NonFiniteError) as caught:
        play(player, clock, Noise(), 40)
    assert caught.value.term in player.metrics() or caught.value.term in ("loss", "grad_norm", "weights")
    assert caught.value.frame > 0
