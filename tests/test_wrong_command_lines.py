"""Tests of wrong command lines: the code and key of each mistake, and the correction that is suggested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import labrl
import labrl.cli
import labrl.experiment.job
from labrl.config.compose import compose
from labrl.errors import InputError, LabrlError, Mistake
from labrl.mistakes.names import all_keys, other_names
from labrl.storage.run_folder import MARKER, RunFolder

WRONG = {
    # keys
    "agent.lrr=1": [("unknown-key", "agent.lrr")],
    "lr=1e-4": [("unknown-key", "lr")],
    "agnet=ppo": [("unknown-key", "agnet")],
    "agent.lr.end=0 preset=none": [("unknown-key", "agent.lr.end")],
    "+agent.horizn=4": [("unknown-key", "agent.horizn")],
    "+mine=4": [("unknown-key", "mine")],
    "~agent.lrr": [("unknown-key", "agent.lrr")],
    "~agent.gamma=0.3": [("contradiction", "agent.gamma")],
    "+env.num_envs=4": [("unknown-key", "env.num_envs")],
    "agent=dqn agent.horizon=5": [("unknown-key", "agent.horizon")],
    "hydra.run.dirr=x": [("unknown-key", "hydra.run.dirr")],
    "agent/memory=uniform": [("unknown-key", "agent/memory")],
    "agent/netwrk=mlp": [("unknown-key", "agent/netwrk")],
    "agent.lrr=1 env.num_env=2 agent=dqnn": [
        ("unknown-option", "agent"),
        ("unknown-key", "agent.lrr"),
        ("unknown-key", "env.num_env"),
    ],
    "agent.lrr=1 env.num_envs=0": [("unknown-key", "agent.lrr"), ("range", "env.num_envs")],
    # environments that would take no step within the budget
    "agent=random env.num_envs=1000000000": [("contradiction", "env.num_envs")],
    # keys of a preset for other agents
    "preset=dqn_cartpole agent=ppo": [("contradiction", "preset")],
    "preset=dqn_cartpole agent=ppo agent.lr=-1": [("contradiction", "preset"), ("range", "agent.lr")],
    # names from other libraries
    "agent.n_steps=5": [("unknown-key", "agent.n_steps")],
    "+n_steps=5": [("unknown-key", "n_steps")],
    "agent=dqn num_steps=5": [("unknown-key", "num_steps")],
    "total_timesteps=1e6 n_envs=8": [("unknown-key", "total_timesteps"), ("unknown-key", "n_envs")],
    "meta.max_frame=1e5": [("unknown-key", "meta.max_frame")],
    "agent=dqn agent.tau=0.01": [("unknown-key", "agent.tau")],
    "policy_kwargs=dict(net_arch=[64,64])": [("syntax", "policy_kwargs")],
    # options
    "agent=PPO": [("unknown-option", "agent")],
    "env=Pong-v5": [("unknown-option", "env")],
    "env=ponk meta=fast": [("unknown-option", "env"), ("unknown-option", "meta")],
    "agent=3": [("unknown-option", "agent")],
    "env=ppo": [("unknown-option", "env")],
    "experiment=slm_lab": [("unknown-option", "experiment")],
    "hydra/launcher=slrm": [("unknown-option", "hydra/launcher")],
    "~agent": [("missing", "agent")],
    "transforms/reward=[sign,clip]": [("usage", "transforms/reward")],
    "+transforms/reward@transforms.mine=[clip]": [("usage", "transforms/reward")],
    "agent=[ppo,dqn] seed=1": [("usage", "agent")],
    "transforms/reward=sign,clip": [("usage", "transforms/reward")],
    "+agent=ppo": [("unknown-key", "agent")],
    # values, types, ranges, contradictions
    "env=gymnasium": [("missing", "env.id")],
    "env.num_envs=many": [("type", "env.num_envs")],
    "agent.gamma=1.5": [("range", "agent.gamma")],
    "meta.device=gpu": [("unknown-option", "meta.device")],
    "agent.lr=[1]": [("type", "agent.lr")],
    "agent.network.torso.mlp.hidden=64": [("type", "agent.network.torso.mlp.hidden")],
    "+env.make._target_=labrl.errors.Nothing": [("target", "env.make._target_")],
    "hydra.run.dir=null": [("type", "hydra.run.dir")],
    "hydra.verbose=maybe": [("range", "hydra.verbose")],
    "hydra.job.num=x": [("type", "hydra.job.num")],
    "hydra.job.chdir=maybe": [("type", "hydra.job.chdir")],
    "hydra.mode=fast": [("unknown-option", "hydra.mode")],
    "hydra.run=3": [("type", "hydra.run")],
    "hydra.output_subdir=[1]": [("type", "hydra.output_subdir")],
    "hydra.searchpath=[mine]": [("usage", "hydra.searchpath")],
    "hydra.launcher=3": [("type", "hydra.launcher")],
    "hydra.sweep.dir=x": [("usage", "hydra.sweep.dir")],
    "hydra.job.env_set=3": [("type", "hydra.job.env_set")],
    "hydra.job_logging=3": [("type", "hydra.job_logging")],
    "env.max_frame=10k seed=x": [("type", "env.max_frame"), ("type", "seed")],
    "agent.batch_size=100": [("contradiction", "agent.batch_size")],
    "meta.eval_episodes=5": [("contradiction", "meta.eval_episodes")],
    "agent._target_=labrl.agents.ppo.PPOO": [("target", "agent._target_")],
    "env.id=CartPole-v9": [("unknown-option", "env.id")],
    "'agent.lr=${nothing}'": [("missing", "agent.lr")],
    # flags
    "--seed 3": [("unknown-option", "--seed")],
    "-s 3": [("unknown-option", "-s")],
    "--env=PongNoFrameskip-v4 --algo ppo --track": [("unknown-option", "--env=PongNoFrameskip-v4")],
    "--multi seed=1,2": [("unknown-option", "--multi")],
    "--cfg jobb": [("unknown-option", "--cfg")],
    "--config-dir": [("missing", "--config-dir")],
    "--config-dir nowhere": [("not-found", "--config-dir")],
    "--cfg job --package agent.gama": [("unknown-key", "agent.gama")],
    "''": [("missing", "''")],
    "seed=3 ' '": [("missing", "' '")],
    "--": [("unknown-option", "--")],
    # characters of text copied from a document
    "agent=ppo\N{ZERO WIDTH SPACE}": [("syntax", "agent")],
    "seed=\N{LEFT DOUBLE QUOTATION MARK}3\N{RIGHT DOUBLE QUOTATION MARK}": [("syntax", "seed")],
    # commands and bare words
    "train env=pong": [("syntax", "train")],
    "ppo pong": [("syntax", "ppo")],
    "help": [("syntax", "help")],
    "train --env pong agent.lrr=3": [("syntax", "train"), ("unknown-key", "agent.lrr")],
    # mistakes with blanks and quotes in the shell
    "env = pong": [("syntax", "env")],
    "agent.lr= 1e-4": [("syntax", "agent.lr=")],
    "agent.lr=1e-4,": [("syntax", "agent.lr")],
    "agent.network.torso.mlp.hidden=[64, 64]": [("syntax", "agent.network.torso.mlp.hidden=[64,")],
    "'agent.lr=1e-4;env=pong'": [("syntax", "agent.lr")],
    "agent.batch_size==64": [("syntax", "agent.batch_size")],
    "=3": [("syntax", "=3")],
    # experiments and searches
    "seed=1,2": [("usage", "seed")],
    "-m agent=ppo,dqnn": [("unknown-option", "agent")],
    "-m agent=ppo,dqn agent.horizon=32": [("unknown-key", "agent.horizon")],
    "-m search=ppo seed=1,2": [("usage", "search")],
    "-m seed=1,2 hydra.run.dir=x": [("usage", "hydra.run.dir")],
    "-m seed=1,2 agent.lrr=3": [("unknown-key", "agent.lrr")],
    "-m hydra.launcher.n_jobs=x seed=1,2": [("type", "hydra.launcher.n_jobs")],
    "-m hydra/sweeper=optuna search=ppoo": [("unknown-option", "search")],
    "-m hydra/sweeper=optuna search=ppo hydra.sweeper.n_trials=abc": [("type", "hydra.sweeper.n_trials")],
    # resuming or playing a run
    "resume": [("syntax", "resume")],
    "+resume=": [("missing", "+resume")],
    "start_from=": [("missing", "start_from.run")],
    "+resume=nowhere": [("not-found", "nowhere")],
    "+resum=latest": [("unknown-key", "resum")],
    "+force=true": [("usage", "+force")],
    "+resume=a +rerun=b": [("contradiction", "+rerun")],
    "+enjoy=nowhere": [("not-found", "nowhere")],
}


@pytest.fixture
def mistakes_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], tuple[Mistake, ...]]:
    """Return a function that runs a wrong `labrl <line>` and returns its mistakes."""
    monkeypatch.chdir(tmp_path)
    errors: list[LabrlError] = []
    refuse = labrl.experiment.job.refused

    def recorded(error: LabrlError, full_error: bool) -> int:
        errors.append(error)
        return refuse(error, full_error)

    monkeypatch.setattr(labrl.cli, "refused", recorded)
    monkeypatch.setattr(labrl.experiment.job, "refused", recorded)

    def mistakes(line: str) -> tuple[Mistake, ...]:
        assert labrl.cli.main(shlex.split(line)) == 2
        assert not list(tmp_path.glob("runs/*"))
        (error,) = errors
        return error.mistakes

    return mistakes


@pytest.mark.parametrize("line", WRONG)
def test_wrong_command_line_prints_each_mistake_and_leaves_no_folder(
    line: str, mistakes_of: Callable[[str], tuple[Mistake, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [(one.code, one.key) for one in mistakes_of(line)] == WRONG[line]
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert all(text.startswith("labrl: ") for text in lines)
    assert len(lines) == len(WRONG[line])
    assert "Traceback" not in printed.err
    for text, (_, key) in zip(lines, WRONG[line], strict=True):
        assert key in text


MEANT = {
    "train": "labrl",
    "pong": "labrl env=pong",
    "CartPole-v1": "labrl env=cartpole",
    "ALE/MsPacman-v5": "labrl env=ms_pacman",
    "Humanoid-v5": "labrl env=humanoid",
    "FrozenLake-v1": "labrl env=gymnasium env.id=FrozenLake-v1",
    "ppo pong": "labrl agent=ppo env=pong",
    "DQN": "labrl agent=dqn",
    "train env=pong": "labrl env=pong",
    "resume": "labrl +resume=latest",
    "resume latest env.max_frame=2e5": "labrl +resume=latest env.max_frame=2e5",
    "eval": "labrl +enjoy=latest",
    "help": "labrl --help",
    "report": "labrl-report latest",
    "-s 3": "labrl seed=3",
    "--seed 3 --env pong": "labrl seed=3 env=pong",
    "--seed=3": "labrl seed=3",
    "--algo PPO --total-timesteps 1e6 --n-envs 4": "labrl agent=ppo env.max_frame=1e6 env.num_envs=4",
    "--env-id BreakoutNoFrameskip-v4 --track": "labrl env=breakout wandb=online",
    "--agent.lr=1e-4": "labrl agent.lr=1e-4",
    "--config-name mine": "labrl --config-dir=<folder> experiment=<name>",
    "-cp=conf seed=3": "labrl --config-dir=<folder> seed=3",
    "--experimental-rerun job.pickle": "labrl +rerun=<run folder>",
    "--multi seed=1,2": "labrl --multirun seed=1,2",
    "env = pong": "labrl env=pong",
    "agent.lr =1e-4": "labrl agent.lr=1e-4",
    "agent.lr:1e-4": "labrl agent.lr=1e-4",
    "seed 3": "labrl seed=3",
    "-m agent.network.torso.mlp.hidden=[64, 64]": "labrl -m 'agent.network.torso.mlp.hidden=[64, 64]'",
    "agent.lr={kind: linear, start: 1}": "labrl 'agent.lr={kind: linear, start: 1}'",
}


@pytest.mark.parametrize("line", MEANT)
def test_other_syntax_is_answered_with_the_intended_command(
    line: str, mistakes_of: Callable[[str], tuple[Mistake, ...]]
) -> None:
    (mistake,) = mistakes_of(line)
    assert mistake.message.endswith(f" {MEANT[line]}")


NEAR = {
    "meta=fast": "meta=fast_atari",
    "meta=defualt": "meta=default",
    "env=brakeout": "env=breakout",
    "env=cheetah": "env=half_cheetah",
    "env=gridworld": None,
    "agent=pppo": "agent=ppo",
    "agent/network=impala": "agent/network=impala_cnn",
    "agent/network=cnn": "agent/network=impala_cnn",
}
"""Options that do not exist, and the nearest one, if any."""


@pytest.mark.parametrize("line", NEAR)
def test_unknown_option_is_answered_with_near_names_of_its_group(
    line: str, mistakes_of: Callable[[str], tuple[Mistake, ...]]
) -> None:
    (mistake,) = mistakes_of(line)
    near = re.findall(r"Did you mean (.*?)(?: or .*)?\?", mistake.message)
    assert near == ([] if NEAR[line] is None else [NEAR[line]])
    assert "/on" not in mistake.message, "meta/async_unroll=on is an option of a part"


ELSEWHERE = {
    "n_steps": "agent.horizon",
    "num_steps": "agent.horizon",
    "n_envs": "env.num_envs",
    "total_timesteps": "env.max_frame",
    "max_t": "env.max_episode_steps",
    "learning_rate": "agent.lr",
    "ent_coef": "agent.entropy_coef",
    "vf_coef": "agent.value_coef",
    "clip_range_vf": "agent.value_clip_range",
    "clip_coef": "agent.clip_range",
    "clip": "agent.clip_range",
    "discount": "agent.gamma",
    "n_epochs": "agent.epochs",
    "update_epochs": "agent.epochs",
    "num_minibatches": "agent.batch_size",
    "minibatch_size": "agent.batch_size",
    "buffer_size": "agent.memory.capacity",
    "tau": "agent.target.tau",
    "train_freq": "agent.updates_per_frame",
    "gradient_steps": "agent.updates_per_frame",
    "target_update_interval": "agent.target.every",
    "exploration_fraction": "agent.exploration.epsilon.horizon",
    "exploration_initial_eps": "agent.exploration.epsilon.start",
    "exploration_final_eps": "agent.exploration.epsilon.end",
    "eval_freq": "meta.eval_frequency",
    "n_eval_episodes": "meta.eval_episodes",
    "verbose": "meta.progress",
    "env_id": "env",
    "algo": "agent",
    "policy": "agent.network",
    "policy_kwargs": "agent.network.torso.mlp.hidden",
    "net_arch": "agent.network.torso.mlp.hidden",
    "activation_fn": "agent.network.torso.mlp.activation",
    "lam": "agent.gae_lambda",
    "lambda": "agent.gae_lambda",
    "tensorboard_log": "meta.tensorboard",
    "log_interval": "meta.log_frequency",
    "save_freq": "meta.log_frequency",
    "wandb_project_name": "wandb.project",
    "track": "wandb.mode",
    "capture_video": "meta.videos",
    "torch_deterministic": "meta.deterministic",
    "cuda": "meta.device",
    "random_seed": "seed",
    "hidden_sizes": "agent.network.torso.mlp.hidden",
    # labrl's own names with a wrong prefix
    "clip_range": "agent.clip_range",
    "gae_lambda": "agent.gae_lambda",
    "num_envs": "env.num_envs",
    "max_frame": "env.max_frame",
    "frame_stack": "env.frame_stack",
    "device": "meta.device",
    "max_episode_steps": "env.max_episode_steps",
}


@pytest.mark.parametrize("place", ["", "agent.", "meta.", "+", "+agent.", "+meta."])
def test_names_from_other_libraries_are_answered_with_labrls_key(
    place: str, mistakes_of: Callable[[str], tuple[Mistake, ...]]
) -> None:
    names = {name: key for name, key in ELSEWHERE.items() if f"{place.lstrip('+')}{name}" != key}
    mistakes = mistakes_of(" ".join(f"{place}{name}=1" for name in names))
    assert [one.key for one in mistakes] == [f"{place.lstrip('+')}{name}" for name in names]
    for mistake, key in zip(mistakes, names.values(), strict=True):
        assert mistake.code == "unknown-key"
        assert f" {key} (" in mistake.message


def test_every_suggested_key_exists_in_some_configuration() -> None:
    pairs = [
        "ppo pong",
        "dqn cartpole",
        "sac pendulum",
        "td3 pendulum",
        "rainbow pong",
        "a2c cartpole",
        "c51 cartpole",
        "tqc pendulum",
        "iql pendulum",
    ]
    overrides = [[f"agent={agent}", f"env={env}"] for agent, env in map(str.split, pairs)]
    overrides.append(["agent/network=mlp"])
    keys = {key for each in overrides for key in all_keys(compose(each, with_hydra=True))}
    assert {one.key for meant in other_names().values() for one in meant} <= keys


def test_key_of_other_agents_is_answered_with_agents_that_have_it(
    mistakes_of: Callable[[str], tuple[Mistake, ...]],
) -> None:
    (mistake,) = mistakes_of("agent=dqn n_steps=5")
    assert {"agent.horizon", "agent=ppo,", "agent.n_step"} <= set(mistake.message.split())


def test_key_of_other_agents_is_not_suggested_for_itself(
    mistakes_of: Callable[[str], tuple[Mistake, ...]],
) -> None:
    (mistake,) = mistakes_of("agent=ppo agent.learning_starts=3")
    assert mistake.message.count("agent.learning_starts") == 1
    assert "agent=dqn," in mistake.message.split()


def test_package_option_shows_a_key_whose_value_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert labrl.cli.main(["--cfg", "job", "--package", "agent.target_kl"]) == 0
    assert capsys.readouterr().out == "null\n"


def test_unknown_callback_key_is_answered_with_a_plus(
    mistakes_of: Callable[[str], tuple[Mistake, ...]],
) -> None:
    (mistake,) = mistakes_of("callbacks.mine._target_=mine.Callback")
    assert (mistake.code, mistake.key) == ("unknown-key", "callbacks.mine._target_")
    assert mistake.message.endswith(" +callbacks.mine._target_=mine.Callback")


def test_value_that_needs_quotes_is_answered_with_quotes(
    mistakes_of: Callable[[str], tuple[Mistake, ...]],
) -> None:
    (mistake,) = mistakes_of("hydra.run.dir=läufe/eins")
    assert mistake.code == "syntax"
    assert mistake.message.endswith("""write 'hydra.run.dir="läufe/eins"'""")


@pytest.mark.parametrize("arguments", [["-m", "seed=1,2"], ["--config-dir", "mine"]])
def test_train_function_refuses_flags(arguments: list[str]) -> None:
    with pytest.raises(InputError) as error:
        labrl.train(arguments)
    assert (error.value.code, error.value.key) == ("usage", arguments[0])


@pytest.mark.parametrize("key", ["hydra.run.dir", "start_from.run"])
def test_unexpanded_tilde_is_answered_with_home(
    key: str, mistakes_of: Callable[[str], tuple[Mistake, ...]]
) -> None:
    (mistake,) = mistakes_of(f"'{key}=~/mine'")
    assert (mistake.code, mistake.key) == ("syntax", key)
    assert f"{key}=$HOME/mine" in mistake.message


MISSING = {
    "runs/nothing": None,
    "runs/nowhere/0": None,
    "2027": None,
    "runs/pnog": "runs/pong",
    "pong": "runs/pong",
    "rusn/pong": "runs/pong",
    "runs/gird/0": "runs/grid/0",
}
"""Run folders that do not exist, and the run with a similar name, if any."""


@pytest.mark.parametrize("typed", MISSING)
def test_missing_run_is_answered_with_another_only_if_its_name_is_similar(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pong", "grid/0"):
        RunFolder.create(tmp_path / "runs" / name)
    with refused("not-found", typed) as caught:
        labrl.load(typed)
    near = re.findall(r"Did you mean (.*)\?", str(caught.value))
    assert near == ([] if MISSING[typed] is None else [MISSING[typed]])
    assert MARKER not in str(caught.value), "the message names the marker although the folder does not exist"
    (tmp_path / "other").mkdir()
    with refused("not-found", "other", MARKER):
        labrl.load("other")


@pytest.mark.parametrize("overrides", ["env=cartpole", {"env": "cartpole"}, ["env=cartpole", 5], None])
def test_train_refuses_overrides_that_are_not_a_list_of_texts(overrides: Any) -> None:
    with refused("usage", "labrl.train"):
        labrl.train(overrides)
