"""Tests of self-imitation learning: its losses, its replay buffer of whole episodes, and what it learns."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import Noise, memories, play
from on_policy_cases import DISCRETE, VECTOR, Recorded, build, network_of, noise

from labrl.agents.parts.self_imitation import imitation_losses
from labrl.memory.prioritized import PrioritizedReplay
from labrl.step import Episode, Step

OVERRIDES = (
    "agent.self_imitation.batch_size=8",
    "agent.self_imitation.memory.capacity=200",
    "agent.self_imitation.updates=2",
)
SMALL = "agent.network.torso.mlp.hidden=[16]"
PPO = ("agent.horizon=8", "agent.batch_size=16", "agent.epochs=1")


def test_losses_match_values_computed_by_hand() -> None:
    """By eq. 2 and 3 a step whose return is below its value, here the second, does not contribute."""
    log_prob, value = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 5.0], requires_grad=True)
    policy, value_error = imitation_losses(log_prob, value, torch.tensor([3.0, 3.0]))
    torch.testing.assert_close(policy, torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(value_error, torch.tensor([2.0, 0.0]))
    (policy.sum() + value_error.sum()).backward()
    # The policy loss must not contribute to the gradient of the value.
    torch.testing.assert_close(value.grad, torch.tensor([-2.0, 0.0]))


def test_replay_buffer_holds_finished_episodes_with_discounted_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, world = memories(monkeypatch), Recorded(noise())
    agent, clock, _ = build("sil_a2c", *OVERRIDES, "agent.gamma=0.9", "agent.lr=0")
    play(agent, clock, world, 40)
    (memory,), network = made, network_of(agent)
    sample = memory.sample(400, 0)
    kept = {
        tuple(row): float(stored_return)
        for row, stored_return in zip(sample.observation, sample.reward, strict=True)
    }
    later, exact = np.zeros(4), {}
    ended = np.zeros(4, bool)
    for seen, step in zip(reversed(world.seen), reversed(world.steps), strict=True):
        over = step.terminated | step.episode_over
        with torch.no_grad():
            reached = network(torch.from_numpy(step.next_observation)).value.numpy()
        final = reached * (step.truncated & ~step.terminated)
        later = step.reward + 0.9 * np.where(over, final, later)
        ended |= over
        exact.update({tuple(seen[env]): later[env] for env in np.flatnonzero(ended)})
    assert len(memory) == len(exact) - 1, "steps other than the last, whose successor is unknown, are missing"
    assert len(kept) > 20
    for row, stored_return in kept.items():
        assert stored_return == pytest.approx(exact[row], rel=1e-4, abs=1e-4)


def test_update_is_the_gradient_of_equation_1(monkeypatch: pytest.MonkeyPatch) -> None:
    made = memories(monkeypatch)
    agent, clock, _ = build("sil_a2c", *OVERRIDES, "agent.lr=0", "agent.max_grad_norm=null")
    play(agent, clock, noise(), 39)
    (memory,), network, drawn = made, copy.deepcopy(network_of(agent)), []
    draw = memory.sample
    monkeypatch.setattr(memory, "sample", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    play(agent, clock, noise(seed=1), 1)
    sample = drawn[-1]
    parameters, value, _ = network(torch.from_numpy(sample.observation))
    log_prob = torch.distributions.Categorical(logits=parameters).log_prob(torch.from_numpy(sample.action))
    underrated = (torch.from_numpy(sample.reward) - value).clamp(min=0)
    losses = -log_prob * underrated.detach() + 0.01 * 0.5 * underrated.square()
    (torch.from_numpy(sample.weight) * losses).mean().backward()
    for ours, expected in zip(network_of(agent).parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-6)


def test_priorities_are_zero_or_the_excess_of_the_return_over_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, update = [], PrioritizedReplay.update_priorities

    def spy(self: PrioritizedReplay, index: np.ndarray, error: np.ndarray) -> None:
        given.append(error.copy())
        update(self, index, error)

    monkeypatch.setattr(PrioritizedReplay, "update_priorities", spy)
    agent, clock, _ = build("sil_ppo", *PPO, *OVERRIDES)
    play(agent, clock, noise(), 40)
    assert given
    assert all((error >= 0).all() for error in given)
    assert any((error == 0).any() for error in given)


class Lock:
    """Environment that pays 1 after six right actions in a row and ends at the first wrong one; 3 actions."""

    SPACE, LENGTH = gym.spaces.Box(0, 1, (6,), np.float32), 6

    def __init__(self, num_envs: int) -> None:
        self._at = np.zeros(num_envs, np.int64)
        self.paid: list[bool] = []
        """For each finished episode, whether the lock opened."""

    @property
    def observation(self) -> np.ndarray:
        return np.eye(self.LENGTH, dtype=np.float32)[self._at]

    def step(self, action: np.ndarray) -> Step:
        seen, right = self.observation, action == 2
        opened = right & (self._at == self.LENGTH - 1)
        over = opened | ~right
        self._at = np.where(over, 0, self._at + 1)
        self.paid += opened[over].tolist()
        following = np.where(over[:, None], seen, self.observation)
        episodes = [Episode(int(i), 0, 0, float(opened[i]), 1, False) for i in np.flatnonzero(over)]
        reward, no = opened.astype(np.float32), np.zeros(len(action), np.bool_)
        return Step(self.observation, following, reward, over, no, over, episodes)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_agent_with_self_imitation_repeats_a_rare_success(name: str) -> None:
    """A random policy opens the lock once in 729 episodes, and the best policy in every episode."""
    overrides = ("agent.horizon=16", "agent.lr=3e-3", "agent.gamma=0.95", "agent.entropy_coef=0.01", SMALL)
    own = ("agent.batch_size=64", "agent.epochs=1") if name == "ppo" else ("agent/optimizer=adam",)
    imitation = ("agent.self_imitation.batch_size=64", "agent.self_imitation.updates=4")
    opened = []
    for agent, more in [(name, ()), (f"sil_{name}", imitation)]:
        player, clock, _ = build(agent, *overrides, *own, *more, observation=Lock.SPACE)
        world = Lock(4)
        play(player, clock, world, 800)
        opened.append(np.mean(world.paid[-100:]))
    assert opened[0] < 0.1
    assert opened[1] > 0.9


def test_stacked_images_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = memories(monkeypatch)
    space = gym.spaces.Box(0, 255, (2, 40, 40), np.uint8)
    agent, clock, _ = build("sil_a2c", *OVERRIDES, observation=space, action=DISCRETE)
    play(agent, clock, Noise(space, 4), 12)
    sample = made[0].sample(4, 0)
    assert sample.observation.shape == (4, 2, 40, 40)


class FirstActions(Noise):
    """Noise environment whose rewards depend on the first component of each action."""

    def step(self, action: np.ndarray) -> Step:
        return super().step(np.asarray(action)[:, 0])


def test_actions_are_stored_as_drawn_before_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    made = memories(monkeypatch)
    rounded = gym.spaces.Box(0, 9, (2,), np.int64)
    agent, clock, _ = build("sil_ppo", *OVERRIDES, *PPO, action=rounded)
    play(agent, clock, FirstActions(VECTOR, 4), 40)
    drawn = made[0].sample(50, 0).action
    assert drawn.dtype == np.float32
    assert (drawn != drawn.round()).any()
    assert (drawn < 0).any(), "the stored actions were clipped to the bounds"


def test_multi_discrete_actions_are_stored_as_int64(monkeypatch: pytest.MonkeyPatch) -> None:
    made = memories(monkeypatch)
    choices = gym.spaces.MultiDiscrete(np.array([2, 3], np.int8), dtype=np.int8)
    agent, clock, _ = build("sil_ppo", *OVERRIDES, *PPO, action=choices)
    play(agent, clock, FirstActions(VECTOR, 4), 40)
    assert made[0].sample(50, 0).action.dtype == np.int64
