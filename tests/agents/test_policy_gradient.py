"""Tests of A2C, REINFORCE and self-imitation: updates follow the papers, and each episode is used once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import (
    BOX,
    DISCRETE,
    IMAGE,
    VECTOR,
    Noise,
    Recorded,
    assert_same_gradient,
    build,
    network_of,
    play,
    rollouts,
)

import labrl
from labrl.cli import main
from labrl.memory.replay import Replay
from labrl.step import Step


def returns(steps: list[Step], network: Any) -> torch.Tensor:
    """Return the returns R of section 4 of A3C's paper (Mnih et al., 2016), for gamma 0.9. [t, num_envs]

    They are computed backwards from the value of the last state, which is 0 if it is terminal.
    """

    def value(observation: np.ndarray) -> torch.Tensor:
        found = network(torch.from_numpy(observation)).value.detach()
        return found if network.has_value else torch.zeros(len(observation))

    found, following = [], value(steps[-1].observation)
    for step in reversed(steps):
        following = torch.where(torch.from_numpy(step.truncated), value(step.next_observation), following)
        following = torch.where(torch.from_numpy(step.terminated), 0.0, following)
        following = torch.from_numpy(step.reward) + 0.9 * following
        found.append(following)
    return torch.stack(found[::-1])


EPISODES = ("agent.episodes=5", "agent.normalize_advantage=false", "agent.network.shared=false")
VALUES = "agent.value_coef=0.7"


@pytest.mark.parametrize(
    ("agent_name", "overrides", "action", "num_envs"),
    [
        ("a2c", ("agent.network.shared=true", VALUES), DISCRETE, 4),
        ("a2c", ("agent.network.shared=false", VALUES), BOX, 4),
        ("a2c", (*EPISODES, "agent.horizon=null", VALUES), DISCRETE, 1),
        ("reinforce", (*EPISODES, "agent.baseline=none"), DISCRETE, 1),
        ("reinforce", (*EPISODES, "agent.baseline=mean"), DISCRETE, 1),
        ("reinforce", (*EPISODES, "agent.baseline=value", VALUES), DISCRETE, 1),
    ],
)
def test_update_is_the_gradient_of_the_papers(
    agent_name: str,
    overrides: tuple[str, ...],
    action: gym.Space,
    num_envs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = ("agent.entropy_coef=0.02", "agent.max_grad_norm=null", "agent.gamma=0.9")
    agent, clock, _ = build(agent_name, *overrides, *common, action=action, num_envs=num_envs)
    world, batches = Recorded(Noise(num_envs=num_envs)), rollouts(monkeypatch)
    network = copy.deepcopy(network_of(agent))
    while not play(agent, clock, world, 1):
        pass
    observation = torch.from_numpy(np.concatenate(world.seen))
    target = returns(world.steps, network).flatten()
    parameters, value, _ = network(observation)
    taken = batches[0].action
    if action is DISCRETE:
        policy: Any = torch.distributions.Categorical(logits=parameters)
        log_prob, entropy = policy.log_prob(taken), policy.entropy()
    else:
        policy = torch.distributions.Normal(parameters[:, :2], parameters[:, 2:].exp())
        log_prob, entropy = policy.log_prob(taken).sum(1), policy.entropy().sum(1)
    advantage = target - (target.mean() if "agent.baseline=mean" in overrides else value.detach())
    loss = -(log_prob * advantage).mean() - 0.02 * entropy.mean()
    if VALUES in overrides:
        loss = loss + 0.7 * 0.5 * (target - value).square().mean()
    loss.backward()
    assert_same_gradient(network_of(agent), network)


def test_separate_value_network_has_its_own_lr_and_gradient_norm() -> None:
    overrides = ["agent.network.shared=false", "agent.max_grad_norm=1e-3", "agent/optimizer=adam"]
    agent, clock, _ = build("a2c", *overrides, "agent.lr=0", "agent.value_lr=0.01")
    before = copy.deepcopy(network_of(agent)).state_dict()
    assert play(agent, clock, Noise(), 5) == 1
    for name, weight in network_of(agent).state_dict().items():
        assert torch.equal(weight, before[name]) == name.startswith("policy")


@pytest.mark.parametrize("agent_name", ["reinforce", "a2c"])
def test_agent_learns_from_each_episode_once_when_it_has_ended(
    agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["agent.horizon=null"] if agent_name == "a2c" else []
    agent, clock, _ = build(agent_name, "agent.episodes=3", *overrides)
    world, batches = Recorded(Noise()), rollouts(monkeypatch)
    play(agent, clock, world, 120)
    rows = sum(len(batch.action) for batch in batches)
    ended = np.stack([step.terminated | step.episode_over for step in world.steps])
    last = [int(np.flatnonzero(ended[:, env])[-1]) + 1 for env in range(4)]
    held = agent.state_dict()["rollout"]  # includes episodes that ended since the last update
    assert rows + int((held["end"] - held["first"]).sum()) == sum(last)
    observations = torch.cat([batch.observation for batch in batches])
    assert len(torch.unique(observations, dim=0)) == rows > 300, "a step was learned from twice"


@pytest.mark.extended
def test_session_fails_when_a_rollout_would_fill_the_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labrl.memory.workspace.memory_available", lambda: 1000)
    overrides = ["agent=reinforce", "env=cartpole", "env.num_envs=16", "env.max_frame=8000", "meta=dev"]
    assert main([*overrides, "agent.episodes=500", f"hydra.run.dir={tmp_path}/run"]) == 1
    output = capsys.readouterr()
    assert "env.num_envs" in output.out + output.err


def test_run_without_an_update_logs_the_reason(tmp_path: Path) -> None:
    overrides = ["agent=reinforce", "env=cartpole", "preset=none", "agent.episodes=1000", "env.max_frame=200"]
    overrides += ["meta=dev", "meta.max_session=1", "wandb=disabled", "agent.network.torso.mlp.hidden=[8]"]
    run = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert run.exit_code == 0
    assert run.sessions[0].opt_step == 0
    assert "env.max_frame" in (run.folder / "session_0" / "session.log").read_text()


IMITATION = (
    "agent.self_imitation.batch_size=8",
    "agent.self_imitation.memory.capacity=200",
    "agent.self_imitation.updates=2",
    "agent.gamma=0.9",
)


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Return a list that collects every replay buffer when it is created."""
    make, made = Replay.__init__, []

    def spy(self: Replay, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        made.append(self)

    monkeypatch.setattr(Replay, "__init__", spy)
    return made


def test_past_episodes_are_stored_with_discounted_returns(memories: list[Replay]) -> None:
    world = Recorded(Noise())
    agent, clock, _ = build("sil_a2c", *IMITATION, "agent.lr=0")
    play(agent, clock, world, 40)
    (memory,) = memories
    sample = memory.sample(400, 0)
    exact = returns(world.steps, network_of(agent)).numpy()
    ended = np.stack([step.episode_over for step in world.steps])
    whole = np.flip(np.flip(ended, 0).cumsum(0) > 0, 0)  # steps of episodes that have ended
    assert len(memory) == whole.sum() - 1, "the step whose successor is unknown is missing"
    expected = dict(zip(map(bytes, np.array(world.seen)[whole]), exact[whole], strict=True))
    assert len(np.unique(sample.index)) > 20
    found = [expected[bytes(row)] for row in sample.observation]
    np.testing.assert_allclose(sample.reward, found, rtol=1e-4, atol=1e-4)


def test_imitation_is_the_gradient_and_the_priority_of_equation_1(
    memories: list[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, clock, _ = build("sil_a2c", *IMITATION, "agent.lr=0", "agent.max_grad_norm=null")
    play(agent, clock, Noise(), 39)
    with torch.no_grad():
        network_of(agent).value_head[-1].bias.add_(4)  # so that some returns are below the value
    (memory,), network, drawn, priorities = memories, copy.deepcopy(network_of(agent)), [], []
    draw = memory.sample
    monkeypatch.setattr(memory, "sample", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    monkeypatch.setattr(memory, "update_priorities", lambda index, error: priorities.append(error))
    play(agent, clock, Noise(seed=1), 1)
    sample = drawn[-1]
    parameters, value, _ = network(torch.from_numpy(sample.observation))
    log_prob = torch.distributions.Categorical(logits=parameters).log_prob(torch.from_numpy(sample.action))
    underrated = (torch.from_numpy(sample.reward) - value).clamp(min=0)
    assert underrated.min() == 0 < underrated.max()
    losses = -log_prob * underrated.detach() + 0.01 * 0.5 * underrated.square()
    (torch.from_numpy(sample.weight) * losses).mean().backward()
    assert_same_gradient(network_of(agent), network)
    np.testing.assert_allclose(priorities[-1], underrated.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("observation", "action", "dtype"),
    [
        (IMAGE, DISCRETE, np.int64),
        (VECTOR, gym.spaces.MultiDiscrete(np.array([2, 3], np.int8), dtype=np.int8), np.int64),
        (VECTOR, gym.spaces.Box(0, 9, (2,), np.int64), np.float32),
    ],
)
def test_past_actions_are_stored_as_they_were_drawn(
    observation: gym.Space, action: gym.Space, dtype: type, memories: list[Replay]
) -> None:
    agent, clock, _ = build("sil_a2c", *IMITATION, observation=observation, action=action)
    play(agent, clock, Noise(observation), 30)
    sample = memories[0].sample(50, 0)
    assert sample.observation.shape == (50, *observation.shape)
    assert sample.action.dtype == dtype
    if dtype is np.float32:
        assert (sample.action != sample.action.round()).any()
        assert (sample.action < 0).any(), "the stored actions were clipped to the bounds"
