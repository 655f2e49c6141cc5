"""Tests of wrong command lines: exit code, and code and key of each mistake, as in the record of them."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from refused import RUN, answer
from run_cases import files_of

import labrl
import labrl.cli
from labrl.config.compose import compose, to_plain
from labrl.envs.games import check_environment, environments
from labrl.errors import WRONG_INPUT, InputError
from labrl.mistakes.names import all_keys, other_names
from labrl.run.run import MARKER, Run

RECORD = Path(__file__).parents[1] / "records" / "refusals.json"
"""The command lines, with the exit code and the mistakes of each (see tests/records/refused.py)."""

LINES: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["command lines"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the run that some command lines name."""
    folder = tmp_path_factory.mktemp("made")
    labrl.train([*shlex.split(RUN), f"hydra.run.dir={folder / 'runs' / 'one'}"])
    return folder


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.extended] if number % 4 else [])
        for number, line in enumerate(LINES)
    ],
)
def test_wrong_command_line_is_answered_as_recorded_and_changes_no_file(
    line: str, made: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    if "runs/one" in line or "latest" in line:
        shutil.copytree(made, place)
    before = files_of(place)
    assert answer(shlex.split(line), place) == LINES[line]
    assert files_of(place) == before


SUGGESTED = {
    # misspelled keys and options
    "agent.lrr=1": "agent.lr?",
    "+agent.horizn=4": "agent.horizon?",
    "env=brakeout": "env=breakout?",
    "expriment=sb3/ppo": "experiment=<option>?",
    # keys of an experiment that another agent does not have
    "experiment=zoo/ppo_cartpole agent=dqn": "zoo/ppo_cartpole.yaml",
    "agent/offline=null": "agent/offline=none?",
    "env=gridworld": "--config-dir=<folder>",
    "agent.network.head_activation=relu": "agent.network.head_activation=ReLU?",
    "callbacks.mine.name=a": "+callbacks.mine.name=a",
    "seed=0,1": "labrl -m 'seed=0,1'",
    "~transforms/reward": "transforms/reward=none",
    # names of other libraries
    "agent=dqn train_freq=4": "agent.updates_per_frame=1/4",
    "net_arch=[256,128]": "'agent.network.torso.mlp.hidden=[256,128]'",
    "symlog=1": "None corresponds",
    "agent=ddqn": "agent=double_dqn?",
    # flags, commands and bare words
    "train": "Leave it out",
    "pong": "env=pong",
    "FrozenLake-v1": "env=gymnasium env.id=FrozenLake-v1",
    "resume": "+resume=latest",
    "--algo=PPO": "agent=ppo",
    "--agent.lr=1e-4": "agent.lr=1e-4",
    "--multi seed=1,2": "--multirun",
    # environments whose name or presets would be those of another
    "env.id=Acrobot-v1": "env=acrobot",
}
"""Wrong command lines, and what their message must contain."""


@pytest.mark.parametrize("line", SUGGESTED)
def test_message_says_what_to_type(line: str, own_folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert labrl.cli.main(shlex.split(line)) == WRONG_INPUT
    assert SUGGESTED[line] in capsys.readouterr().err


@pytest.mark.parametrize("line", ["agent=xyz", "env=xx"])
def test_nothing_is_suggested_when_no_option_is_similar(
    line: str, own_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert labrl.cli.main(shlex.split(line)) == WRONG_INPUT
    assert "Did you mean" not in capsys.readouterr().err


HOMES = [
    "agent=ppo env=pong",
    "agent=dqn env=cartpole",
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
def test_every_key_that_a_name_of_another_library_is_answered_with_exists() -> None:
    keys = {key for home in HOMES for key in all_keys(compose(home.split(), with_hydra=True))}
    assert {one.key for meant in other_names().values() for one in meant} - {""} <= keys


MAKE = "'env.make={_target_: env_cases.Walk}'"


@pytest.mark.parametrize(
    "line",
    [
        "env=cartpole env.id=CartPole-v0",
        "env=gymnasium env.id=CartPole-v1 env.name=cartpole",
        f"env=gymnasium env.id=null env.name=pong {MAKE}",
        "env=atari env.game=pong",
    ],
)
def test_other_names_of_the_same_environment_are_accepted(line: str) -> None:
    cfg = compose(shlex.split(line), with_hydra=True)
    check_environment(to_plain(cfg)["env"], cfg.hydra.runtime.choices["env"])


def test_every_environment_is_accepted_under_its_own_name() -> None:
    for name, kind, identity in environments():
        env = {"name": name, "game" if kind == "atari" else "id": identity}
        if name != "gymnasium":
            check_environment(env, name)
    with refused("contradiction", "env.id", "env=lunar_lander_continuous"):
        check_environment({"name": "lunar_lander_continuous", "id": "CartPole-v1"}, "lunar_lander_continuous")


@pytest.mark.parametrize(
    ("typed", "near"),
    {"runs/nothing": "", "runs/pnog": "runs/pong", "runs/gird/0": "runs/grid/0"}.items(),
)
def test_missing_run_is_answered_with_another_only_if_its_name_is_similar(
    typed: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pong", "grid/0"):
        Run.create(tmp_path / "runs" / name)
    with refused("not-found", typed, near) as caught:
        labrl.load(typed)
    assert ("Did you mean" in str(caught.value)) == bool(near)
    (tmp_path / "other").mkdir()
    with refused("not-found", "other", MARKER):
        labrl.load("other")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [("env=cartpole", "labrl.train"), (["env=cartpole", 5], "labrl.train"), (["-m", "seed=1,2"], "-m")],
)
def test_train_refuses_what_is_not_a_list_of_overrides(overrides: Any, key: str) -> None:
    with refused("usage", key):
        labrl.train(overrides)


def test_wrong_override_raises_one_error_without_those_of_hydra() -> None:
    with pytest.raises(InputError) as caught:
        labrl.train(["agent.lrr=1"])
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
