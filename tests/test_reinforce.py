"""REINFORCE follows the gradient of whole episodes' returns, and knows what a time limit hides."""

from __future__ import annotations

import copy
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from on_policy_cases import CHOICES, SWITCHES, assert_same_future, build, network_of, noise, play, rollouts
from refusals import refused
from test_a2c import Recorded

import labrl
from labrl.agents.agent import Observation
from labrl.agents.reinforce import Reinforce
from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.envs.make import describe
from labrl.spaces import Spaces
from labrl.step import Step

BASELINES = {
    "none": ["agent.baseline=none"],
    "mean": ["agent.baseline=mean"],
    "value": ["agent.baseline=value", "agent.value_coef=0.5"],
}
ONE = gym.spaces.Box(0, 1, (1,), np.float32)


class Bandit:
    """One decision a game; `pay` says what an action is worth."""

    def __init__(self, pay: object, num_envs: int) -> None:
        self._pay, self.observation = pay, np.ones((num_envs, 1), np.float32)

    def step(self, action: np.ndarray) -> Step:
        yes, no = np.ones(len(action), np.bool_), np.zeros(len(action), np.bool_)
        reward = np.array([self._pay(a) for a in action], np.float32)  # type: ignore[operator]
        return Step(self.observation, self.observation, reward, yes, no, yes)


@pytest.mark.parametrize("baseline", ["none", "mean", "value"])
def test_an_update_is_the_gradient_of_the_returns_less_the_baseline(
    baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*BASELINES[baseline], "agent.normalize_advantage=false", "agent.gamma=0.9"]
    overrides += ["agent.max_grad_norm=null", "agent.entropy_coef=0.01", "agent.network.shared=false"]
    agent, clock, _ = build("reinforce", *overrides, "agent.episodes=5", num_envs=1)
    world, batches, network = Recorded(noise(1)), rollouts(monkeypatch), copy.deepcopy(network_of(agent))
    while not play(agent, clock, world, 1):
        pass
    target, following = [], torch.zeros(1)
    for step in reversed(world.steps):
        with torch.no_grad():
            final = (
                network(torch.from_numpy(step.next_observation)).value
                if network.has_value
                else torch.zeros(1)
            )
        if step.episode_over[0]:
            following = final if step.truncated[0] and not step.terminated[0] else torch.zeros(1)
        following = torch.from_numpy(step.reward) + 0.9 * following
        target.append(following)
    wanted = torch.cat(target[::-1])
    observation = torch.from_numpy(np.concatenate(world.seen))
    parameters, value, _ = network(observation)
    policy = torch.distributions.Categorical(logits=parameters)
    advantage = wanted - (wanted.mean() if baseline == "mean" else value.detach())
    loss = -(advantage * policy.log_prob(batches[0].action)).mean() - 0.01 * policy.entropy().mean()
    if baseline == "value":
        loss = loss + 0.5 * 0.5 * (wanted - value).square().mean()
    loss.backward()
    for ours, expected in zip(network_of(agent).parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-3, atol=1e-6)


def test_an_episode_under_way_is_learned_from_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, clock, _ = build("reinforce", "agent.episodes=3")
    world, batches = Recorded(noise()), rollouts(monkeypatch)
    play(agent, clock, world, 120)
    rows = sum(len(batch.action) for batch in batches)
    ended = np.stack([step.terminated | step.episode_over for step in world.steps])
    last = [int(np.flatnonzero(ended[:, env])[-1]) + 1 for env in range(4)]
    held = agent.state_dict()["rollout"]  # with the episodes that have ended since the last update
    assert rows <= sum(last)
    assert rows + int((held["end"] - held["first"]).sum()) == sum(last)
    seen = torch.cat([batch.observation for batch in batches])
    assert len(torch.unique(seen, dim=0)) == rows, "no step is learned from twice"


def test_it_finds_the_best_arm() -> None:
    for baseline in ("none", "mean", "value"):
        overrides = [f"agent.baseline={baseline}", "agent.lr=0.02", "agent.episodes=16"]
        agent, clock, _ = build(
            "reinforce", *overrides, observation=ONE, action=gym.spaces.Discrete(4), num_envs=8
        )
        play(agent, clock, Bandit(lambda arm: float(arm == 2), 8), 100)
        with torch.no_grad():
            assert float(network_of(agent)(torch.ones(1, 1)).parameters.softmax(1)[0, 2]) > 0.8


@pytest.mark.parametrize(
    ("action", "best"),
    [(SWITCHES, np.array([1, 0, 1])), (CHOICES, np.array([1, 2]))],
    ids=["switches", "choices"],
)
@pytest.mark.parametrize("agent_name", ["reinforce", "a2c", "ppo"])
def test_several_choices_at_once_are_learned_each(
    agent_name: str, action: gym.Space, best: np.ndarray
) -> None:
    overrides = {
        "reinforce": ["agent.lr=0.02", "agent.episodes=16"],
        "a2c": ["agent.lr=0.01", "agent/optimizer=adam", "agent.horizon=8"],
        "ppo": ["agent.lr=0.01", "agent.horizon=8", "agent.batch_size=32"],
    }[agent_name]
    agent, clock, _ = build(agent_name, *overrides, observation=ONE, action=action, num_envs=8)
    play(agent, clock, Bandit(lambda tried: float((tried == best).mean()), 8), 200)
    chosen = agent.greedy_action(Observation(np.ones((1, 1), np.float32)))
    assert action.contains(chosen[0])
    np.testing.assert_array_equal(chosen[0], best)


@pytest.mark.parametrize("bounds", ["clip", "rescale", "squash"])
@pytest.mark.parametrize("agent_name", ["reinforce", "a2c", "ppo"])
def test_continuous_actions_are_learned_within_any_bounds(agent_name: str, bounds: str) -> None:
    space = gym.spaces.Box(np.array([0], np.float32), np.array([10], np.float32))
    overrides = {
        "reinforce": ["agent.lr=0.02", "agent.episodes=16"],
        "a2c": ["agent.lr=0.01", "agent/optimizer=adam", "agent.horizon=8", "agent.normalize_advantage=true"],
        "ppo": ["agent.lr=0.01", "agent.horizon=8", "agent.batch_size=32"],
    }[agent_name]
    overrides += ["agent.log_std_init=-1"]
    agent, clock, _ = build(
        agent_name, *overrides, f"agent.action_bounds={bounds}", observation=ONE, action=space, num_envs=8
    )
    play(agent, clock, Bandit(lambda a: -abs(float(a[0]) - 2.5), 8), 240)
    chosen = agent.greedy_action(Observation(np.ones((1, 1), np.float32)))
    assert space.contains(chosen[0])
    assert float(chosen[0, 0]) == pytest.approx(2.5, abs=1)


@pytest.mark.parametrize("steps", [2, 17, 40])
@pytest.mark.parametrize("baseline", ["mean", "value"])
def test_a_restored_agent_has_the_same_future(steps: int, baseline: str) -> None:
    assert_same_future(lambda: build("reinforce", *BASELINES[baseline], "agent.episodes=4"), noise(), steps)


def test_episodes_that_fill_the_memory_end_the_session_and_not_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labrl.memory.rollout.memory_available", lambda: 1000)
    overrides = [
        "agent=reinforce",
        "env=cartpole",
        "env.num_envs=16",
        "env.max_frame=8000",
        "meta.progress=false",
    ]
    overrides += [
        "agent.episodes=500",
        "meta.tensorboard=false",
        "meta.report=false",
        f"hydra.run.dir={tmp_path}/run",
    ]
    assert main(overrides) == 1
    said = capsys.readouterr()
    assert "env.num_envs" in said.out + said.err


@pytest.mark.parametrize(
    "override",
    [
        "agent.network.value_head=[8]",
        "agent.network.shared=true",
        "agent.value_coef=1",
        "agent.value_coef=0.5",
    ],
)
@pytest.mark.parametrize("baseline", ["mean", "none"])
def test_options_of_values_that_nobody_learns_are_refused(override: str, baseline: str) -> None:
    overrides = ["agent=reinforce", "env=cartpole", "preset=none", f"agent.baseline={baseline}"]
    config = resolve(compose([*overrides, override]))
    with refused("contradiction", override.partition("=")[0], f"agent.baseline={baseline}", "baseline=value"):
        Reinforce.check(config.agent.config, Spaces(*describe(config.env), 1))


def test_learned_values_need_a_weight() -> None:
    overrides = ["agent=reinforce", "env=cartpole", "preset=none", "agent.baseline=value"]
    config = resolve(compose(overrides))
    with refused("contradiction", "agent.value_coef", "agent.baseline=value", "agent.value_coef=0.5"):
        Reinforce.check(config.agent.config, Spaces(*describe(config.env), 1))


def test_a_run_without_an_update_says_so(tmp_path: Path) -> None:
    overrides = ["agent=reinforce", "env=cartpole", "preset=none", "agent.episodes=1000", "env.max_frame=200"]
    overrides += ["meta=dev", "meta.max_session=1", "wandb=disabled", f"hydra.run.dir={tmp_path / 'run'}"]
    run = labrl.train(overrides)
    assert run.exit_code == 0
    log = (run.folder / "session_0" / "session.log").read_text()
    assert run.sessions[0].opt_step == 0
    assert "env.max_frame" in log
