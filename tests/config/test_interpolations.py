"""Tests of interpolations on the command line: they are resolved, or refused before a folder is created."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.errors import DONE, WRONG_INPUT, InputError

TINY = ["agent=random", "env=cartpole", "env.max_frame=64", "seed=1", "meta=dev"]
TINY += ["meta.progress=false", "wandb=disabled"]


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("env.name=odd_${.num_envs}", "odd_8"),
        ("env.name=odd_${env.num_envs}", "odd_8"),
        ("env.name=${..meta.max_session}_${.id}", "1_CartPole-v1"),
    ],
)
def test_run_with_an_interpolated_environment_name_can_be_resumed(
    override: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, override]) == DONE
    (folder,) = Path("runs").iterdir()
    assert f"_{name}_" in folder.name
    assert yaml.safe_load((folder / "config.yaml").read_text())["env"]["name"] == name
    assert main([f"+resume={folder}", "env.max_frame=128"]) == DONE


@pytest.mark.parametrize(
    "override", ["env.name=odd_${.nope}", "env.name=${.name}", "env.max_episode_steps=${.nope}"]
)
def test_unresolvable_interpolation_creates_no_folder(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, override]) == WRONG_INPUT
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("agent.lr=${.nope}", "agent.lr"),
        ("agent.lr=${nope}", "agent.lr"),
        ("agent.gamma=${agent.nope}", "agent.gamma"),
        ("~env.max_frame", "env.max_frame"),
        ("agent.network.torso.mlp.hidden=[8,'${..nope}']", "agent.network.torso.mlp.hidden[1]"),
        ("env.name=${.name}", "env.name"),
        ("agent.lr=${oc.env:LABRL_HAS_NO_SUCH_VARIABLE}", "agent.lr"),
    ],
)
def test_unresolvable_interpolation_is_refused_with_its_key(override: str, key: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(compose([override]))
    assert caught.value.key == key
