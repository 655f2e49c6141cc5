"""Tests of `networks.txt`, the summary of the networks of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import labrl
from labrl.cli import main
from labrl.networks.building import count, summary


def test_summary_lists_every_parameter_with_its_shape_and_size() -> None:
    text = summary({"net": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))})
    lines = [line.split() for line in text.splitlines()]
    assert ["0.weight", "4", "x", "3", "12"] in lines
    assert ["0.bias", "4", "4"] in lines
    assert ["parameters", "24"] in lines
    assert count(nn.Identity()) == 0
    assert "net: Sequential" in text


@pytest.mark.extended
def test_run_writes_the_summary_to_its_folder_and_prints_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["agent.horizon=16", "agent.batch_size=64", "env.num_envs=8", "env.max_frame=128", "seed=1"]
    assert main([*overrides, "meta.progress=false", "meta.tensorboard=false", "hydra.run.dir=one"]) == 0
    number = count_of(Path("one/session_0/networks.txt").read_text())
    assert f"parameters: actor_critic {number}" in capsys.readouterr().out
    result = labrl.train(["agent=random", "env.max_frame=8", "seed=1", "hydra.run.dir=two"])
    assert result.sessions[0].networks == {}


def count_of(text: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.split()[:1] == ["parameters"])
