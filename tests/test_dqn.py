"""DQN's update is the paper's, its updates come when they are due, and it repeats exactly."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dqn_cases import FAMILY, Noise, build, config_of, gradient_of, play, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labrl.agents.dqn import DQN
from labrl.agents.errors import NonFiniteError
from labrl.agents.experience import first_update
from labrl.agents.value_learning import chosen
from labrl.memory.replay import Sample
from labrl.networks.trained import Trained, one_for_all

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 36, 36), np.uint8)
EARLY = ("agent.learning_starts=40", "agent.batch_size=16", "agent.updates_per_frame=0.25")


def spy_on_samples(agent: DQN) -> list[Sample]:
    """A list that grows by each minibatch that the agent learns from."""
    seen: list[Sample] = []
    sample = agent._experience.memory.sample

    def spy(batch_size: int, frame: int) -> Sample:
        seen.append(sample(batch_size, frame))
        return seen[-1]

    agent._experience.memory.sample = spy  # type: ignore[method-assign]
    return seen


def weights(agent: DQN) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in agent.modules().values() for p in m.parameters()])


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("memory", ["uniform", "prioritized"])
def test_an_update_is_adam_on_the_gradient_of_the_papers_loss(double: bool, memory: str) -> None:
    """The first update, from weights that are not the target's: computed here from the papers alone."""
    words = (*EARLY, f"agent.double={double}", f"agent/memory={memory}", "agent.max_grad_norm=0.5")
    agent, clock, _ = build(config_of("dqn", *words, "agent.lr=1e-2"), VECTOR)
    agent._trained.weights.data.add_(
        torch.randn(agent._trained.weights.shape, generator=torch.Generator().manual_seed(0))
    )
    world, target = Noise(VECTOR, 4), copy.deepcopy(agent.target.network)
    play(agent, clock, world, 10)
    if memory == "prioritized":
        agent._experience.memory.update_priorities(
            agent._experience.memory.sample(30, 0).index, np.arange(30.0)
        )
    online, seen = copy.deepcopy(agent.network), spy_on_samples(agent)
    assert play(agent, clock, world, 1) == 1

    (sample,) = seen
    tensors = {name: torch.from_numpy(array) for name, array in sample._asdict().items() if array is not None}
    assert (len(tensors["weight"].unique()) > 1) == (memory == "prioritized")
    rows = torch.arange(16)
    with torch.no_grad():
        values = target(tensors["next_observation"]).squeeze(2)
        judged = online(tensors["next_observation"]).squeeze(2) if double else values
        aim = tensors["reward"] + tensors["discount"] * values[rows, judged.argmax(1)]
    value = online(tensors["observation"]).squeeze(2)[rows, tensors["action"]]
    loss = tensors["weight"] * torch.nn.functional.huber_loss(value, aim, reduction="none")
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2, eps=1e-8)
    loss.mean().backward()
    torch.nn.utils.clip_grad_norm_(online.parameters(), 0.5)
    optimizer.step()
    for ours, expected in zip(agent.network.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


class Fixed(torch.nn.Module):
    """A network that gives the same values whatever it sees."""

    num_noise = 0

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def layout(self, observation: NDArray) -> NDArray:
        return observation

    def forward(self, observation: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        return self.values.view(1, -1, 1).repeat(len(observation), 1, 1)


@pytest.mark.parametrize(("double", "expected"), [(False, 1 + 0.5 * 9), (True, 1 + 0.5 * 2)])
def test_double_picks_with_the_online_network_and_values_with_the_target(
    double: bool, expected: float
) -> None:
    agent, _, _ = build(config_of("dqn", f"agent.double={double}", "agent.batch_size=1"), VECTOR)
    online, agent.target.network = Fixed([0.0, 5.0]), Fixed([9.0, 2.0])  # type: ignore[assignment]
    agent._trained = Trained(online, agent._compute, 1, one_for_all(agent._config.optimizer, None))  # type: ignore[arg-type]
    one, look = np.ones(1, np.float32), np.zeros((1, 3), np.float32)
    sample = Sample(look, np.zeros(1, np.int64), one, look, one / 2, one, np.zeros(1, np.int64))
    agent._gradient(sample)
    error = float(agent._rows[agent.ROWS.index("td_error"), 0])
    assert error == pytest.approx(expected - 0.0)


@pytest.mark.parametrize("agent", FAMILY)
def test_the_target_is_equal_to_the_online_network_until_there_is_an_update(agent: str) -> None:
    player, clock, _ = build(config_of(agent, *EARLY, "agent.target.every=1000000"), VECTOR)
    inputs = torch.randn(5, 3)
    assert torch.equal(player.network(inputs), player.target.network(inputs))
    world = Noise(VECTOR, 4)
    assert play(player, clock, world, 10) == 0
    assert player.metrics()["target_distance"] == 0
    assert play(player, clock, world, 10) > 0
    assert player.metrics()["target_distance"] > 0
    assert not torch.equal(player.network(inputs), player.target.network(inputs))


def test_a_replaced_target_is_the_network_at_the_last_multiple_of_frames() -> None:
    """Four environments and every 30 frames: copied in the steps across 30, 60, 90, ..."""
    agent, clock, _ = build(config_of("dqn", *EARLY, "agent.target.every=30"), VECTOR)
    world, expected = Noise(VECTOR, 4), weights_of(agent.network)
    for _ in range(40):
        if (clock.frame + 4) // 30 > clock.frame // 30:
            expected = weights_of(agent.network)
        play(agent, clock, world, 1)
        assert torch.equal(weights_of(agent.target.network), expected)


def test_a_polyak_target_is_the_moving_average_of_the_weights() -> None:
    words = (*EARLY, "agent/target=polyak", "agent.target.tau=0.25")
    agent, clock, _ = build(config_of("dqn", *words), VECTOR)
    world, average = Noise(VECTOR, 4), weights_of(agent.network)
    for _ in range(30):
        if play(agent, clock, world, 1):
            average = 0.75 * average + 0.25 * weights_of(agent.network)
        torch.testing.assert_close(weights_of(agent.target.network), average)


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from(["0.25", "0.1", "0.3", "4", "2.5", "1/3", "7/5", "1e-2", "0.0078125"]),
    num_envs=st.integers(1, 129),
    starts=st.integers(0, 300),
)
def test_updates_per_frame_are_kept_exactly_for_any_number_of_environments(
    text: str, num_envs: int, starts: int
) -> None:
    agent, clock = EXACT
    agent._num_envs = num_envs
    agent._config.learning_starts = starts
    experience = agent._experience
    experience.frames_per_step, experience.first_update = num_envs, first_update(agent._config, num_envs)
    experience.ratio, experience.updates, clock.frame = Fraction(text), 0, 0
    done = 0
    while clock.frame < 1500:
        done += agent.learn()
        clock.frame += num_envs
        frames = max(clock.frame - max(starts, 16 + num_envs), 0)
        assert done == frames * Fraction(text) // 1


def _counting_agent() -> tuple[DQN, Any]:
    agent, clock, _ = build(copy.deepcopy(config_of("dqn", *EARLY)), VECTOR)

    def update() -> None:
        agent._experience.updates += 1

    agent._update = update  # type: ignore[method-assign]
    return agent, clock


EXACT = _counting_agent()


@pytest.mark.parametrize(
    ("word", "expected"), [("0.1", Fraction(1, 10)), ("4", Fraction(4)), ("1/3", Fraction(1, 3))]
)
def test_updates_per_frame_are_read_as_they_are_written(word: str, expected: Fraction) -> None:
    assert config_of("dqn", f"agent.updates_per_frame={word}").agent.config.updates_per_frame == expected


def test_warm_up_is_random_or_the_policys() -> None:
    greedy = ("agent.exploration.epsilon=0", *EARLY)
    for who, kinds in (("random", 2), ("policy", 1)):
        agent, clock, _ = build(config_of("dqn", *greedy, f"agent.warmup_actions={who}"), VECTOR)
        still = np.zeros((4, 3), np.float32)
        actions = [agent.act(still) for _ in range(10)]
        assert len(np.unique(actions)) == kinds
        clock.frame = 40
        assert len(np.unique([agent.act(still) for _ in range(10)])) == 1


def test_actions_are_counted_from_the_spaces_first() -> None:
    from labrl.networks.compute import Compute
    from labrl.networks.spaces import Spaces

    agent, clock, streams = build(config_of("dqn", *EARLY), VECTOR)
    spaces = Spaces(VECTOR, gym.spaces.Discrete(2, start=5), 4)
    shifted = DQN(agent._config, spaces, clock, streams, Compute.choose("cpu", "fp32", 1))
    look = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert set(np.unique([shifted.act(look) for _ in range(10)])) == {5, 6}
    assert set(shifted.evaluation_action(look, np.random.default_rng(0))) <= {5, 6}


@pytest.mark.parametrize("agent", FAMILY)
@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
def test_two_runs_are_equal_bit_for_bit(agent: str, space: gym.Space) -> None:
    found = []
    for _ in range(2):
        player, clock, _ = build(config_of(agent, *EARLY), space, num_threads=2)
        assert play(player, clock, Noise(space, 4), 20) > 5
        found.append(weights(player))
        player.close()
    assert torch.equal(*found)


@pytest.mark.parametrize("agent", FAMILY)
@pytest.mark.parametrize("steps", [6, 25])
def test_a_restored_agent_has_the_same_future(agent: str, steps: int) -> None:
    """Saved before there was an update and after; the ring of the memory has wrapped."""
    words = (*EARLY, "agent.memory.capacity=80")
    unbroken, clock, streams = build(config_of(agent, *words), VECTOR)
    world = Noise(VECTOR, 4)
    play(unbroken, clock, world, steps)
    state, drawn = copy.deepcopy(unbroken.state_dict()), copy.deepcopy(streams.state_dict())
    frame, same_world = clock.frame, copy.deepcopy(world)
    assert play(unbroken, clock, world, 15) > 0

    restored, clock, streams = build(config_of(agent, *words), VECTOR)
    restored.load_state_dict(state)
    streams.load_state_dict(drawn)
    clock.tick(frame)
    play(restored, clock, same_world, 15)
    assert torch.equal(weights(unbroken), weights(restored))
    assert unbroken.metrics() == pytest.approx(restored.metrics(), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("agent", ["dqn", "rainbow"])
def test_two_workers_find_the_gradient_of_one(agent: str) -> None:
    """They share one noise, and what each saw of its samples stands in its place."""
    gradients, rows = [], []
    for num_threads in (1, 2):
        player, clock, _ = build(config_of(agent, *EARLY), IMAGE, num_threads=num_threads)
        play(player, clock, Noise(IMAGE, 4), 11)
        player._gradient(player._experience.memory.sample(16, 0))
        gradients.append(gradient_of(player.network))
        rows.append(player._rows.clone())
        player.close()
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-5)


def test_noise_is_new_in_each_step_and_each_update_and_not_the_targets() -> None:
    agent, clock, _ = build(config_of("rainbow", *EARLY), VECTOR)
    play(agent, clock, Noise(VECTOR, 4), 10)
    drawn: list[torch.Tensor] = []
    noise = agent._noise

    def spy(rows: int) -> torch.Tensor | None:
        drawn.append(noise(rows))  # type: ignore[arg-type]
        return drawn[-1]

    agent._noise = spy  # type: ignore[method-assign]
    look = np.zeros((4, 3), np.float32)
    agent.act(look)
    agent.act(look)
    agent._gradient(agent._experience.memory.sample(16, 0))
    agent._gradient(agent._experience.memory.sample(16, 0))
    # One for each environment; for online network, target network and choice of the next action.
    assert [len(rows) for rows in drawn] == [4, 4, 3, 3]
    assert len(torch.cat(drawn)[:, 0].unique()) == 14


def test_evaluation_is_without_noise_and_leaves_training_untouched() -> None:
    plain, clock, _ = build(config_of("rainbow", *EARLY), VECTOR)
    play(plain, clock, Noise(VECTOR, 4), 15)
    disturbed, clock, _ = build(config_of("rainbow", *EARLY), VECTOR)
    world, look = Noise(VECTOR, 4), np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    play(disturbed, clock, world, 10)
    actions = [disturbed.evaluation_action(look, np.random.default_rng(seed)) for seed in range(5)]
    assert all(np.array_equal(action, actions[0]) for action in actions)
    play(disturbed, clock, world, 5)
    assert torch.equal(weights(plain), weights(disturbed))


@pytest.mark.parametrize("agent", FAMILY)
def test_metrics_have_the_same_keys_before_and_after_learning(agent: str) -> None:
    player, clock, _ = build(config_of(agent, *EARLY), VECTOR)
    before = player.metrics()
    assert np.isnan(before["loss"])
    play(player, clock, Noise(VECTOR, 4), 20)
    after = player.metrics()
    assert list(after) == list(before)
    assert all(np.isfinite(value) for value in after.values())
    assert after["updates"] == 10
    assert after["memory_size"] > 40


def test_schedules_follow_the_clock() -> None:
    falling = "{kind: linear, start: 1.0, end: 0.0, horizon: 100}"
    words = ("~agent.lr", f"+agent.lr={falling}", f"agent.exploration.epsilon={falling}")
    agent, clock, _ = build(config_of("dqn", *words), VECTOR)
    clock.tick(25)
    metrics = agent.metrics()
    assert (metrics["lr"], metrics["exploration"]) == (0.75, 0.75)


def test_a_non_finite_loss_stops_with_term_and_frame() -> None:
    agent, clock, _ = build(config_of("dqn", *EARLY, "agent.lr=1e30", "agent.value.loss=squared"), VECTOR)
    with pytest.raises(NonFiniteError) as caught:
        play(agent, clock, Noise(VECTOR, 4), 40)
    assert caught.value.term in ("loss", "grad_norm")
    assert caught.value.frame > 40


def test_priorities_follow_the_errors_of_the_last_update() -> None:
    agent, clock, _ = build(config_of("dueling_dqn", *EARLY), VECTOR)
    world = Noise(VECTOR, 4)
    play(agent, clock, world, 18)
    seen, given = spy_on_samples(agent), {}
    agent._experience.memory.update_priorities = lambda index, error: given.update(
        zip(index, error, strict=True)
    )  # type: ignore[method-assign]
    online, target = copy.deepcopy(agent.network), copy.deepcopy(agent.target.network)
    play(agent, clock, world, 1)
    (sample,) = seen
    with torch.no_grad():
        following = torch.from_numpy(sample.next_observation)
        best = online(following).squeeze(2).argmax(1)
        bootstrap = chosen(target(following), best).squeeze(1)
        aim = torch.from_numpy(sample.reward) + torch.from_numpy(sample.discount) * bootstrap
        value = chosen(online(torch.from_numpy(sample.observation)), torch.from_numpy(sample.action)).squeeze(
            1
        )
    expected = dict(zip(sample.index, (aim - value).abs().numpy(), strict=True))
    assert given == pytest.approx(expected, rel=1e-4, abs=1e-6)
