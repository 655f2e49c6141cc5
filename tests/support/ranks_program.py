"""A program that tests/learning/test_torchrun.py starts as two ranks; it fails if they do not work as one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import Rows, loss_of_rows, mean_loss
from torch import Tensor, nn

from labrl.agents.transforms import RunningMoments
from labrl.clock import Clock
from labrl.learning.compute import Compute
from labrl.learning.flat import FlatParameters
from labrl.learning.learner import Learner
from labrl.learning.optimizers import Adam, AdamConfig, Optimizer
from labrl.learning.ranks import Ranks
from labrl.learning.sliced import SlicedLearner
from labrl.session.episodes import EpisodeWindow
from labrl.session.interruption import Interruption
from labrl.session.team import RankTeam, ReplicaError
from labrl.session.torchrun import Group, Launch

ROWS = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))


def slice_of(ranks: Ranks, rows: Tensor) -> Tensor:
    return rows.chunk(ranks.size)[ranks.rank]


def adam(flat: FlatParameters) -> Optimizer:
    return Adam(AdamConfig(eps=1e-8, beta1=0.9), [flat.vector], None)


def learner_of(kind: type[Learner[Any]], ranks: Ranks) -> Learner[nn.Linear]:
    compute = Compute(torch.device("cpu"), torch.float32, 2, ranks=ranks)
    torch.manual_seed(3)
    module = nn.Linear(5, 4)
    if kind is SlicedLearner:
        return SlicedLearner(module, compute, adam, whole_minibatches=False)
    return Learner(module, compute, adam)


def check_gradients_equal_those_of_whole_minibatch(ranks: Ranks, kind: type[Learner[Any]]) -> None:
    joint, alone = learner_of(kind, ranks), learner_of(kind, Ranks())
    part = joint.gradient(mean_loss, Rows(slice_of(ranks, ROWS))), joint.flat.gradient
    whole = alone.gradient(mean_loss, Rows(ROWS)), alone.flat.gradient
    for found, expected in zip(part, whole, strict=True):
        torch.testing.assert_close(found, expected)
    for everyone in zip(*ranks.all_gather(part), strict=True):
        assert all(torch.equal(everyone[0], other) for other in everyone), "the ranks' gradients differ"

    errors, all_errors = (
        joint.gradient(loss_of_rows, Rows(slice_of(ranks, ROWS))),
        alone.gradient(loss_of_rows, Rows(ROWS)),
    )
    torch.testing.assert_close(joint.flat.gradient, alone.flat.gradient)
    torch.testing.assert_close(
        errors[0], slice_of(ranks, all_errors[0]), msg="a rank does not have the errors of its own rows"
    )
    joint.step(0.1)
    assert len({weights.numpy().tobytes() for weights in ranks.all_gather(joint.weights.clone())}) == 1
    joint.close()
    alone.close()


def check_moments_equal_those_of_all_samples(ranks: Ranks) -> None:
    columns = ROWS.T  # [5, 24]
    found = ranks.std_mean(columns.chunk(ranks.size, dim=1)[ranks.rank])
    torch.testing.assert_close(found, torch.std_mean(columns, dim=1, keepdim=True))
    part, whole = RunningMoments((5,)), RunningMoments((5,))
    part.ranks = ranks
    for step in range(3):
        rows = ROWS + step
        part.update(slice_of(ranks, rows).numpy())
        whole.update(rows.numpy())
    np.testing.assert_allclose(part.mean, whole.mean)
    np.testing.assert_allclose(part.variance, whole.variance)


def check_differing_weight_is_named(ranks: Ranks) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    agent: Any = SimpleNamespace(modules=lambda: {"policy": network})
    clock = Clock(70)
    frames = {"log_frames": 10, "eval_frames": 10, "keep_frames": None}
    session: Any = SimpleNamespace(
        **{"clock": clock, "episodes": EpisodeWindow(1), "interruption": Interruption(), "agent": agent},
        env=SimpleNamespace(num_envs=1),
        config=SimpleNamespace(meta=SimpleNamespace(max_wall=None), **frames),
    )
    team = RankTeam(session, ranks)
    team.compare()
    if ranks.rank == 1:
        network[1].running_mean[0] += 1e-7  # type: ignore[index, operator]
    with pytest.raises(ReplicaError) as raised:
        team.compare()
    assert "policy.1.running_mean of rank 1" in str(raised.value)


if __name__ == "__main__":
    launch = Launch.here()
    assert launch is not None
    group = Group(launch)
    for kind in (Learner, SlicedLearner):
        check_gradients_equal_those_of_whole_minibatch(group.ranks, kind)
    check_moments_equal_those_of_all_samples(group.ranks)
    check_differing_weight_is_named(group.ranks)
    group.leave()
    print("the ranks work as one")
