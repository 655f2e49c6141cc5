"""Tests of Hogwild training: the sessions of a trial train the same weights and can be resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from options import options
from torch import nn

from labrl.cli import main
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.learning.learner import Learner
from labrl.learning.optimizers import Adam, Optimizer
from labrl.learning.sliced import SlicedLearner
from labrl.run.checkpoint import CheckpointStore
from labrl.run.tables import read_rows
from labrl.session.team import FOLDER, SharedWeights

TRIAL = ["env.num_envs=2", "agent.horizon=32", "agent.batch_size=64", "meta.progress=false", "seed=1"]
TRIAL += ["meta.max_session=2", "env.max_frame=1024", "meta.log_frequency=512", "meta.tensorboard=false"]
TRIAL += ["meta.report=false", "meta.videos=false"]


def adam(flat: FlatParameters) -> Optimizer:
    return Adam(options("agent.optimizer", "agent=a2c agent/optimizer=adam"), [flat.vector], None)


def network(seed: int) -> tuple[nn.Linear, Learner[nn.Linear]]:
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    compute = Compute(torch.device("cpu"), torch.float32, num_threads=2)
    return module, SlicedLearner(module, compute, adam, whole_minibatches=False)


def test_shared_weights_are_one_memory_for_sessions_and_their_workers(tmp_path: Path) -> None:
    (first, one), (second, other) = network(1), network(2)
    initial = first.weight.detach().clone()
    SharedWeights(tmp_path, "shared", one.flat)
    SharedWeights(tmp_path, "shared", other.flat)
    assert torch.equal(second.weight, initial), "the second session did not take the weights of the first"
    with torch.no_grad():
        one.flat.vector.add_(1.0)
    bias = first.bias.detach()
    for learner in (one, other):
        found = learner.forward(np.eye(3, dtype=np.float32))  # one worker computes one row, the other two
        torch.testing.assert_close(torch.from_numpy(found), (initial + 1).T + bias)


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=a2c", "agent.network.shared=false", "agent.value_lr=1e-3"],
        ["agent=sarsa"],
    ],
    ids=["two optimizers", "sarsa"],
)
def test_on_policy_agents_train_with_shared_weights(overrides: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    common = [override for override in TRIAL if not override.startswith("agent.")]
    assert main([*overrides, *common, "meta.distributed=shared", f"hydra.run.dir={run}"]) == 0
    norms = [row["weight_norm"] for row in read_rows(run / "session_0" / "train.csv")]
    assert norms[0] != norms[-1]


def test_synced_weights_are_the_sum_of_all_sessions_changes(tmp_path: Path) -> None:
    (first, one), (second, other) = network(1), network(2)
    initial = first.weight.detach().clone()
    a, b = SharedWeights(tmp_path, "synced", one.flat), SharedWeights(tmp_path, "synced", other.flat)
    assert torch.equal(second.weight, initial)
    with torch.no_grad():
        first.weight.add_(1.0)
        second.weight.add_(0.25)
    assert not torch.equal(first.weight, second.weight), "changed before an exchange"
    a.exchange()
    torch.testing.assert_close(first.weight.detach(), initial + 1)
    b.exchange()
    torch.testing.assert_close(second.weight.detach(), initial + 1.25)
    a.exchange()
    torch.testing.assert_close(first.weight.detach(), initial + 1.25)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["shared", "synced"])
def test_killed_session_does_not_restore_its_older_weights(mode: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [*TRIAL, "env.max_frame=1536", "agent.lr=0.0", f"meta.distributed={mode}", "meta.keep_last=3"]
    assert main([*overrides, f"hydra.run.dir={run}"]) == 0
    late = run / "session_0" / "checkpoints" / "frame_000000001536"
    _fill(late, 0.25)  # recognizable final weights of session 0
    killed = run / "session_1"
    (killed / "result.json").unlink()
    for frame in (1536, 1024):
        shutil.rmtree(killed / "checkpoints" / f"frame_{frame:012d}")
    assert main([f"+resume={run}"]) == 0
    checkpoint = CheckpointStore(killed / "checkpoints", keep_last=3).latest()
    assert checkpoint is not None
    assert checkpoint.frame == 1536
    for name, weight in checkpoint.state["agent"]["network"].items():
        assert torch.equal(weight, torch.full_like(weight, 0.25)), name


def _fill(checkpoint: Path, value: float) -> None:
    """Set all weights in a checkpoint to one value."""
    store = CheckpointStore(checkpoint.parent, keep_last=9)
    saved = store.latest()
    assert saved is not None
    for weight in saved.state["agent"]["network"].values():
        weight.fill_(value)
    store.save(saved.frame, saved.state)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["shared", "synced"])
def test_trial_with_common_weights_finishes_and_can_be_extended(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*TRIAL, f"meta.distributed={mode}", f"hydra.run.dir={run}"]) == 0
    assert "meta.distributed" in capsys.readouterr().out, "no warning that the run is not reproducible"
    assert not (run / FOLDER).exists(), "the shared weights were left behind"
    assert main([f"+resume={run}", "env.max_frame=2048", "+force=true"]) == 0
    info = json.loads((run / "run.json").read_text())
    assert [session["frame"] for session in info["sessions"]] == [2048, 2048]
    for index in (0, 1):
        checkpoint = CheckpointStore(run / f"session_{index}" / "checkpoints", keep_last=2).latest()
        assert checkpoint is not None
        assert checkpoint.frame == 2048


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["meta.max_session=1"], "meta.max_session=2"),
        (["agent=dqn", "meta.max_session=2"], "meta.distributed"),
        (["agent=random", "meta.max_session=2"], "meta.distributed"),
        (["meta.distributed=both"], "meta.distributed"),
    ],
)
def test_trial_that_cannot_share_weights_is_refused(
    overrides: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["meta.distributed=shared", *overrides, f"hydra.run.dir={run}"]) == 2
    assert named in capsys.readouterr().err
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["shared", "synced"])
def test_two_sessions_learn_cartpole_together(mode: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [f"meta.distributed={mode}", "meta.max_session=2", "meta.progress=false", "seed=1"]
    assert main([*overrides, f"hydra.run.dir={run}"]) == 0
    info = json.loads((run / "run.json").read_text())
    assert all(session["return_mean"] > 400 for session in info["sessions"]), info["sessions"]
