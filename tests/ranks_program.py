"""What tests/test_torchrun.py starts as two ranks: fails where they do not do what is promised."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labrl.agents.running_moments import RunningMoments
from labrl.lab.torchrun import Group, Launch
from labrl.networks.compute import Compute
from labrl.networks.gradient import GradientWorkers
from labrl.networks.ranks import Ranks
from labrl.session.team import ReplicaError, Team

ROWS = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))


def share(ranks: Ranks, rows: Tensor) -> Tensor:
    return rows.chunk(ranks.size)[ranks.rank]


def gradients_are_those_of_the_whole_minibatch(ranks: Ranks) -> None:
    def gradient(rows: Tensor, over: Ranks) -> tuple[Tensor, Tensor]:
        compute = Compute(torch.device("cpu"), torch.float32, 1, ranks=over)
        torch.manual_seed(3)
        workers = GradientWorkers(nn.Linear(5, 4), 1, compute)

        def loss(module: nn.Module, part: slice) -> tuple[Tensor, Tensor]:
            value = module(rows[part]).square().mean()
            return value, value.detach().reshape(1)

        statistics = workers.backward(loss, len(rows))
        assert workers.flat.vector.grad is not None
        return workers.flat.vector.grad, statistics

    own, whole = gradient(share(ranks, ROWS), ranks), gradient(ROWS, Ranks())
    for found, expected in zip(own, whole, strict=True):
        torch.testing.assert_close(found, expected)
    for everyone in zip(*ranks.gathered(own), strict=True):
        assert all(torch.equal(everyone[0], other) for other in everyone), "the same to the bit"


def moments_are_those_of_all_samples(ranks: Ranks) -> None:
    columns = ROWS.T  # [5, 24]
    found = ranks.std_mean(columns.chunk(ranks.size, dim=1)[ranks.rank])
    torch.testing.assert_close(found, torch.std_mean(columns, dim=1, keepdim=True))
    own, whole = RunningMoments((5,)), RunningMoments((5,))
    own.ranks = ranks
    for step in range(3):
        rows = ROWS + step
        own.update(share(ranks, rows).numpy())
        whole.update(rows.numpy())
    np.testing.assert_allclose(own.mean, whole.mean)
    np.testing.assert_allclose(own.variance, whole.variance)


def all_know_what_one_knows(ranks: Ranks) -> None:
    assert ranks.largest(ranks.rank, -ranks.rank) == [1, 0]
    assert ranks.gathered({"rank": ranks.rank}) == [{"rank": 0}, {"rank": 1}]
    assert ranks.sent_to_leader(ranks.rank) == ([0, 1] if ranks.rank == 0 else [])
    assert ranks.told_by_leader(["a", "b"] if ranks.rank == 0 else None) == "ab"[ranks.rank]


def a_weight_that_differs_is_named(ranks: Ranks) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    agent = SimpleNamespace(modules=lambda: {"policy": network})
    session: Any = SimpleNamespace(agent=agent, clock=SimpleNamespace(frame=70))
    team = Team(ranks, [], 1, None)
    team.compare(session)
    if ranks.rank == 1:
        network[1].running_mean[0] += 1e-7  # type: ignore[index, operator]
    with pytest.raises(ReplicaError) as raised:
        team.compare(session)
    assert "policy.1.running_mean of rank 1" in str(raised.value)


if __name__ == "__main__":
    launch = Launch.here()
    assert launch is not None
    group = Group(launch)
    gradients_are_those_of_the_whole_minibatch(group.ranks)
    moments_are_those_of_all_samples(group.ranks)
    all_know_what_one_knows(group.ranks)
    a_weight_that_differs_is_named(group.ranks)
    group.leave()
    print("as promised")
