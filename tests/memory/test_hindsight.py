"""Tests of hindsight experience replay: new goals come from the same episode, and rewards are recomputed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_cases import gymnasium_node
from exact_cases import BITS, QUIET, rows
from goal_env import BitFlip, Reach
from options import options
from refusals import refused
from replay_cases import load, saved

import labrl
from labrl.component import Component
from labrl.config.compose import compose, resolve
from labrl.config.validate import dataclass_of
from labrl.envs.goals import GoalEnv
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.errors import Code
from labrl.memory.hindsight import HindsightReplay
from labrl.memory.workspace import Workspace
from labrl.spaces import flat_space
from labrl.step import Step
from labrl.trial.create import check

DISCOUNT = np.float32(0.9)


def vector(task: str, num_envs: int = 3) -> VectorEnv:
    node = gymnasium_node(name=task, make={"_target_": f"goal_env.{task}"})
    return make_env(dataclass_of(Component, node, "env"), seed=5, num_threads=1, num_envs=num_envs)


def memory_of(env: VectorEnv, strategy: Any, capacity: int = 90, relabelled: float = 1.0) -> HindsightReplay:
    return HindsightReplay(
        options(
            "agent.memory",
            "agent=dqn agent/memory=hindsight",
            strategy=strategy,
            capacity=capacity,
            relabelled=relabelled,
        ),
        observation_space=env.observation_space,
        action_space=env.action_space,
        num_envs=env.num_envs,
        n_step=1,
        gamma=float(DISCOUNT),
        workspace=Workspace(),
        generator=np.random.default_rng(0),
        goals=env.goals,
    )


def played(env: VectorEnv, memory: HindsightReplay, steps: int) -> list[dict[str, Any]]:
    """Store random steps in the replay buffer, and return for each step the goals and the episode numbers."""
    rng, observation, history = np.random.default_rng(1), env.reset(), []
    episode = np.zeros(env.num_envs, np.int64)
    for _ in range(steps):
        if isinstance(env.action_space, gym.spaces.Box):
            action: Any = rng.uniform(-1, 1, (env.num_envs, 2)).astype(np.float32)
        else:
            action = rng.integers(0, 6, env.num_envs)
        step = env.step(action)
        memory.add(observation, action, step)
        after = {key: step.next_observation[f"{key}_goal"].copy() for key in ("achieved", "desired")}
        facts = {"episode": episode.copy(), "over": step.episode_over.copy(), "next": step.observation.copy()}
        history.append({"reached": after["achieved"], "desired": after["desired"], **facts})
        episode = episode + step.episode_over
        observation = step.observation
    return history


@pytest.mark.extended
@pytest.mark.parametrize("task", [BitFlip, Reach])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_come_from_the_same_episode_with_recomputed_rewards(strategy: str, task: type) -> None:
    env = vector(task.__name__)
    memory = memory_of(env, strategy)
    history = played(env, memory, 70)
    running = [max((t for t, now in enumerate(history) if now["over"][e]), default=-1) + 1 for e in range(3)]
    alone, relabelled, later = task(), 0, 0
    for _ in range(20):
        sample = memory.sample(64, 0)
        for row, (t, e) in enumerate(zip(*np.divmod(sample.index, 3), strict=True)):
            goal, reached = sample.next_observation["desired_goal"][row], history[t]["reached"][e]
            np.testing.assert_array_equal(sample.observation["desired_goal"][row], goal)
            np.testing.assert_array_equal(sample.next_observation["achieved_goal"][row], reached)
            assert sample.reward[row] == alone.compute_reward(reached, goal, {})
            ended = bool(alone.compute_terminated(reached, goal, {}))
            assert sample.discount[row] == (0 if ended else DISCOUNT)
            if t >= running[e]:
                continue  # its episode has not ended, so its goal is the original one
            episode = [s for s in range(70) if history[s]["episode"][e] == history[t]["episode"][e]]
            first = {"future": t, "final": episode[-1], "episode": 70 - memory.live}[strategy]
            sources = [s for s in episode if s >= first]
            assert any(np.array_equal(history[s]["reached"][e], goal) for s in sources)
            relabelled += 1
            later += not np.array_equal(goal, reached)
    assert relabelled > 500
    assert later > 100
    env.close()


def test_configured_fraction_of_transitions_is_relabelled() -> None:
    env = vector("Reach")
    none, half = memory_of(env, "final", relabelled=0.0), memory_of(env, "final", relabelled=0.5)
    for memory, fraction in ((none, 0.0), (half, 0.5)):
        history = played(env, memory, 30)
        sample = memory.sample(4000, 0)
        step, env_of = np.divmod(sample.index, env.num_envs)
        over = np.array([now["over"] for now in history])
        ended = np.array([over[t:, e].any() for t, e in zip(step, env_of, strict=True)])
        before = np.array([now["desired"] for now in history])[step, env_of]
        changed = (sample.observation["desired_goal"] != before).any(1)
        assert not changed[~ended].any()
        assert changed[ended].mean() == pytest.approx(fraction, abs=0.05)
    env.close()


@pytest.mark.parametrize("steps", [70, 78, 100])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_restored_replay_buffer_draws_the_same_goals(strategy: str, steps: int) -> None:
    env = vector("Reach")
    one, other = memory_of(env, strategy, capacity=90), memory_of(env, strategy, capacity=90)
    played(env, one, steps)
    load(other, saved(one))
    for _ in range(10):
        left, right = one.sample(32, 0), other.sample(32, 0)
        assert left.observation.tobytes() == right.observation.tobytes()
        assert left.reward.tobytes() == right.reward.tobytes()
    env.close()


def test_episode_abandoned_at_a_resume_gets_no_goals_of_the_next() -> None:
    env = vector("Reach", num_envs=1)
    memory = memory_of(env, "future")
    history, yes = played(env, memory, 4), np.ones(1, np.bool_)
    assert not any(now["over"][0] for now in history), "the episode has already ended"
    lost, fresh = history[-1]["next"], env.reset()
    nothing = Step(fresh, lost, np.zeros(1, np.float32), ~yes, yes, yes, void=True)
    memory.add(lost, np.zeros((1, 2), np.float32), nothing)
    later = []
    while not later or not later[-1].episode_over[0]:
        seen = later[-1].observation if later else fresh
        later.append(env.step(np.full((1, 2), 0.3, np.float32)))
        memory.add(seen, np.zeros((1, 2), np.float32), later[-1])
    sample = memory.sample(200, 0)
    goals = sample.next_observation["desired_goal"][sample.index < 4]
    reached = [now["reached"][0] for now in history]
    assert len(goals) > 20
    assert all(any(np.array_equal(goal, one) for one in reached) for goal in goals)
    env.close()


class Plane(Reach):
    """Task whose `compute_reward` takes a batch of two goals for one of size two."""

    def distance(self, achieved: Any, desired: Any) -> Any:
        return np.hypot(achieved[0] - desired[0], achieved[1] - desired[1])


class OneByOne(Reach):
    """Task whose methods fail if they get a batch of goals."""

    def distance(self, achieved: Any, desired: Any) -> Any:
        assert achieved.ndim == 1, "a batch of goals"
        return super().distance(achieved, desired)


class InPlace(Reach):
    """Task that computes its rewards in the arrays that it gets, and always returns the same array."""

    answer = np.zeros(())

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        rewards = super().compute_reward(achieved_goal.copy(), desired_goal, info)
        achieved_goal -= desired_goal
        if np.ndim(rewards):
            return rewards
        self.answer[...] = rewards
        return self.answer


def goals_in(make: Any) -> GoalEnv:
    return GoalEnv(make, flat_space(make().observation_space), "task")


@pytest.mark.parametrize(
    "make",
    [Reach, OneByOne, BitFlip, Plane, InPlace],
)
def test_consistent_rewards_are_accepted_without_a_message_and_equal_single_ones(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    goals, alone = goals_in(make), Plane() if make is Plane else Reach()
    goals.check()
    assert not caplog.records
    size = 6 if make is BitFlip else 2
    achieved = np.random.default_rng(0).uniform(-1, 1, (size, size)).astype(np.float32)
    desired = achieved + np.arange(size, dtype=np.float32)[:, None]
    kept, pairs = achieved.copy(), list(zip(achieved, desired, strict=True))
    rewards = [float(alone.compute_reward(*pair, {})) for pair in pairs]
    assert set(rewards) == {-1.0, 0.0}
    np.testing.assert_array_equal(goals.reward(achieved, desired), rewards)
    np.testing.assert_array_equal(goals.terminated(achieved, desired), np.array(rewards) == 0)
    np.testing.assert_array_equal(achieved, kept)


class Changed(Reach):
    """Task that changes rewards and ends of some steps, which `compute_reward` does not do."""

    def __init__(self, scaled: bool = False, bumps: bool = False, ends: bool = False) -> None:
        super().__init__()
        self._scaled, self._bumps, self._ends = scaled, bumps, ends

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        reward = 10 * reward - 1 if self._scaled else reward - (self._bumps and self._steps == 7)
        return seen, reward, self._steps == 7 if self._ends else terminated, truncated, info


class NeedsInfo(Reach):
    """Task whose `compute_reward` needs the info of a step."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -info["distance"]

    def step(self, action: Any) -> Any:
        return self._seen(), -1.0, False, False, {}


class OtherGoal(Reach):
    """Task whose goals have another shape than what is achieved."""

    def __init__(self) -> None:
        super().__init__()
        spaces = {**self.observation_space.spaces, "desired_goal": gym.spaces.Box(-1, 1, (1,), np.float32)}
        self.observation_space = gym.spaces.Dict(spaces)


@pytest.mark.parametrize("make", [partial(Changed, scaled=True), NeedsInfo, OtherGoal])
def test_rewards_that_no_step_confirms_are_refused(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with refused("unsupported", "agent.memory", "env.name=task", "agent/memory=uniform"):
        goals_in(make).check()
    assert not caplog.records


@pytest.mark.parametrize(
    ("make", "method"),
    [(partial(Changed, bumps=True), "compute_reward"), (partial(Changed, ends=True), "compute_terminated")],
)
def test_rewards_and_ends_of_a_few_other_steps_are_named(
    make: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    goals_in(make).check()
    assert len(caplog.records) == 1
    assert method in caplog.text
    assert "step 7" in caplog.text


LEARN = [
    *("agent=dqn", *BITS, *QUIET, "+env.make.n=8", "env.num_envs=4", "agent.lr=1e-3", "agent.gamma=0.95"),
    *("agent.learning_starts=200", "agent.updates_per_frame=0.5", "agent.batch_size=64", "meta.num_cpus=1"),
    *("agent/target=polyak", "agent.target.tau=0.05", "agent.exploration.epsilon=0.15"),
    *("meta.rigorous_eval=4", "meta.eval_episodes=8", "env.max_frame=2000"),
]


@pytest.mark.slow
def test_bit_flipping_is_learned_only_with_hindsight(tmp_path: Path) -> None:
    returns = {}
    for memory in ("hindsight", "uniform"):
        folder = labrl.train([*LEARN, f"agent/memory={memory}", f"hydra.run.dir={tmp_path / memory}"]).folder
        returns[memory] = float(rows(folder / "session_0" / "eval.csv")[-1]["return_mean"])
    assert returns["hindsight"] > -4.5  # the best is -3, because four bits are wrong at first on average
    assert returns["uniform"] < -7  # an episode that never reaches its goal returns -8


MUTE = ["env=gymnasium", "env.id=null", "env.name=mute", "+env.make._target_=goal_env.Mute"]
SIGN = "+transforms.reward._target_=labrl.agents.transforms.SignReward"
REFUSED: list[tuple[list[str], Code, str, list[str]]] = [
    (["env=cartpole"], "unsupported", "agent.memory", ["agent/memory=uniform"]),
    ([*BITS, "agent.n_step=3"], "contradiction", "agent.n_step", ["3", "agent/memory=hindsight"]),
    ([*BITS, SIGN], "contradiction", "transforms.reward", ["agent.memory", "transforms.reward=null"]),
    (MUTE, "unsupported", "agent.memory", ["env.name=mute", "compute_reward"]),
]


@pytest.mark.parametrize(("overrides", "code", "key", "named"), REFUSED)
def test_hindsight_is_refused_for_unsuitable_tasks_and_options(
    overrides: list[str], code: Code, key: str, named: list[str]
) -> None:
    with refused(code, key):
        check(resolve(compose(["agent=dqn", *overrides, "agent/memory=hindsight"])))
