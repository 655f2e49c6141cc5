"""Tests of user-defined YAML files: an error names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from labrl.cli import main
from labrl.config import config_folder
from labrl.config.compose import compose, compose_first, resolve
from labrl.config.presets import hydra_options
from labrl.errors import WRONG_INPUT, InputError

BASE = "defaults:\n  - gymnasium\n  - _self_\n"
HYDRA = "# @package _global_\nhydra: {job: {chdir: true}}\n"  # a key that labrl does not read
BROKEN = [
    ("env", b"name: a\n  id: b\n", "line 2"),
    ("env", f"{BASE}\tid: A-v1\n".encode(), "line 4"),
    ("env", b"name: !!python/object:os.x {}\n", "line 1"),
    ("env", b"name: \xff\n", "position 6"),
    ("env", b"just text\n", ""),
    ("agent", b"# nothing yet\n", ""),
    ("env", b"defaults:\n  - mine\n", ""),
    ("experiment", HYDRA.encode(), "job"),
]


def write_yaml(folder: Path, group: str, content: bytes, name: str = "mine") -> Path:
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.yaml").write_bytes(content)
    return folder


def refusal(overrides: list[str], folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve(compose(overrides, folder))
    return caught.value


@pytest.mark.parametrize(("group", "content", "place"), BROKEN)
def test_syntax_error_names_the_file_and_the_place(
    group: str, content: bytes, place: str, tmp_path: Path
) -> None:
    folder = write_yaml(tmp_path, group, content)
    error = refusal([f"{group}=mine", "meta=dev"], folder)
    assert (error.code, error.key) == ("syntax", str(folder / group / "mine.yaml"))
    assert place in str(error)


def test_file_in_the_defaults_of_another_is_checked_too(tmp_path: Path) -> None:
    folder = write_yaml(tmp_path, "env", b"a: [\n", "base")
    write_yaml(folder, "env", b"defaults:\n  - base\n  - _self_\n")
    write_yaml(folder, "experiment", b"# @package _global_\ndefaults:\n  - override /env: mine\n", "recipe")
    for override in ("env=mine", "experiment=recipe"):
        error = refusal([override], folder)
        assert (error.code, error.key) == ("syntax", str(folder / "env" / "base.yaml"))
        assert "line 2" in str(error)


def test_error_for_a_key_in_a_users_preset_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_yaml(tmp_path, "preset", b"dqn: {agent: {alfa: 3, gamma: 0.9}}\n", "acrobot")
    command = ["--config-dir", str(folder), "env=acrobot", "agent=dqn", f"hydra.run.dir={tmp_path / 'run'}"]
    for more in ([], ["-m", "seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}"]):
        assert main([*command[: len(command) - bool(more)], *more]) == WRONG_INPUT
        message = capsys.readouterr().err
        assert "agent.alfa" in message
        assert str(folder / "preset" / "acrobot.yaml") in message


def test_error_below_a_key_that_a_preset_sets_and_the_user_typed_names_no_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["env=cartpole", "agent.lr.kind=foo"]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert "agent.lr" in message
    assert "cartpole.yaml" not in message


def test_broken_file_is_ignored_when_not_selected(tmp_path: Path) -> None:
    folder = write_yaml(tmp_path, "env", b"a: [\n", "broken")
    write_yaml(folder, "env", f"{BASE}id: CartPole-v1\nname: mine\n".encode())
    assert resolve(compose(["env=mine"], folder)).env.config.name == "mine"


def test_option_with_the_name_of_one_of_labrls_is_refused_with_both_paths(tmp_path: Path) -> None:
    """Regression test: labrl's file was used without a word."""
    for name in ("agent/ppo", "agent/exploration/boltzmann", "env/pong"):
        file = tmp_path / name.replace("/", "_") / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text("gamma: 0.5\n")
        with pytest.raises(InputError) as refused:
            compose(["seed=1"], file.parents[name.count("/")])
        assert (refused.value.code, refused.value.key) == ("usage", str(file))
        assert str(config_folder()) in refused.value.message


def test_sweeper_of_a_file_holds(tmp_path: Path) -> None:
    """Regression test: a grid ran, because Hydra prefers the choice of config.yaml."""
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /hydra/sweeper: optuna\n"
    (tmp_path / "experiment" / "tuned.yaml").write_text(text)
    (tmp_path / "experiment" / "more.yaml").write_text("# @package _global_\ndefaults: [tuned]\n")
    assert hydra_options(["experiment=more"], str(tmp_path)) == ["hydra/sweeper=optuna"]
    assert hydra_options(["experiment=more", "hydra/sweeper=grid"], str(tmp_path)) == []
    overrides = ["experiment=tuned", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "seed=0,1"]
    assert compose_first(overrides, str(tmp_path)).hydra.sweeper.n_trials == 3


def test_options_that_extend_each_other_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / "env" / f"{name}.yaml").write_text(f"defaults: [{other}]\n")
    with refused(None, "env"):
        compose(["env=one"], tmp_path)


def test_component_in_a_users_file_needs_every_key(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mine.yaml").write_text("_target_: labrl.agents.random.RandomAgent\n")
    assert resolve(compose(["agent=mine"], tmp_path)).agent.target.endswith("RandomAgent")
    (tmp_path / "agent" / "optimizer").mkdir()
    (tmp_path / "agent" / "optimizer" / "mine.yaml").write_text("_target_: labrl.learning.optimizers.Adam\n")
    with pytest.raises(InputError) as caught:
        resolve(compose(["agent/optimizer=mine"], tmp_path))
    assert ("missing", "agent.optimizer.eps") in {(one.code, one.key) for one in caught.value.mistakes}


def test_experiment_files_of_a_user_are_suggested(tmp_path: Path) -> None:
    for name in ("experiment/best", "mine/deep/one"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("# @package _global_\nseed: 1\n")
    for override, meant in {"experiment=bets": "experiment=best", "+mine=deep/on": "mine=deep/one"}.items():
        with refused("unknown-option", override.lstrip("+").partition("=")[0], f"Did you mean {meant}?"):
            compose([override], tmp_path)


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    for gamma in (0.5, 0.25):
        write_yaml(tmp_path, "agent", f"defaults: [ppo, _self_]\ngamma: {gamma}\n".encode())
        for _ in range(2):
            assert compose(["agent=mine"], tmp_path).agent.gamma == gamma
