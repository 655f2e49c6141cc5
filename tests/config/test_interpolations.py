"""Tests of interpolations on the command line: they are resolved, or refused before a folder is created."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from labrl.cli import main
from labrl.errors import DONE

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
