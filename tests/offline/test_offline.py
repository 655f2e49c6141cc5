"""Tests of offline data: learning from a saved run or a Minari dataset, alone or with new transitions."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from exact_cases import QUIET, SMALL, rows, state
from options import options
from refusals import refused
from replay_cases import STACK, VECTOR, NaiveReplay, World, assert_all_as_seen, everything, uniform
from restoring import changed_futures, session_in

import labrl
from labrl.component import Component
from labrl.config.compose import compose, resolve, to_plain
from labrl.config.validate import dataclass_of
from labrl.errors import Code, install_command
from labrl.memory.offline import Chunk, ChunkReplay, OfflineData, Requirements
from labrl.offline.run import OfflineRun, OfflineRunConfig
from labrl.trial.create import check

pytestmark = pytest.mark.extended

OFFLINE_CONFIG: OfflineRunConfig = options(
    "agent.offline", "agent=dqn agent/offline=run agent.offline.folder=none"
)
SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = gym.spaces.Discrete(2)
WANTED = Requirements(SPACE, gym.spaces.Discrete(7), gym.spaces.Discrete(7), 0.9, 1)
DQN = ["agent=dqn", "env=cartpole", *QUIET, *SMALL["labrl.agents.dqn.DQN"], "env.num_envs=4"]
DQN += ["env.max_frame=320", "meta.log_frequency=64", "meta.eval_frequency=92"]


def read(folders: Any, wanted: Requirements | None = None, most: int | None = None) -> OfflineRun:
    """Read the data of one or several runs for an agent in CartPole, or with other requirements."""
    folder = [str(one) for one in folders] if isinstance(folders, list) else str(folders)
    config = dataclasses.replace(OFFLINE_CONFIG, folder=folder, max_transitions=most)
    if wanted is None:
        wanted = Requirements(gym.make("CartPole-v1").observation_space, TWO, TWO, 0.99, 1)
    return OfflineRun(config, wanted=wanted, generator=np.random.default_rng(0))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train DQN on CartPole; its replay buffer ends with the 96 transitions of the last 24 vector steps."""
    return labrl.train([*DQN, f"hydra.run.dir={tmp_path_factory.mktemp('from') / 'run'}"]).folder


def piece(start: float, length: int, ended: bool) -> Chunk:
    """Make an episode whose observations count up from `start`."""
    observations = np.tile(np.arange(start, start + length + 1, dtype=np.float32)[:, None], (1, 3))
    last = np.arange(length) == length - 1
    reward = np.arange(length, dtype=np.float32)
    return Chunk(observations[:-1], np.arange(length) % 7, reward, observations[1:], last & ended, last)


def data(pieces: list[Chunk], n_step: int = 1, **changes: Any) -> OfflineData:
    """Make offline data of some episodes, with changes of its configuration."""
    total = sum(len(piece.reward) for piece in pieces)
    wanted = WANTED._replace(n_step=n_step)
    config = dataclasses.replace(OFFLINE_CONFIG, **changes)
    return OfflineData(config, pieces, total, wanted, np.random.default_rng(0))


@pytest.mark.parametrize("n_step", [1, 3])
def test_n_step_windows_stay_within_an_episode(n_step: int) -> None:
    offline = data([piece(0, 5, True), piece(100, 4, False), piece(200, 6, True)], n_step)
    assert len(offline) == 15
    sample = offline.mixed(uniform(SPACE, 1), 400, 0, 0, joined=False)
    lengths, ends = {0: 5, 100: 4, 200: 6}, {0: True, 100: False, 200: True}
    assert len(np.unique(sample.observation[:, 0])) == 15
    for row in range(400):
        begin, step = divmod(int(sample.observation[row, 0]), 100)
        left = min(n_step, lengths[100 * begin] - step)
        assert sample.next_observation[row, 0] == sample.observation[row, 0] + left
        assert sample.reward[row] == pytest.approx(sum(0.9**k * (step + k) for k in range(left)))
        terminated = step + left == lengths[100 * begin] and ends[100 * begin]
        assert sample.discount[row] == pytest.approx(0 if terminated else 0.9**left)


@pytest.mark.parametrize(("space", "jumps"), [(VECTOR, 0), (STACK, 0.2)], ids=["vector", "stack"])
def test_extend_stores_the_same_as_adding_step_by_step(space: gym.Space, jumps: float) -> None:
    memory = uniform(space, 1, 3, capacity=400, newest_share=1, cls=ChunkReplay)
    naive = NaiveReplay(space, 1, 400, 3)
    steps = list(World(space, 1, seed=4, jumps=jumps).steps(200))
    for step in steps:
        naive.add(*step)
    for part in (steps[:1], steps[1:90], steps[90:]):
        observation, action, outcomes = zip(*part, strict=True)
        ends = [step.terminated | step.episode_over for step in outcomes]
        fields = ("reward", "next_observation", "terminated")
        columns = [action, *([getattr(step, name) for step in outcomes] for name in fields)]
        memory.extend(Chunk(*map(np.concatenate, [observation, *columns, ends])))
    assert_all_as_seen(everything(memory), naive, naive.sampleable())


def test_deviation_of_observations_is_right_where_the_mean_is_large() -> None:
    pieces = [piece(0, 5, True), piece(2, 7, True), piece(1, 9, False)]
    far = [each._replace(observation=each.observation + np.float32(1e7)) for each in pieces]
    far = [one._replace(next_observation=one.next_observation + np.float32(1e7)) for one in far]
    seen = np.concatenate([each.observation for each in far]).astype(np.float64)
    mean, deviation = data(far).observation_statistics()
    np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(deviation, seen.std(0), rtol=1e-9)


def test_minibatches_mix_offline_and_online_data_as_configured() -> None:
    online = uniform(SPACE, 2, newest_share=0.0, capacity=64)
    for step in World(SPACE, 2, seed=0).steps(30):
        online.add(*step)
    offline = data([piece(1e6, 40, True)], share=0.25, online_every=3)
    for update in range(6):
        sample = offline.mixed(online, 16, 0, update, joined=True)
        is_offline = sample.observation[:, 0] >= 1e6
        assert is_offline.sum() == (4 if update % 3 == 0 else 16)
        np.testing.assert_array_equal(is_offline, sample.index < 0)
    assert (offline.mixed(online, 16, 0, 0, joined=False).index < 0).all()
    assert len(data([piece(0, 40, True), piece(100, 40, True)], max_transitions=50)) == 50


def test_offline_run_reads_all_transitions_of_the_saved_replay_buffer(
    collected: Path, tmp_path: Path
) -> None:
    env = gym.make("CartPole-v1")
    held = state(collected / "session_0")["agent"]["experience"]["memory"]["transitions"]
    mapped = labrl.train([*DQN, "agent.memory.storage=mmap", f"hydra.run.dir={tmp_path / 'run'}"]).folder
    samples = []
    for folder in (collected, mapped):
        offline = read(folder)
        assert len(offline) == int((held["steps"] - held["oldest"]).sum())
        samples.append(offline.mixed(uniform(SPACE, 1), 500, 0, 0, joined=False))
        for row in range(500):  # each transition must follow from CartPole's own dynamics
            env.reset()
            env.unwrapped.state = samples[-1].observation[row].astype(np.float64)  # type: ignore[attr-defined]
            env.unwrapped.steps_beyond_terminated = None  # type: ignore[attr-defined]
            expected, _, terminated, *_ = env.unwrapped.step(int(samples[-1].action[row]))
            np.testing.assert_allclose(samples[-1].next_observation[row], expected, atol=1e-5)
            assert terminated == (samples[-1].discount[row] == 0)
    np.testing.assert_array_equal(samples[0].observation, samples[1].observation)


@pytest.mark.parametrize("storage", ["ram", "mmap"])
def test_offline_run_provides_action_masks(storage: str, tmp_path: Path) -> None:
    overrides = [override for override in DQN if override != "env=cartpole"] + DOORS
    more = [f"agent.memory.storage={storage}", f"hydra.run.dir={tmp_path / 'source'}"]
    source = labrl.train([*overrides, *more]).folder
    space, actions = gym.spaces.Box(0, 1, (2,), np.float32), gym.spaces.Discrete(4, start=2)
    wanted = Requirements(space, actions, gym.spaces.Discrete(4), 0.9, 1, 4)
    sample = read(source, wanted).mixed(uniform(space, 1), 300, 0, 0, joined=False)
    assert sample.mask is not None
    assert sample.next_mask is not None
    assert sample.mask[np.arange(300), sample.action].all()
    assert 0.4 < sample.mask.mean() < 0.7
    assert sample.next_mask[sample.discount > 0].any(axis=1).all()
    unmasked = read(source, wanted._replace(num_masked=0))
    assert unmasked.mixed(uniform(space, 1), 9, 0, 0, joined=False).mask is None
    more = ["agent/offline=run", f"agent.offline.folder={source}", f"hydra.run.dir={tmp_path / 'hybrid'}"]
    assert labrl.train([*overrides, *more, "meta.rigorous_eval=1"]).exit_code == 0


DOORS = ["env=gymnasium", "env.id=null", "env.name=doors", "+env.make._target_=masked_env.Doors"]


@pytest.mark.parametrize("end", [0, 128])
def test_learning_continues_after_collect_until(end: int, collected: Path, tmp_path: Path) -> None:
    overrides = [f"agent.collect_until={end}", "meta.rigorous_eval=1", f"hydra.run.dir={tmp_path / 'run'}"]
    overrides += ["agent/offline=run", f"agent.offline.folder={collected}"] if end == 0 else []
    session = labrl.train([*DQN, *overrides]).folder / "session_0"
    table = {int(row["frame"]): row for row in rows(session / "train.csv")}
    frames = [64, 128, 192, 320]
    assert [int(table[frame]["env_frames"]) for frame in frames] == [min(frame, end) for frame in frames]
    assert (float(table[320]["memory_size"]) > 0) == (end > 0)
    assert int(table[320]["opt_step"]) - int(table[192]["opt_step"]) == 128 // 4
    assert table[320]["episode"] == table[128]["episode"]
    assert float(rows(session / "eval.csv")[-1]["return_mean"]) > 0


HYBRID = "agent.collect_from=100 agent.offline.online_every=2 agent/memory=prioritized"


@pytest.mark.parametrize("more", [HYBRID, "agent.collect_until=128", "agent.collect_until=0"])
def test_interrupted_offline_run_resumes_exactly(more: str, collected: Path, tmp_path: Path) -> None:
    overrides = f"{more} agent/offline=run agent.offline.folder={collected} meta.rigorous_eval=1"
    assert changed_futures(tmp_path, [*DQN, *overrides.split()]) == []


def test_runs_are_read_one_after_another_and_must_not_change(collected: Path, tmp_path: Path) -> None:
    other = labrl.train([*DQN, "seed=8", f"hydra.run.dir={tmp_path / 'run'}"]).folder
    one, both = read(collected), read([collected, other])
    assert len(both) == len(one) + len(read(other))
    assert read([collected, other], most=len(one)).state_dict() == one.state_dict()
    one.load_state_dict(one.state_dict())
    for data in (both, read([other, collected])):
        with refused("changed-past", "agent.offline"):
            one.load_state_dict(data.state_dict())
    space = gym.make("CartPole-v1").observation_space
    for actions in (gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(1)):  # other shape or values
        with refused("contradiction", "agent.offline.folder", str(actions)):
            read(collected, Requirements(space, actions, actions, 0.99, 1))


OFFLINE = "agent/offline=run agent.offline.folder={folder} meta.rigorous_eval=1"
RECURRENT = "agent=recurrent_dqn agent.memory.capacity=1000 agent.batch_size=16"
REFUSED: list[tuple[str, str, Code, str]] = [
    (f"{OFFLINE} agent.collect_from=9 agent.collect_until=9", "agent.collect_until", "contradiction", "=9"),
    (f"{OFFLINE} agent/memory=hindsight agent.collect_until=0", "agent.memory", "contradiction", "=uniform"),
    (f"{OFFLINE} transforms/reward=sign", "transforms.reward", "contradiction", "SignReward"),
    (f"{OFFLINE} env=mountain_car", "agent.offline", "contradiction", "Discrete(3)"),
    (f"{OFFLINE} {RECURRENT}", "agent.offline", "contradiction", "agent/offline=none"),
    ("agent/offline=run agent.offline.folder=[]", "agent.offline.folder", "range", ""),
    ("agent/offline=run agent.offline.folder=[{folder},x]", "agent.offline.folder", "not-found", "folder=x"),
]


@pytest.mark.parametrize(("more", "key", "code", "named"), REFUSED)
def test_wrong_offline_data_are_refused(more: str, key: str, code: Code, named: str, collected: Path) -> None:
    check(resolve(compose([*DQN, *OFFLINE.format(folder=collected).split()])))
    with refused(code, key, named):
        check(
            resolve(
                compose([*(DQN[1:] if "recurrent" in more else DQN), *more.format(folder=collected).split()])
            )
        )


def test_different_action_space_is_refused_and_both_spaces_are_named(collected: Path, tmp_path: Path) -> None:
    """Compare the environments' action spaces, because the buffer stores Box actions rescaled to [-1, 1]."""
    overrides = [override for override in DQN if override not in ("env=cartpole", "agent=dqn")]
    source = tmp_path / "source"
    shutil.copytree(collected, source)
    facts = json.loads((collected / "provenance.json").read_text())
    facts["config"]["env"] = to_plain(compose(["env=mountain_car_continuous", "agent=sac"]))["env"]
    (source / "provenance.json").write_text(json.dumps(facts))
    (source / "config.yaml").write_text(yaml.safe_dump(facts["config"]))
    config = resolve(
        compose([*overrides, "agent=sac", "env=pendulum", *OFFLINE.format(folder=source).split()])
    )
    with refused("contradiction", "agent.offline", "Box(-1.0, 1.0, (1,), float32)", "Box(-2.0, 2.0"):
        check(config)


def test_run_with_an_empty_replay_buffer_is_refused(collected: Path, tmp_path: Path) -> None:
    more = ["agent/offline=run", f"agent.offline.folder={collected}", "agent.collect_until=0"]
    empty = labrl.train([*DQN, *more, "meta.rigorous_eval=1", f"hydra.run.dir={tmp_path / 'run'}"]).folder
    overrides = [*DQN, "agent/offline=run", f"agent.offline.folder={empty}"]
    with refused("not-found", "agent.offline.folder", str(empty)):
        session_in(tmp_path / "next", resolve(compose(overrides)))


def test_dataset_is_refused_with_the_pip_command_when_minari_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from labrl.offline.minari import OfflineMinari

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = options("agent.offline", "agent=dqn agent/offline=minari agent.offline.dataset=any/of-them-v0")
    with refused("not-installed", "agent.offline", install_command("offline")):
        OfflineMinari.check(config)


def test_minari_dataset_gives_its_transitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, n_step = Dataset(), 3
    offline = dataset.read(tmp_path, monkeypatch, n_step)
    assert len(offline) == 15
    sample = offline.mixed(uniform(SPACE, 1), 200, 0, 0, joined=False)
    assert len(np.unique(sample.observation, axis=0)) == 15
    for row in range(200):
        ((episode, step),) = np.argwhere((dataset.observations == sample.observation[row]).all(axis=2))
        end = min(step + n_step, 5)
        np.testing.assert_allclose(sample.action[row], dataset.actions[episode, step] / 2, rtol=1e-5)
        expected = sum(0.9**k * dataset.rewards[episode, step + k] for k in range(end - step))
        assert sample.reward[row] == pytest.approx(expected, rel=1e-5)
        np.testing.assert_array_equal(sample.next_observation[row], dataset.observations[episode, end])
        assert sample.discount[row] == pytest.approx(0.9 ** (end - step))  # a time limit ends all episodes
    with refused("not-found", "agent.offline.dataset", "labrl/odd-v1", "labrl/odd-v0"):
        dataset.load("labrl/odd-v1", WANTED)
    with refused("contradiction", "agent.offline.dataset", "Box"):
        dataset.load("labrl/odd-v0", WANTED)


class Dataset:
    """Columns of a Minari dataset of Pendulum with three episodes of five steps."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.bound = 2.0
        self.observations = rng.uniform(-1, 1, (3, 6, 3)).astype(np.float32)
        self.actions = rng.uniform(-2, 2, (3, 5, 1)).astype(np.float32)
        self.rewards = rng.uniform(-1, 0, (3, 5))

    def read(self, folder: Path, monkeypatch: pytest.MonkeyPatch, n_step: int = 1) -> OfflineData:
        """Write the dataset, and read it for an agent in Pendulum."""
        minari = pytest.importorskip("minari", reason="needs the extra offline")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
        from minari.data_collector import EpisodeBuffer

        ends = {"terminations": [False] * 5, "truncations": [False] * 4 + [True]}
        columns = zip(self.observations, self.actions, self.rewards, strict=True)
        episodes = [
            EpisodeBuffer(id=number, observations=seen, actions=done, rewards=rewards.tolist(), **ends)
            for number, (seen, done, rewards) in enumerate(columns)
        ]
        seen, done = (gym.spaces.Box(-bound, bound, (n,)) for n, bound in ((3, np.inf), (1, self.bound)))
        spaces = {"observation_space": seen, "action_space": done}
        about = {"author": "labrl", "author_email": "a@b.c", "code_permalink": "none", "description": "test"}
        about |= {"algorithm_name": "random", "eval_env": "Pendulum-v1"}
        minari.create_dataset_from_buffers("labrl/odd-v0", episodes, **spaces, **about)
        env = gym.make("Pendulum-v1")
        stored = gym.spaces.Box(-1, 1, (1,))
        return self.load("labrl/odd-v0", Requirements(seen, env.action_space, stored, 0.9, n_step))

    def load(self, name: str, wanted: Requirements) -> OfflineData:
        node = {"_target_": "labrl.offline.minari.OfflineMinari", "dataset": name}
        node |= {"share": 0.5, "online_every": 1, "max_transitions": None}
        made: OfflineData = dataclass_of(Component, node).build(
            wanted=wanted, generator=np.random.default_rng(0)
        )
        return made


@pytest.mark.parametrize(
    ("column", "value"),
    [("observations", np.nan), ("actions", np.inf), ("rewards", 1e300)],
)
def test_numbers_that_are_not_finite_are_refused_with_their_place(
    column: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset()
    vars(dataset)[column][1, 3] = value
    with refused("range", "agent.offline", "labrl/odd-v0", "episode 1", "step 3"):
        dataset.read(tmp_path, monkeypatch)


@pytest.mark.parametrize("bound", [2.0, np.inf])
def test_actions_of_a_dataset_that_are_clipped_are_counted(
    bound: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = Dataset()
    dataset.bound = bound
    dataset.actions[0, 4] = 2 + 1e-6  # rounding
    assert len(dataset.read(tmp_path / "within", monkeypatch)) == 15
    assert not caplog.records
    dataset.actions[1, 2:4] = [[2.5], [-9]]
    dataset.read(tmp_path / "beyond", monkeypatch)
    assert len(caplog.records) == 1
    for named in ("2 of 15", "labrl/odd-v0", "episode 1", "step 2"):
        assert named in caplog.text
