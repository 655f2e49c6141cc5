"""Tests of `meta.device`, which chooses the device of the networks, with and without a GPU.

Some tests need a GPU. `tests/exact_matrix.py meta.device=cuda` checks exact resuming of all agents on one.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from commands import run_ranks
from exact_cases import differences, folder_override, small

import labrl
from labrl.cli import main
from labrl.learning.compute import Compute
from labrl.session.team import on_cpu

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("device", "images", "num_gpus", "expected"),
    [
        ("auto", True, None, "cuda"),
        ("auto", False, None, "cpu"),  # small networks are faster with the kernels for the CPU
        ("auto", False, 1.0, "cpu"),
        ("cuda", False, None, "cuda"),
        ("auto", True, 0.0, "cpu"),
        ("cpu", True, None, "cpu"),
    ],
)
def test_device_auto_uses_the_gpu_only_for_images(
    device: str, images: bool, num_gpus: float | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    compute = Compute.choose(device, "fp32", 1, num_gpus=num_gpus, images=images)
    assert compute.device.type == expected


def test_nested_state_is_copied_to_the_cpu() -> None:
    elsewhere = torch.empty(3, device="meta")
    state = {"plain": [1, "text", (None, 2.5)], "weights": {"bias": torch.ones(2)}}
    copied = on_cpu(state)
    assert copied["plain"] == state["plain"]
    assert copied["weights"]["bias"].tolist() == [1, 1]
    # A meta tensor cannot be copied: the error shows that tensors in nested containers are copied too.
    with pytest.raises(NotImplementedError, match="meta"):
        on_cpu({"a": [elsewhere]})


@NEEDS_GPU
@pytest.mark.parametrize(("agent", "task"), [("ppo", "pong"), ("dqn", "pong"), ("sac", "pendulum")])
def test_resumed_run_on_a_gpu_equals_an_uninterrupted_one(agent: str, task: str, tmp_path: Path) -> None:
    overrides = [*small(agent, task), "meta.device=cuda"]
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    assert main([*overrides, folder_override(uninterrupted)]) == 0
    frames = 150 if task == "pong" else 1500
    assert main([*overrides, folder_override(resumed), f"env.max_frame={frames}"]) == 0
    budget = 240 if task == "pong" else 2400
    assert main([f"+resume={resumed}", f"env.max_frame={budget}"]) == 0
    assert not differences(uninterrupted, resumed)


@NEEDS_GPU
def test_run_trained_on_a_gpu_can_be_loaded_and_resumed_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert main([*small("ppo", "pong"), "meta.device=cuda", folder_override(run)]) == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with closing(labrl.load(run)) as policy:
        assert {weight.device.type for weight in policy.network.parameters()} == {"cpu"}
    assert main([f"+resume={run}", "env.max_frame=300", "meta.device=cpu"]) == 0


@NEEDS_GPU
def test_two_ranks_can_share_a_gpu(tmp_path: Path) -> None:
    overrides = [*small("ppo", "pong"), "meta.device=cuda", folder_override(tmp_path / "run")]
    assert [code for code, _ in run_ranks(*overrides)] == [0, 0]
