"""Tests of `labrl.load`, which returns the policy of a run, and of `labrl.runs`, which reads its tables."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from exact_cases import small
from recorded import recorded
from refusals import refused

import labrl
from labrl.cli import export_policy, main
from labrl.errors import InputError

RUNS = {
    "dqn": [*small("dqn", "taxi"), "env.max_episode_steps=20"],  # action masks and discrete observations
    "sac": [*small("sac", "pendulum"), "transforms/observation=normalize"],
    "recurrent": small("recurrent_ppo", "cartpole"),
    "inputs": small("ppo", "lamp"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that holds the recorded run, as `ppo`, and one finished run for each of RUNS."""
    path = tmp_path_factory.mktemp("runs") / "runs"
    shutil.copytree(recorded("run"), path / "ppo")
    for name, overrides in RUNS.items():
        short = ["env.max_frame=240", "meta.log_frequency=120", "meta.eval_frequency=120"]
        assert labrl.train([*overrides, *short, f"hydra.run.dir={path / name}"]).exit_code == 0
    return path


@pytest.mark.extended
def test_evaluation_equals_the_episodes_that_enjoy_plays(folder: Path) -> None:
    run = folder / "ppo"
    assert main([f"+enjoy={run}", "episodes=3", "videos=0", "session=1", "seed=4"]) == 0
    (path,) = (run / "enjoy").glob("*seed_4/result.json")
    played = json.loads(path.read_text())["episodes"]
    evaluation = labrl.load(run, session=1).evaluate(episodes=3, seed=4)
    assert evaluation.returns.tolist() == [one["return"] for one in played]
    assert evaluation.lengths.tolist() == [one["length"] for one in played]
    assert evaluation.seeds.tolist() == [one["seed"] for one in played]
    assert evaluation.return_mean == pytest.approx(evaluation.returns.mean())


@pytest.mark.parametrize("name", ["ppo", *RUNS])
def test_policy_acts_in_the_environment_of_its_run(name: str, folder: Path) -> None:
    policy = labrl.load(folder / name, checkpoint="latest")
    env = policy.env()
    observation, info = env.reset(seed=3)
    assert isinstance(env, gymnasium.Env)
    for _ in range(20):
        mask = info.get("action_mask") if policy.agent.TRAITS.masks else None
        action = policy.act(observation, mask, greedy=True)
        assert env.action_space.contains(action)
        assert env.action_space.contains(policy.act(observation, mask))
        if mask is not None:
            assert mask[action]
        observation, reward, terminated, truncated, info = env.step(action)
        assert isinstance(reward, float)
        if terminated or truncated:
            observation, info = env.reset()
            policy.reset()
    env.close()
    assert isinstance(policy.network, torch.nn.Module)


def test_greedy_evaluation_equals_episodes_played_by_hand(folder: Path) -> None:
    policy = labrl.load(folder / "sac")
    evaluation = policy.evaluate(episodes=2, greedy=True)
    env = policy.env()
    for score, length, seed in zip(evaluation.returns, evaluation.lengths, evaluation.seeds, strict=True):
        observation, _ = env.reset(seed=int(seed))
        total, steps, over = 0.0, 0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation, greedy=True))
            total, steps, over = total + reward, steps + 1, terminated or truncated
        assert (total, steps) == (pytest.approx(score), length)


@pytest.mark.parametrize("name", ["ppo", "sac", "inputs", "dqn"])
def test_batch_of_observations_gives_the_same_actions_as_each_alone(name: str, folder: Path) -> None:
    policy = labrl.load(folder / name)
    policy.observation_space.seed(0)
    seen = [policy.observation_space.sample() for _ in range(5)]
    mask = np.arange(policy.action_space.n) % 3 > 0 if policy.spaces.masked else None  # type: ignore[attr-defined]
    single = [policy.act(one, mask, greedy=True) for one in seen]
    stacked: Any = np.stack(seen) if not isinstance(seen[0], dict) else None
    if stacked is None:
        stacked = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
    masks = None if mask is None else np.tile(mask, (5, 1))
    assert np.allclose(policy.act(stacked, masks, greedy=True), single, atol=1e-5)


def test_recurrent_state_is_carried_until_it_is_reset(folder: Path) -> None:
    policy = labrl.load(folder / "recurrent")
    seen = np.linspace(-1, 1, 8).reshape(2, 4)
    found: list[torch.Tensor] = []
    policy.network.register_forward_hook(lambda module, inputs, output: found.append(output.parameters))
    for _ in range(2):
        policy.reset()
        policy.act(seen[0])
        policy.act(seen[0])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
    policy.reset(np.array([True]))
    policy.act(seen[0])
    assert torch.equal(found[0], found[4])
    policy.reset()
    policy.act(seen)
    policy.reset(np.array([False, True]))
    policy.act(seen[[0, 0]])
    assert torch.allclose(found[6][0], found[1][0], atol=1e-6)
    assert torch.allclose(found[6][1], found[0][0], atol=1e-6)
    with refused(None, "observation"):
        policy.act(seen[0])


def test_checkpoint_and_session_can_be_chosen(folder: Path) -> None:
    run = folder / "ppo"
    assert labrl.load(run, checkpoint="latest").frame == 256
    assert labrl.load(run, checkpoint=192).frame == 192
    assert labrl.load(run, session=1).seed != labrl.load(run, session=0).seed
    assert labrl.load(labrl.runs(folder)[0]).folder.name == "ppo"


@pytest.mark.extended
def test_error_for_a_missing_best_checkpoint_says_how_to_take_the_latest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression test: `labrl-export` advised checkpoint=latest, which it refuses."""
    run = tmp_path / "run"
    # An episode of Pendulum takes 200 steps of each environment.
    labrl.train([*small("ppo", "pendulum"), "env.max_frame=600", f"hydra.run.dir={run}"])
    with refused("not-found", "checkpoint", "checkpoint='latest'"):
        labrl.load(run)
    assert labrl.load(run, checkpoint="latest").frame >= 600
    capsys.readouterr()
    assert export_policy([str(run)]) == 2
    assert "--checkpoint latest" in capsys.readouterr().err


def test_folder_without_anything_to_load_is_refused(folder: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path, folder):
        with pytest.raises(InputError):
            labrl.load(place)
    bare = tmp_path / "bare"
    shutil.copytree(folder / "ppo", bare)
    shutil.rmtree(bare / "session_0" / "checkpoints")
    with refused("not-found", bare / "session_0" / "checkpoints"):
        labrl.load(bare)
    for name in ("config.yaml", "provenance.json"):
        (bare / name).write_text((bare / name).read_text().replace("CartPole-v1", "Acrobot-v1"))
    with pytest.raises(InputError) as error:
        labrl.load(bare, session=1)
    assert error.value.code == "changed-past"


@pytest.mark.parametrize(
    ("name", "key", "call"),
    [
        ("inputs", "observation", lambda policy: policy.act(np.zeros(3))),
        ("ppo", "observation", lambda policy: policy.act(np.zeros((2, 2, 4)))),
        ("ppo", "observation", lambda policy: policy.act(policy.env().reset())),
        ("ppo", "mask", lambda policy: policy.act(np.zeros((3, 4)), [True])),
        ("sac", "mask", lambda policy: policy.act(np.zeros(3), [True])),
        ("dqn", "mask", lambda policy: policy.act(0)),
        ("ppo", "render_mode", lambda policy: policy.env(render_mode="human")),
        ("ppo", "options", lambda policy: policy.env().reset(options={"low": 0})),
        ("ppo", "episodes", lambda policy: policy.evaluate(episodes=0)),
        ("ppo", "checkpoint", lambda policy: labrl.load(policy.folder, checkpoint=77)),
        ("ppo", "checkpoint", lambda policy: labrl.load(policy.folder, checkpoint="first")),
        ("ppo", "session", lambda policy: labrl.load(policy.folder, session=7)),
    ],
)
def test_wrong_arguments_are_refused(name: str, key: str, call: Callable[[Any], Any], folder: Path) -> None:
    with refused(None, key):
        call(labrl.load(folder / name, checkpoint="latest"))


def test_environment_of_a_policy_renders_images(folder: Path) -> None:
    env = labrl.load(folder / "ppo").env(render_mode="rgb_array")
    env.reset(seed=1)
    assert np.shape(env.render())[2] == 3
    env.close()


def test_tables_hold_the_rows_of_all_sessions(folder: Path) -> None:
    (run,) = labrl.runs(folder, "agent=ppo", "env=cartpole")
    train = run.table("train")
    assert train["session"].unique().sort().to_list() == [0, 1]
    assert train["frame"].dtype.is_integer()
    assert train["loss_policy"].dtype.is_float()
    assert len(train) == sum(len(session.train["frame"]) for session in run.sessions)
    first = train.filter(session=0)
    assert first["frame"].to_list() == run.sessions[0].train["frame"].tolist()
    assert run.table("eval")["source"].unique().to_list() == ["training"]
    episodes = run.table("episodes")
    assert set(episodes["episode"]) == {"best", "last"}
    assert episodes["seed"].dtype.is_integer()
    own = run.path / "session_1" / "mine.csv"
    own.write_text("frame,word\n2,b\n1,a\n2,c\n3,half")
    assert run.table("mine").rows() == [(1, 1, "a"), (1, 2, "c")]
    with pytest.raises(InputError) as error:
        run.table("evals")
    assert error.value.code == "unknown-option"


def test_runs_are_found_by_folder_pattern_and_filter(folder: Path) -> None:
    assert {run.name for run in labrl.runs(folder)} == {"ppo", *RUNS}
    assert [run.name for run in labrl.runs(folder / "sa*")] == ["sac"]
    assert [run.name for run in labrl.runs([folder / "sac", folder / "dqn"])] == ["sac", "dqn"]
    assert {run.name for run in labrl.runs(folder, "agent=*ppo")} == {"ppo", "recurrent", "inputs"}
    for place, filters in ((folder / "none", ()), (folder, ("agent.nothing=1",))):
        with pytest.raises(InputError):
            labrl.runs(place, *filters)


@pytest.mark.extended
def test_examples_of_the_page_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "load-a-policy.md").read_text()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "ppo", tmp_path / "runs" / "mine")
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(compile(code, "load-a-policy.md", "exec"), {})
    assert "mine" in capsys.readouterr().out
