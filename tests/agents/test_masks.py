"""Tests of action masks: agents take, learn from and bootstrap from valid actions only."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_cases import build, config_of
from env_cases import gymnasium_node
from exact_cases import SMALL
from masked_env import Doors
from numpy.typing import NDArray
from refusals import refused
from restoring import changed_futures

import labrl
from labrl.agents.agent import Observation
from labrl.agents.make import named_agents
from labrl.agents.parts.action_values import ExpectedValue
from labrl.agents.parts.exploration import uniform_valid
from labrl.agents.random import uniform_actions
from labrl.agents.sac import CategoricalPolicy
from labrl.component import Component
from labrl.config.validate import dataclass_of
from labrl.envs.make import gives_masks, make_env
from labrl.envs.masks import NoValidActionError
from labrl.envs.vector import VectorEnv
from labrl.errors import Code, EnvironmentFailedError
from labrl.learning.compute import Compute
from labrl.step import Step

QUIET = ["meta=dev", "meta.max_session=1", "meta.report=false", "seed=5", "env.max_frame=400"]


def doors(task: str = "masked_env.Doors", settings: Any = None, **make: Any) -> Component:
    node = gymnasium_node(name="doors", make={"_target_": task, **make}, **(settings or {}))
    return dataclass_of(Component, node, "env")


def made(*given: Any, **more: Any) -> VectorEnv:
    """Return an environment that has begun its first episodes."""
    env = make_env(doors(*given, **more), seed=1, num_threads=1, num_envs=3)
    env.reset()
    return env


def overrides(agent: str, **settings: Any) -> list[str]:
    """Return the overrides of a small run of `agent` on Doors."""
    env = ["env=gymnasium", "env.id=null", "env.name=doors", "+env.make._target_=masked_env.Doors"]
    env += [f"+env.make.{name}={value}" for name, value in settings.items()]
    small = ["agent.self_imitation.batch_size=16"] if agent.startswith("sil") else []
    return [f"agent={agent}", *env, *QUIET, *SMALL[str(config_of(agent).agent.target)], *small]


@pytest.mark.parametrize(("style", "vectorization"), [("info", "sync"), ("dict", "async")])
def test_each_step_returns_the_mask_of_the_next_action(style: str, vectorization: str) -> None:
    env = made(style=style, settings={"vectorization": vectorization})
    assert env.masked
    assert env.observation_space == gym.spaces.Box(0, 1, (2,), np.float32)
    kinds = set()
    for _ in range(40):
        before = env.action_mask
        assert before is not None
        assert before.any(1).all()
        step = env.step(before.argmax(1) + 2)  # the environment rejects invalid actions
        assert step.mask is not None
        assert step.next_mask is not None
        np.testing.assert_array_equal(step.mask, env.action_mask)
        same = step.mask is step.next_mask
        assert same == (not step.episode_over.any())
        assert not step.next_mask[step.terminated].any()
        assert step.next_mask[~step.terminated].any(1).all()
        kinds |= {(bool(t), bool(o)) for t, o in zip(step.terminated, step.episode_over, strict=True)}
    assert kinds == {(True, True), (False, True), (False, False)}
    env.close()


def test_masks_are_restored_with_the_episodes() -> None:
    one, other = made(), made()
    for _ in range(11):
        one.step(first_valid(one))
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.action_mask, other.action_mask)
    other.abandon(one.state_dict())
    np.testing.assert_array_equal(one.action_mask, other.action_mask)
    step = other.step(np.full(3, 2))
    np.testing.assert_array_equal(step.next_mask, one.action_mask)
    assert step.mask is not None
    assert step.mask.any(1).all()


def first_valid(env: VectorEnv) -> NDArray:
    assert env.action_mask is not None
    return env.action_mask.argmax(1) + 2


def test_state_without_a_valid_action_raises_with_environment_and_frame() -> None:
    env = made(broken=2, settings={"fresh_env_per_episode": False})
    env.step(first_valid(env))
    with refused("environment", "env.action_mask", "doors", "frame 6", kind=NoValidActionError):
        env.step(first_valid(env))


class Lookalike(gym.Wrapper):
    """The environment without its mask in `info`, but with the method of Stable-Baselines3's MaskablePPO."""

    def action_masks(self) -> NDArray:
        return self._mask

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self._mask = info.pop("action_mask")
        return observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *rest, info = self.env.step(action if self._mask[action - 2] else self._mask.argmax() + 2)
        self._mask = info.pop("action_mask")
        return *rest, {}


WRAPPED = "env.wrappers=[{_target_: test_masks.Lookalike}]"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([], ["info['action_mask'] is used"]),
        (["+env.make.style=dict"], ["observation['action_mask'] is used"]),
        ([WRAPPED], ["none are used", "action_masks()"]),
        ([WRAPPED, "env.action_mask=false"], []),
    ],
)
def test_run_says_whether_masks_are_used(
    more: list[str], named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labrl.train([*overrides("ppo"), *more, f"hydra.run.dir={tmp_path / 'run'}"])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("action masks: ")]
    assert len(said) == bool(named)
    assert all(name in said[0] for name in named)


def test_masks_can_be_ignored() -> None:
    env = made(style="dict", settings={"action_mask": False})
    assert not env.masked
    assert env.reset().shape == (3, 2)
    assert env.action_mask is None


class GivenMasks(Doors):
    """Environment whose mask is `first` at resets and `later` from step 3 on, even if these are no masks."""

    def __init__(self, first: Any, later: Any = (0, 1, 1, 0), style: str = "info", box: bool = False) -> None:
        super().__init__(style)
        self._first, self._later = first, later
        if box:
            self.action_space = gym.spaces.Box(-1, 1, (4,))  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return *self._step_shown(False, False), self._info

    def _shown(self, over: bool) -> tuple[Any, dict[str, Any]]:
        seen, _ = super()._shown(over)
        given = self._later if self._steps > 2 else self._first
        if self._style == "dict":
            return {**seen, "action_mask": given}, {}
        return seen, {} if given is None else {"action_mask": given}


@pytest.mark.parametrize(
    ("arguments", "code", "key", "named"),
    [
        ({"first": [0, -1e8, 0, 0]}, "environment", "env.action_mask", "[0, -100000000.0, 0, 0]"),
        ({"first": [float("nan")] * 4}, "environment", "env.action_mask", "[nan"),
        ({"first": ["1", "0", "1", "1"]}, "environment", "env.action_mask", "'0'"),
        ({"first": [1, 1, 1]}, "environment", "env.action_mask", "4"),
        ({"first": [0, -1e8, 0, 0], "style": "dict"}, "environment", "env.make", "['action_mask']"),
        ({"first": [1, 1, 1, 1], "box": True}, "unsupported", "env.action_mask", "Box"),
    ],
)
def test_unusable_mask_is_refused_before_a_run(
    arguments: dict[str, Any], code: Code, key: str, named: str
) -> None:
    env = doors("test_masks.GivenMasks", **arguments)
    with refused(code, key, named):
        gives_masks(env)
    env.config.action_mask = False
    assert not gives_masks(env)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("first", "later"), [([1, 1, 1, 1], [0, -1e8, 0, 0]), (None, [1, 1, 1, 1])])
def test_mask_that_becomes_invalid_or_appears_during_a_run_raises_an_error(
    first: Any, later: list[float], vectorization: str
) -> None:
    settings = {"vectorization": vectorization, "fresh_env_per_episode": False}
    env = made("test_masks.GivenMasks", settings, first=first, later=later)
    for _ in range(2):
        env.step(np.array([2, 2, 2]))
    with refused("environment", "env", "step 3", "action_mask", kind=EnvironmentFailedError):
        env.step(np.array([2, 2, 2]))
    env.close()


SUPPORTING = (
    "ppo",
    "a2c",
    "reinforce",
    "sil_ppo",
    "sarsa",
    "pqn",
    "dqn",
    "rainbow_lite",
    "random",
    "sac",
    "crossq",
)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        *((agent, {"style": "dict" if agent in ("a2c", "dqn") else "info"}) for agent in SUPPORTING),
        *((agent, {"several": True}) for agent in ("ppo", "a2c", "random")),
    ],
)
def test_agent_takes_only_valid_actions(agent: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The environment raises an exception at an invalid action, in training and in evaluation."""
    more = ["meta.rigorous_eval=2", "meta.eval_frequency=200", f"hydra.run.dir={tmp_path / 'run'}"]
    assert labrl.train([*overrides(agent, **settings), *more]).exit_code == 0


@pytest.mark.extended
@pytest.mark.parametrize("agent", ["ppo", "sil_ppo", "sarsa", "dqn", "sac"])
def test_resumed_run_with_masks_equals_an_uninterrupted_one(agent: str, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, [*overrides(agent), "env.num_envs=4"]) == []


def step_of(mask: NDArray, next_mask: NDArray, terminated: bool) -> Step:
    yes, no = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    observation = np.ones((1, 3), np.float32)
    over = yes if terminated else no
    return Step(observation, observation, np.ones(1, np.float32), over, no, over, [], mask, next_mask)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_targets_of_q_learning_never_use_an_invalid_action(
    double: bool, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = ["agent.batch_size=1", "agent.learning_starts=0", "agent.memory.capacity=16", "agent.lr=0"]
    plain = ["agent.network.torso.mlp.hidden=[8]", "agent.gamma=0.9", f"agent.double={double}"]
    often, action = "agent.updates_per_frame=20", gym.spaces.Discrete(3)
    compute = dataclasses.replace(Compute.choose("cpu", "fp32", 1), kernels=kernels)
    spaces: Any = {"action": action, "num_envs": 1, "masked": True, "compute": compute}
    agent, clock, _ = build("dqn", *learning, *plain, often, **spaces)
    valid = np.array([[True, True, False]])
    observation = np.ones((1, 3), np.float32)
    with torch.no_grad():
        q = agent.modules()["q_network"](torch.from_numpy(observation)).outputs[0, :, 0]
    following = np.arange(3)[None] == int(q.argmin())  # only the worst action is valid
    targets: list[Any] = []
    find = ExpectedValue.target
    monkeypatch.setattr(ExpectedValue, "target", lambda *given: targets.append(find(*given)) or targets[-1])
    for mask, next_mask, terminated in (
        (valid, following, False),
        (following, np.zeros((1, 3), np.bool_), True),
        (valid, following, False),
    ):
        agent.act(Observation(observation, mask))
        agent.observe(step_of(next_mask, next_mask, terminated))
        updates = agent.learn()
        clock.tick(1)
    assert updates == 20
    found = sorted({round(target.item(), 4) for target in targets})
    assert found == pytest.approx(sorted([1.0, 1 + 0.9 * float(q.min())]), abs=1e-3)


def test_masked_policy_is_updated_on_the_masked_probabilities() -> None:
    small = ["agent.horizon=4", "agent.batch_size=8", "agent.epochs=1", "agent.lr=0"]
    agent, clock, _ = build("ppo", *small, num_envs=2, masked=True)
    rng = np.random.default_rng(0)
    mask = rng.random((2, 3)) < 0.5
    mask[:, 0] = True
    for _ in range(4):
        observation = rng.normal(size=(2, 3)).astype(np.float32)
        agent.act(Observation(observation, mask))
        no = np.zeros(2, np.bool_)
        following = rng.random((2, 3)) < 0.5
        following[:, 1] = True
        agent.observe(
            Step(observation, observation, np.ones(2, np.float32), no, no, no, [], following, following)
        )
        updates, mask = agent.learn(), following
        clock.tick(2)
    assert updates == 1
    # The weights are unchanged, so the ratios are 1 if acting and learning have used the same masks.
    assert agent.metrics()["kl"] == pytest.approx(0, abs=1e-6)
    assert agent.metrics()["entropy"] < np.log(3)


def test_random_actions_are_uniform_among_the_valid_ones() -> None:
    mask = np.tile([False, True, True, False, True], (30_000, 1))
    chosen = uniform_valid(mask, np.random.default_rng(0).random(30_000))
    np.testing.assert_allclose(
        np.bincount(chosen, minlength=5) / 30_000, [0, 1 / 3, 1 / 3, 0, 1 / 3], atol=0.01
    )
    space = gym.spaces.MultiDiscrete([2, 3], start=[0, 10])
    both = np.tile([True, False, False, True, True], (300, 1))
    drawn = uniform_actions(space, 300, np.random.default_rng(0), both)
    assert set(drawn[:, 0].tolist()) == {0}
    assert set(drawn[:, 1].tolist()) == {11, 12}


REPLAY = ["agent.batch_size=8", "agent.learning_starts=0", "agent.memory.capacity=64", "agent.lr=1e-3"]


def play_masked(agent: Any, clock: Any, masks: list[NDArray], steps: int) -> None:
    """Play steps in which the masks follow each other in turn."""
    for step in range(steps):
        mask, following = masks[step % len(masks)], masks[(step + 1) % len(masks)]
        action = agent.act(Observation(np.ones((1, 3), np.float32), mask))
        assert mask[0, action[0]]
        agent.observe(step_of(following, following, terminated=step % 7 == 6))
        agent.learn()
        clock.tick(1)


@pytest.mark.parametrize("agent_name", ["sac", "crossq"])
def test_soft_targets_and_policies_never_use_an_invalid_action(
    agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces: Any = {"action": gym.spaces.Discrete(3), "num_envs": 1, "masked": True}
    agent, clock, _ = build(agent_name, *REPLAY, **spaces)
    seen: list[NDArray] = []
    choose = CategoricalPolicy.choose

    def spy(self: CategoricalPolicy, parameters: torch.Tensor, noise: torch.Tensor) -> Any:
        found = choose(self, parameters, noise)
        seen.append(found[0].detach().numpy())
        return found

    monkeypatch.setattr(CategoricalPolicy, "choose", spy)
    masks = [np.array([[True, True, False]]), np.array([[False, True, True]])]
    play_masked(agent, clock, masks, 40)
    chances = np.concatenate(seen)
    assert len(chances) > 100
    zeros = chances == 0
    # Where an episode has terminated, the mask of the next state is that of step_of, valid too.
    assert (zeros.sum(1) == 1).all()
    assert not zeros[:, 1].any()
    assert {int(row.argmax()) for row in zeros} == {0, 2}


def test_temperature_follows_the_entropy_that_valid_actions_allow() -> None:
    """With one valid action in every state, the entropy is 0 and no temperature could change it."""
    spaces: Any = {"action": gym.spaces.Discrete(3), "num_envs": 1, "masked": True}
    agent, clock, _ = build("sac", *REPLAY, **spaces)
    first = agent.metrics()["temperature"]
    play_masked(agent, clock, [np.array([[False, True, False]])], 30)
    metrics = agent.metrics()
    assert (metrics["temperature"], metrics["entropy"], metrics["entropy_largest"]) == (
        pytest.approx(first), pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6)
    )  # fmt: skip
    two = [np.array([[True, True, False]])]
    agent, clock, _ = build("sac", *REPLAY, **spaces)
    play_masked(agent, clock, two, 60)
    # A nearly uniform policy over two actions has more entropy than 0.6 log 2, but less than 0.6 log 3 + 0.1.
    assert agent.metrics()["entropy_largest"] == pytest.approx(np.log(2), abs=1e-4)
    assert agent.metrics()["temperature"] < first


def test_refusal_of_masks_names_every_other_agent_of_discrete_actions(tmp_path: Path) -> None:
    folder, discrete = f"hydra.run.dir={tmp_path / 'run'}", gym.spaces.Discrete(3)
    with refused("unsupported", "agent", "doors", "iql", "env.action_mask=f") as error:
        labrl.train([*overrides("iql"), folder])
    named = {word.strip(".,:") for word in str(error.value).split() if word.startswith("agent=")}
    assert named == {f"agent={name}" for name, kind in named_agents().items() if kind.fits(discrete)}
    assert not (tmp_path / "run").exists()
