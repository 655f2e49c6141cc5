"""Tests of `meta.device`, which chooses the device of the networks, with and without a GPU.

Some tests need a GPU, on which `tests/support/exact_matrix.py meta.device=cuda` resumes all agents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from commands import run_ranks
from exact_cases import differences, folder_override, small

import labrl
from labrl.agents.make import learns_faster_on_gpu
from labrl.cli import main
from labrl.config.compose import compose, resolve
from labrl.learning.compute import Compute, set_deterministic

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("device", "faster", "num_gpus", "expected"),
    [
        ("auto", True, None, "cuda"),
        ("auto", False, None, "cpu"),  # small networks are faster with the kernels for the CPU
        ("cuda", False, None, "cuda"),
        ("auto", True, 0.0, "cpu"),
    ],
)
def test_device_auto_uses_the_gpu_only_where_it_is_faster(
    device: str, faster: bool, num_gpus: float | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    compute = Compute.choose(device, "fp32", 1, num_gpus=num_gpus, faster_on_gpu=faster)
    assert compute.device.type == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["agent=sac", "env=pendulum"], True),
        # Operation by operation, the CPU is faster.
        (["agent=sac", "env=pendulum", "meta.graphs=off"], False),
        (["agent=crossq", "env=pendulum"], False),
        (["agent=ppo", "env=cartpole"], False),
    ],
)
def test_wide_networks_learn_faster_on_a_gpu_only_with_graphs(overrides: list[str], expected: bool) -> None:
    config = resolve(compose(overrides))
    assert learns_faster_on_gpu(config, images=False) is expected
    assert learns_faster_on_gpu(config, images=True)


@pytest.fixture(autouse=True)
def _own_mode() -> Iterator[None]:
    """Restore PyTorch's mode of deterministic algorithms after each test."""
    before = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_operations_of_a_gpu_are_deterministic_unless_the_user_allows_others(
    device: str, deterministic: bool
) -> None:
    torch.set_deterministic_debug_mode("default" if deterministic else "error")
    set_deterministic(deterministic, torch.device(device))
    assert torch.are_deterministic_algorithms_enabled() == (deterministic and device == "cuda")


@pytest.mark.parametrize(
    ("overrides", "inexact"),
    [
        (["meta.deterministic=false", "meta.device=cuda"], ["meta.deterministic"]),
        (["meta.deterministic=false", "meta.device=auto"], []),  # uses the CPU without images
        (["meta.deterministic=true", "meta.device=cuda"], []),
    ],
)
def test_run_with_free_algorithms_on_a_gpu_is_marked_inexact(
    overrides: list[str], inexact: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    run = tmp_path / "run"
    # Where there is no GPU, the session fails when it moves the network there.
    main([*small("ppo", "cartpole"), folder_override(run), "env.max_frame=128", *overrides])
    assert json.loads((run / "run.json").read_text()).get("inexact", []) == inexact


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


@pytest.mark.extended
@NEEDS_GPU
def test_two_ranks_can_share_a_gpu(tmp_path: Path) -> None:
    overrides = [*small("ppo", "pong"), "meta.device=cuda", folder_override(tmp_path / "run")]
    assert [code for code, _ in run_ranks(*overrides)] == [0, 0]
