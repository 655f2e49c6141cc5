"""Tests of A2C: its update equals that of the paper, and it learns the best action of a small task."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Fork, play
from on_policy_cases import BOX, DISCRETE, Recorded, build, network_of, noise, rollouts

from labrl.agents.a2c import policy_objective
from labrl.step import Step

ADAM = "agent/optimizer=adam"


def returns(steps: list[Step], network: Any, gamma: float) -> torch.Tensor:
    """Return the returns R of section 4 of the paper (Mnih et al., 2016). [t, num_envs]

    They are computed backwards from the value of the last state, which is 0 if it is terminal.
    """
    found = []
    with torch.no_grad():
        following = network(torch.from_numpy(steps[-1].observation)).value
        for step in reversed(steps):
            final = network(torch.from_numpy(step.next_observation)).value
            cut = torch.from_numpy(step.truncated)
            following = torch.where(cut, final, following)
            following = torch.where(torch.from_numpy(step.terminated), 0.0, following)
            following = torch.from_numpy(step.reward) + gamma * following
            found.append(following)
    return torch.stack(found[::-1])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_update_is_rmsprop_step_on_gradient_of_paper(
    shared: bool, action: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"agent.network.shared={shared}", "agent.entropy_coef=0.02", "agent.max_grad_norm=0.3"]
    overrides += ["agent.optimizer.eps=1e-5"]
    agent, clock, _ = build("a2c", *overrides, "agent.value_coef=0.7", "agent.gamma=0.9", action=action)
    world = Recorded(noise())
    assert play(agent, clock, world, 4) == 0
    network, batches = copy.deepcopy(network_of(agent)), rollouts(monkeypatch)
    assert play(agent, clock, world, 1) == 1

    observation = torch.from_numpy(np.concatenate(world.seen))
    target = returns(world.steps, network, 0.9).flatten()
    parameters, value, _ = network(observation)
    taken = batches[0].action
    if action is DISCRETE:
        policy: Any = torch.distributions.Categorical(logits=parameters)
        log_prob, entropy = policy.log_prob(taken), policy.entropy()
    else:
        policy = torch.distributions.Normal(parameters[:, :2], parameters[:, 2:].exp())
        log_prob, entropy = policy.log_prob(taken).sum(1), policy.entropy().sum(1)
    advantage = target - value.detach()
    loss = -(log_prob * advantage).mean() + 0.7 * 0.5 * (target - value).square().mean()
    loss = loss - 0.02 * entropy.mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 0.3)
    for ours, expected in zip(network_of(agent).parameters(), network.parameters(), strict=True):
        assert expected.grad is not None
        square = 0.01 * expected.grad.square()
        after = expected.detach() - 7e-4 * expected.grad / (square + 1e-5).sqrt()
        torch.testing.assert_close(ours.detach(), after, rtol=1e-4, atol=1e-6)


def test_whole_episodes_with_lambda_1_give_full_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("a2c", "agent.horizon=null", "agent.episodes=6", "agent.gamma=0.9")
    world, batches = Recorded(noise()), rollouts(monkeypatch)
    while not play(agent, clock, world, 1):
        pass
    target = batches[0].value_target
    torch.testing.assert_close(batches[0].advantage, target - batches[0].value)
    assert sum(int((s.terminated | s.episode_over).sum()) for s in world.steps) >= 6
    before, _, _ = build("a2c", "agent.horizon=null", "agent.episodes=6", "agent.gamma=0.9")
    expected = returns(world.steps, network_of(before), 0.9).T  # [num_envs, t]
    ended = np.stack([s.terminated | s.episode_over for s in world.steps], axis=1)
    whole = np.flip(np.flip(ended, 1).cumsum(1) > 0, 1)  # steps of episodes that have ended
    torch.testing.assert_close(target, expected[torch.from_numpy(whole.copy())], rtol=1e-4, atol=1e-5)


def test_lambda_0_gives_one_step_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("a2c", "agent.gae_lambda=0", "agent.gamma=0.9")
    world, batches, network = Recorded(noise()), rollouts(monkeypatch), copy.deepcopy(network_of(agent))
    assert play(agent, clock, world, 5) == 1
    with torch.no_grad():
        one_step = [returns([step], network, 0.9) for step in world.steps]
    torch.testing.assert_close(batches[0].value_target, torch.cat(one_step).flatten())


def test_separate_value_network_has_its_own_lr_and_gradient_norm() -> None:
    overrides = ["agent.network.shared=false", "agent.max_grad_norm=1e-3", ADAM]
    agent, clock, _ = build("a2c", *overrides, "agent.lr=0", "agent.value_lr=0.01")
    before = copy.deepcopy(network_of(agent))
    assert play(agent, clock, noise(), 5) == 1
    for name in ("policy_torso", "policy_head", "value_torso", "value_head"):
        pairs = zip(
            getattr(before, name).parameters(), getattr(network_of(agent), name).parameters(), strict=True
        )
        unchanged = all(torch.equal(one, other) for one, other in pairs)
        assert unchanged == name.startswith("policy")


def test_policy_objective_equals_hand_computed_value() -> None:
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -1.0])
    torch.testing.assert_close(policy_objective(log_prob, advantage), torch.tensor((-3.0 + 2.0) / 2))


@pytest.mark.parametrize("when", [["agent.horizon=8"], ["agent.horizon=null", "agent.episodes=8"]])
def test_a2c_learns_best_action_and_its_value(when: list[str]) -> None:
    overrides = [*when, ADAM, "agent.lr=0.01", f"agent.gamma={Fork.DISCOUNT}", "agent.network.shared=false"]
    agent, clock, _ = build(
        "a2c", *overrides, observation=Fork.SPACE, action=gym.spaces.Discrete(2), num_envs=8
    )
    play(agent, clock, Fork(8), 600)
    states = torch.eye(Fork.STATES)
    with torch.no_grad():
        policy, value, _ = network_of(agent)(states)
    assert float(policy[0].softmax(0)[1]) > 0.9
    met = [0, 4, 5, 6]
    np.testing.assert_allclose(value[met], Fork.best_values().max(1)[met], atol=0.12)
