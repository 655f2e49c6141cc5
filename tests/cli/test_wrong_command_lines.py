"""Tests of wrong command lines: the code and key of each mistake, and the correction that is suggested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from refusals import refused

import labrl
import labrl.cli
import labrl.experiment.trials
from labrl.config.compose import compose, resolve, to_plain
from labrl.envs.games import check_environment
from labrl.errors import InputError, LabrlError
from labrl.mistakes.names import all_keys, other_names
from labrl.processes import output
from labrl.run.run import MARKER, Run

WRONG = {
    # keys; more mistakes of single overrides are in tests/config/test_config_errors.py
    "agent.lrr=1": [("unknown-key", "agent.lrr")],
    "lr=1e-4": [("unknown-key", "lr")],
    "agent.lr.end=0 preset=none": [("unknown-key", "agent.lr.end")],
    "~agent.lrr": [("unknown-key", "agent.lrr")],
    "~agent.gamma=0.3": [("contradiction", "agent.gamma")],
    "agent.lrr=1 env.num_env=2": [("unknown-key", "agent.lrr"), ("unknown-key", "env.num_env")],
    "agent.lrr=1 agent=dqnn": [("unknown-option", "agent")],
    "agent.lrr=1 env.num_envs=0": [("unknown-key", "agent.lrr")],
    # environments that would take no step within the budget
    "agent=random env.num_envs=1000000000": [("contradiction", "env.num_envs")],
    # keys of a preset for other agents
    "preset=dqn_cartpole agent=ppo": [
        ("unknown-key", f"agent.{key}")
        for key in ("n_step", "learning_starts", "updates_per_frame", "memory")
    ],
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
    "env=ppo": [("unknown-option", "env")],
    "hydra/launcher=slrm": [("unknown-option", "hydra/launcher")],
    "~agent": [("missing", "agent")],
    "transforms/reward=[sign,clip]": [("usage", "transforms/reward")],
    "+transforms/reward@transforms.mine=[clip]": [("usage", "transforms/reward")],
    "agent=[ppo,dqn] seed=1": [("usage", "agent")],
    "transforms/reward=sign,clip": [("usage", "transforms/reward")],
    "+agent=ppo meta=dev": [("unknown-key", "agent")],
    # values, types, ranges, contradictions
    "env=gymnasium": [("missing", "env.id")],
    "env.num_envs=many": [("type", "env.num_envs")],
    "agent.lr=[1]": [("type", "agent.lr")],
    "agent.network.torso.mlp.hidden=64": [("type", "agent.network.torso.mlp.hidden")],
    "+env.make._target_=labrl.errors.Nothing": [("target", "env.make._target_")],
    "hydra.run.dir=null": [("type", "hydra.run.dir")],
    "hydra.verbose=true": [("unknown-key", "hydra.verbose")],
    "hydra.job.num=1": [("unknown-key", "hydra.job.num")],
    "hydra.run=3": [("unknown-key", "hydra.run")],
    "hydra.searchpath=[mine]": [("unknown-key", "hydra.searchpath")],
    "hydra.launcher=3": [("unknown-key", "hydra.launcher")],
    "-m hydra.sweep.subdir=same seed=1,2": [("unknown-key", "hydra.sweep.subdir")],
    "+hydra.callbacks.mine._target_=mine.Hooks": [("unknown-key", "hydra.callbacks.mine._target_")],
    "callbacks@hydra.callbacks=mine": [("unknown-key", "callbacks@hydra.callbacks")],
    "hydra.sweep.dir=x": [("usage", "hydra.sweep.dir")],
    "+hydra.job.env_set.NAME=3": [("unknown-key", "hydra.job.env_set.NAME")],
    "hydra/job_logging=default": [("unknown-key", "hydra/job_logging")],
    "-m hydra/launcher=basic seed=1,2": [("unknown-option", "hydra/launcher")],
    "-m hydra/sweeper=basic seed=1,2": [("unknown-option", "hydra/sweeper")],
    "env.max_frame=10k seed=x": [("type", "env.max_frame"), ("type", "seed")],
    "meta.eval_episodes=5": [("contradiction", "meta.eval_episodes")],
    "env.id=CartPole-v9": [("unknown-option", "env.id")],
    "env.id=Acrobot-v1": [("contradiction", "env.id")],
    "env=pong env.game=breakout": [("contradiction", "env.game")],
    "env.name=PongNoFrameskip-v4": [("contradiction", "env.name")],
    "-m env.id=Acrobot-v1,CartPole-v1": [("contradiction", "env.id")],
    "-m hydra/sweeper=optuna search=ppo env.id=Acrobot-v1": [("contradiction", "env.id")],
    "'agent.lr=${nothing}'": [("missing", "agent.lr")],
    # flags
    "--seed 3": [("unknown-option", "--seed")],
    "--env=PongNoFrameskip-v4 --algo ppo --track": [("unknown-option", "--env=PongNoFrameskip-v4")],
    "--cfg jobb": [("unknown-option", "--cfg")],
    "-m --cfg job seed=1,2": [("contradiction", "-m")],
    "--config-dir": [("missing", "--config-dir")],
    "--config-dir nowhere": [("not-found", "--config-dir")],
    "--cfg job --package agent": [("unknown-option", "--package")],
    "''": [("missing", "''")],
    "seed=3 ' '": [("missing", "' '")],
    "--": [("unknown-option", "--")],
    # characters of text copied from a document
    "agent=ppo\N{ZERO WIDTH SPACE}": [("syntax", "agent")],
    "seed=\N{LEFT DOUBLE QUOTATION MARK}3\N{RIGHT DOUBLE QUOTATION MARK}": [("syntax", "seed")],
    # commands and bare words
    "train --env pong agent.lrr=3": [("syntax", "train")],
    # mistakes with blanks and quotes in the shell
    "env = pong": [("syntax", "env")],
    "agent.lr= 1e-4": [("syntax", "1e-4")],
    "agent.lr=1e-4,": [("syntax", "agent.lr")],
    "agent.network.torso.mlp.hidden=[64, 64]": [("syntax", "64]")],
    "-m seed=0, 1, 2": [("syntax", "1,")],
    "'agent.lr=1e-4;env=pong'": [("syntax", "agent.lr")],
    "agent.batch_size==64": [("syntax", "agent.batch_size")],
    # experiments and searches
    "seed=1,2": [("usage", "seed")],
    "-m agent=ppo,dqnn": [("unknown-option", "agent")],
    "-m agent=ppo,dqn agent.horizon=32": [("unknown-key", "agent.horizon")],
    "-m seed=1,2 hydra/launcher=local,basic": [("usage", "hydra/launcher")],
    "-m agent=range(1,3) meta=dev": [("unknown-option", "agent")],
    "-m +experiment=slm_lab/cartpole,slm_lab/acrobot": [("unknown-key", "experiment")],
    "-m search=ppo seed=1,2": [("usage", "search")],
    "-m seed=range(0,2,0)": [("range", "seed")],
    "-m seed=range(0,2),3": [("range", "seed")],
    "-m seed=1,2 hydra.run.dir=x": [("usage", "hydra.run.dir")],
    "-m seed=1,2 agent.lrr=3": [("unknown-key", "agent.lrr")],
    "-m hydra.launcher.n_jobs=x seed=1,2": [("type", "hydra.launcher.n_jobs")],
    "-m hydra/sweeper=optuna search=ppoo": [("unknown-option", "search")],
    "-m hydra/sweeper=optuna search=ppo hydra.sweeper.n_trials=abc": [("type", "hydra.sweeper.n_trials")],
    # resuming or playing a run
    "+resume=": [("missing", "+resume")],
    "start_from=": [("missing", "start_from.run")],
    "+resume=nowhere": [("not-found", "nowhere")],
    "+force=true": [("usage", "+force")],
    "+resume=a +rerun=b": [("contradiction", "+rerun")],
    "+enjoy=nowhere": [("not-found", "nowhere")],
}


@pytest.fixture
def mistakes_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], tuple[LabrlError, ...]]:
    """Return a function that runs a wrong `labrl <line>` and returns its mistakes."""
    monkeypatch.chdir(tmp_path)
    errors: list[LabrlError] = []
    print_error = output.print_error

    def recorded(error: LabrlError, with_traceback: bool = False) -> int:
        errors.append(error)
        return print_error(error, with_traceback)

    monkeypatch.setattr(output, "print_error", recorded)
    monkeypatch.setattr(labrl.experiment.trials, "print_error", recorded)

    def mistakes(line: str) -> tuple[LabrlError, ...]:
        assert labrl.cli.main(shlex.split(line)) == 2
        assert not list(tmp_path.glob("runs/*"))
        (error,) = errors
        return error.mistakes

    return mistakes


@pytest.mark.parametrize("line", WRONG)
def test_wrong_command_line_prints_each_mistake_and_leaves_no_folder(
    line: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]], capsys: pytest.CaptureFixture[str]
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


MAKE = "'env.make={_target_: env_cases.Walk}'"


@pytest.mark.parametrize(
    ("line", "key", "typed"),
    [
        ("env.id=Acrobot-v1", "env.id", "env=acrobot"),
        ("env=pendulum env.id=FrozenLake-v1", "env.id", "env=gymnasium env.id=FrozenLake-v1"),
        ("env.id=own/Task-v0 env.name=own", "env.id", "env=gymnasium env.id=own/Task-v0"),
        ("env=pong env.game=breakout", "env.game", "env=breakout"),
        (f"env.id=null {MAKE}", "env.name", "env=gymnasium env.id=null env.name=<name>"),
        ("env.name=PongNoFrameskip-v4", "env.name", "env=pong"),
        ("env.name=acrobot", "env.name", "env=acrobot"),
        ("env=gymnasium env.id=CliffWalking-v1 env.name=pendulum", "env.name", "env=pendulum"),
        ("env.name=FrozenLake-v1", "env.name", "env=gymnasium env.id=FrozenLake-v1"),
    ],
)
def test_name_or_presets_of_another_environment_are_refused(line: str, key: str, typed: str) -> None:
    cfg = compose(shlex.split(line), with_hydra=True)
    with refused("contradiction", key, typed):
        check_environment(to_plain(cfg)["env"], cfg.hydra.runtime.choices["env"])


@pytest.mark.parametrize(
    "line",
    [
        "env=cartpole env.id=CartPole-v0",
        "env=pong env.name=PongNoFrameskip-v4",
        "env=cartpole env.name=mine-v2",
        "env=gymnasium env.id=CartPole-v1",
        "env=gymnasium env.id=CartPole-v1 env.name=cartpole",
        "env=gymnasium env.id=own/Task-v0",
        "env=lunar_lander_continuous env.name=LunarLander-v3",
        "env=gymnasium env.id=LunarLander-v3 env.name=lunar_lander_continuous",
        f"env=gymnasium env.id=null env.name=pong {MAKE}",
        f"env=cartpole env.id=null env.name=walk {MAKE}",
        "env=atari env.game=pong",
    ],
)
def test_other_names_of_the_same_environment_are_accepted(line: str) -> None:
    cfg = compose(shlex.split(line), with_hydra=True)
    check_environment(to_plain(cfg)["env"], cfg.hydra.runtime.choices["env"])


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
    "--algo ddqn --vf-coef 0.5": "labrl agent=double_dqn agent.value_coef=1.0",
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
    "enjoy runs/x": "labrl +enjoy=runs/x",
    "resume runs/x env.max_frame=1e6": "labrl +resume=runs/x env.max_frame=1e6",
}


@pytest.mark.parametrize("line", MEANT)
def test_other_syntax_is_answered_with_the_intended_command(
    line: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
) -> None:
    (mistake,) = mistakes_of(line)
    assert mistake.code in ("syntax", "unknown-option")
    assert line.startswith(str(mistake.key))
    assert mistake.message.endswith(f" {MEANT[line]}")


NEAR = {
    "meta=defualt": "meta=default",
    "env=brakeout": "env=breakout",
    "env=cheetah": "env=half_cheetah",
    "env=gridworld": None,
    "agent/network=impala": "agent/network=impala_cnn",
    "agent/network=cnn": "agent/network=impala_cnn",
    "agent/network=wide": "agent/network=mlp_256",
    "agent/network=trunk": "agent/network=torso_only",
    "agent/network=renormalized": "agent/network=batch_renorm",
}
"""Options that do not exist, and the nearest one, if any."""


@pytest.mark.parametrize("line", NEAR)
def test_unknown_option_is_answered_with_near_names_of_its_group(
    line: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
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


TYPED: dict[str, dict[str, dict[str, Any]]] = {
    "agent=sac env=pendulum gradient_steps=4": {
        "agent.updates_per_frame=4": {"agent.updates_per_frame": 4},
    },
    "agent=dqn train_freq=4": {"agent.updates_per_frame=1/4": {"agent.updates_per_frame": "1/4"}},
    "vf_coef=.5": {
        "agent.value_coef=1.0": {"agent.value_coef": 1.0},
        "agent.value_coef=.5": {"agent.value_coef": 0.5},
    },
    "agent=dqn target_update_interval=1000": {"agent.target.every=1000": {"agent.target.every": 1000}},
    "agent=dqn env.max_frame=3e5 exploration_fraction=0.1": {
        "'agent.exploration.epsilon.horizon=${labrl.budget:0.1}'": {
            "agent.exploration.epsilon.horizon": 30000
        },
    },
    "agent=sac env=pendulum polyak=0.995": {"agent.target.tau=0.005": {"agent.target.tau": 0.005}},
    "norm_obs=true": {
        "transforms/observation=normalize": {"transforms.observation.clip": 10.0, "transforms.reward": None},
    },
    "norm_reward=true": {"transforms/reward=normalize": {"transforms.reward.clip": 10.0}},
    "env=pong norm_reward=false": {"transforms/reward=none": {"transforms.reward": None}},
    "net_arch=[256,128]": {
        "'agent.network.torso.mlp.hidden=[256,128]'": {"agent.network.torso.mlp.hidden": [256, 128]},
    },
    "agent/network=mlp net_arch=[256,128]": {
        "'agent.network.torso.hidden=[256,128]'": {"agent.network.torso.hidden": [256, 128]},
    },
    "activation_fn=ReLU": {
        "agent.network.torso.mlp.activation=ReLU": {"agent.network.torso.mlp.activation": "ReLU"},
    },
    "activation_fn=nn.relu": {
        "agent.network.torso.mlp.activation=ReLU": {"agent.network.torso.mlp.activation": "ReLU"},
    },
    "learning_rate=lin_3e-4": {"agent.lr=linear:3e-4:0": {"agent.lr.start": 3e-4, "agent.lr.end": 0}},
    "agent=sac env=pendulum ent_coef=auto": {"agent.temperature=null": {"agent.temperature": None}},
    "clip_vloss=true": {
        "'agent.value_clip_range=${agent.clip_range}'": {"agent.value_clip_range.start": 0.2},
    },
    "env=pong terminal_on_life_loss=true": {"env.life_loss_signal=true": {"env.life_loss_signal": True}},
    "env=pong episodic_life=false": {"env.life_loss_signal=false": {"env.life_loss_signal": False}},
    "ortho_init=false": {
        "agent.network.torso.mlp.initialization=uniform": {
            "agent.network.torso.mlp.initialization": "uniform"
        },
    },
    "num_evals=5": {"meta.eval_frequency=1/5": {"meta.eval_frequency": "1/5"}},
    "num_checkpoints=10": {"meta.log_frequency=1/10": {"meta.log_frequency": "1/10"}},
    "env=pong frame_op_len=2": {"env.frame_stack=2": {"env.frame_stack": 2}},
    "env=pong env.frame_op=concat": {"env.frame_stack=4": {"env.frame_stack": 4}},
    "agent=ddqn": {"agent=double_dqn": {"agent.double": True}},
    "agent=rppo": {"agent=recurrent_ppo agent/network=lstm": {"agent.network.torso.kind": "lstm"}},
    "agent=ppo_lstm": {"agent=recurrent_ppo agent/network=lstm": {"agent.network.torso.kind": "lstm"}},
}
"""Names of other libraries with a value, the overrides that the message must suggest, and what these set."""


@pytest.mark.parametrize("line", TYPED)
def test_value_of_another_library_is_kept_or_converted(
    line: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
) -> None:
    mistakes = mistakes_of(line)
    for suggestion, values in TYPED[line].items():
        assert all(f" {suggestion}" in mistake.message for mistake in mistakes)
        wrong = {mistake.key for mistake in mistakes}
        others = [one for one in line.split() if one.partition("=")[0] not in wrong]
        plain = to_plain(compose([*others, *shlex.split(suggestion)]))
        assert {key: OmegaConf.select(OmegaConf.create(plain), key) for key in values} == values


@pytest.mark.parametrize("name", ["symlog", "ml_type", "bidirectional"])
def test_name_without_a_corresponding_key_is_known(
    name: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
) -> None:
    (mistake,) = mistakes_of(f"{name}=1")
    assert (mistake.code, mistake.key) == ("unknown-key", name)
    assert mistake.message.endswith(other_names()[name][0].meaning)


@pytest.mark.parametrize("place", ["", "agent.", "meta.", "+", "+agent.", "+meta."])
def test_names_from_other_libraries_are_answered_with_labrls_key(
    place: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
) -> None:
    names = {name: key for name, key in ELSEWHERE.items() if f"{place.lstrip('+')}{name}" != key}
    mistakes = mistakes_of(" ".join(f"{place}{name}=1" for name in names))
    assert [one.key for one in mistakes] == [f"{place.lstrip('+')}{name}" for name in names]
    for mistake, key in zip(mistakes, names.values(), strict=True):
        assert mistake.code == "unknown-key"
        assert f" {key} (" in mistake.message


@pytest.mark.parametrize(
    ("typed", "meant"),
    {"agent.gama": "agent.gamma", "agent.epoch": "agent.epochs", "agent.n_step": "agent=dqn"}.items(),
)
def test_misspelled_key_of_labrl_is_answered_with_it(
    typed: str, meant: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
) -> None:
    (mistake,) = mistakes_of(f"{typed}=1")
    assert meant in mistake.message


HOMES = [
    "env=cartpole",
    "agent=ppo env=pong",
    "agent=dqn env=cartpole",
    "agent=sac env=pendulum",
    "agent=td3 env=pendulum",
    "agent=rainbow env=pong",
    "agent=a2c env=cartpole",
    "agent=reinforce env=cartpole",
    "agent=tqc env=pendulum",
    "agent=iql env=pendulum",
    "agent=dqn agent/target=polyak",
    "agent=dqn agent/value=categorical",
    "agent/network=mlp",
    "env=pong agent/network=nature_cnn",
    "agent=recurrent_ppo",
    "agent=recurrent_dqn",
    "agent/self_imitation=replay",
    "agent=dqn agent/offline=run agent.offline.folder=x",
    "agent=dqn meta/async_unroll=on",
    "hydra/sweeper=optuna search=ppo",
]
"""Overrides that together have every key of labrl that corresponds to a name in other libraries."""


@pytest.mark.extended
def test_every_suggestion_is_accepted_where_its_key_exists() -> None:
    """Check an entry with one value that fits, with every word that it translates, and with false."""
    keys = {home: set(all_keys(compose(home.split(), with_hydra=True))) for home in HOMES}
    entries = {
        id(one): one for meant in other_names().values() for one in meant if one.key not in ("", "env")
    }
    wrong = []
    for one in entries.values():
        home = next((home for home in HOMES if one.key in keys[home]), None)
        assert home, f"{one.key} exists in no configuration"
        texts = [*one.typed_by_library("").values()]
        if any("<" in text for text in texts):
            texts = next(
                (
                    found
                    for value in ("1", "0.5", "16", "ppo")
                    if accepted(home, found := [one.typed(value)], one.key)
                ),
                [one.typed("1")],
            )
        texts += [one.typed(value) for value in (*one.values, *(["false"] if one.disable else []))]
        wrong += [text for text in texts if not accepted(home, [text], one.key)]
    assert not wrong


def accepted(home: str, texts: list[str], key: str) -> bool:
    """Return whether overrides compose, and neither `key` nor one below it has a wrong type or value.

    Placeholders are not filled in, so that overrides with one are accepted.
    """
    typed = [text for text in texts if "<" not in text]
    try:
        resolve(compose(shlex.split(" ".join([home, *typed]))))
    except LabrlError as error:
        wrong = [
            one
            for one in error.mistakes
            if (one.key or "").replace("/", ".").startswith(key) or one.code == "unknown-key"
        ]
        return all(one.code == "contradiction" for one in wrong)
    return True


def test_key_of_other_agents_is_answered_with_agents_that_have_it(
    mistakes_of: Callable[[str], tuple[LabrlError, ...]],
) -> None:
    (mistake,) = mistakes_of("agent=dqn n_steps=5")
    assert {"agent.horizon", "agent=ppo,", "agent.n_step"} <= set(mistake.message.split())


def test_key_of_other_agents_is_not_suggested_for_itself(
    mistakes_of: Callable[[str], tuple[LabrlError, ...]],
) -> None:
    (mistake,) = mistakes_of("agent=ppo agent.learning_starts=3")
    assert mistake.message.count("agent.learning_starts") == 1
    assert "agent=dqn," in mistake.message.split()


@pytest.mark.parametrize(
    "typed", ["callbacks.mine._target_=mine.Callback", "callbacks.mine.name=a", "env.kwargs.frame_stack=2"]
)
def test_unknown_key_in_a_group_of_the_users_is_answered_with_a_plus(
    typed: str, mistakes_of: Callable[[str], tuple[LabrlError, ...]]
) -> None:
    (mistake,) = mistakes_of(typed)
    assert (mistake.code, mistake.key) == ("unknown-key", typed.partition("=")[0])
    assert f" +{typed}" in mistake.message


@pytest.mark.parametrize("arguments", [["-m", "seed=1,2"], ["--config-dir", "mine"]])
def test_train_function_refuses_flags(arguments: list[str]) -> None:
    with pytest.raises(InputError) as error:
        labrl.train(arguments)
    assert (error.value.code, error.value.key) == ("usage", arguments[0])


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
        Run.create(tmp_path / "runs" / name)
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
