"""Workers on shares of a minibatch give the gradient of the whole, and the same one each time."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from options import component
from torch import Tensor, nn

from labrl.networks.compute import Compute
from labrl.networks.gradient import GradientWorkers, NarrowWeights
from labrl.networks.trained import Trained, one_for_all


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 7), nn.Tanh(), nn.Linear(7, 2)
    )


INPUTS = torch.randn(31, 3, 6, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(31, 2, generator=torch.Generator().manual_seed(2))


def mean_loss(module: nn.Module, share: slice) -> tuple[Tensor, Tensor]:
    error = (module(INPUTS[share]) - TARGETS[share]).square().mean()
    return error, error.detach().reshape(1)


def reference_gradients(module: nn.Module) -> list[Tensor]:
    (module(INPUTS) - TARGETS).square().mean().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_shares_add_up_to_the_gradient_of_the_whole(
    num_workers: int, memory_format: torch.memory_format
) -> None:
    expected = reference_gradients(network())
    module = network().to(memory_format=memory_format)
    workers = GradientWorkers(module, num_workers)
    for _ in range(2):  # the second time nothing of the first may be left
        statistics = workers.backward(mean_loss, len(INPUTS))
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(statistics[0], mean_loss(module, slice(0, 31))[0].detach())
    workers.close()


def test_repeated_gradients_are_equal_bit_for_bit() -> None:
    workers = GradientWorkers(network(), 2)
    gradients = []
    for _ in range(5):
        workers.backward(mean_loss, len(INPUTS))
        assert workers.flat.vector.grad is not None
        gradients.append(workers.flat.vector.grad.clone())
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])
    workers.close()


def test_an_update_of_the_vector_is_an_update_of_every_replica() -> None:
    module = network()
    workers = GradientWorkers(module, 2)
    with torch.no_grad():
        workers.flat.vector.add_(1.0)
    first, second = workers.map(lambda replica, share: [p.clone() for p in replica.parameters()], 2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    workers.close()


def test_training_starts_without_importing_a_compiler() -> None:
    # Over a second of imports before the first step, asked for by torch's optimizer classes.
    program = (
        "import sys, torch; from torch import nn;"
        "from labrl.networks.gradient import GradientWorkers; from labrl.networks.optimizers import *;"
        "module = nn.Linear(2, 1); workers = GradientWorkers(module, 1); vector = workers.flat.vector;"
        "workers.backward(lambda net, rows: (net(torch.ones(4, 2)).mean(), torch.zeros(1)), 4);"
        "Adam(AdamConfig(eps=1e-8, beta1=0.9), [vector], None).step(0.1);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_worker_s_error_is_raised_here() -> None:
    def broken(module: nn.Module, share: slice) -> None:
        if share.start:
            raise RuntimeError("in the second worker")

    workers = GradientWorkers(network(), 2)
    with pytest.raises(RuntimeError, match="second worker"):
        workers.map(broken, 4)
    workers.close()


NARROW = Compute(torch.device("cpu"), torch.bfloat16, num_threads=2)
ADAM = one_for_all(component("agent.optimizer", "agent=a2c agent/optimizer=adam"), None)
WIDE_INPUTS = torch.randn(64, 512, generator=torch.Generator().manual_seed(3))


class Torso(nn.Sequential):
    all_in_autocast = True


def wide_network(kind: type[nn.Sequential] = Torso) -> nn.Module:
    torch.manual_seed(0)
    return kind(nn.Linear(512, NarrowWeights.SMALLEST // 512), nn.Tanh(), nn.Linear(512, 2))


def autocast_loss(module: nn.Module, share: slice) -> tuple[Tensor, Tensor]:
    with NARROW.autocast():
        outputs = module(WIDE_INPUTS[share])
    error = outputs.float().square().mean()
    return error, error.detach().reshape(1)


def test_narrow_weights_give_what_autocast_gives_bit_for_bit() -> None:
    expected, module = wide_network(), wide_network()
    workers = GradientWorkers(module, 1, NARROW)
    for _ in range(2):  # the second time after a change of the weights
        for parameter in expected.parameters():
            parameter.grad = None
        loss = autocast_loss(expected, slice(None))[0]
        loss.backward()
        statistics = workers.backward(autocast_loss, len(WIDE_INPUTS))
        assert torch.equal(statistics[0], loss.detach())
        for own, other in zip(module.parameters(), expected.parameters(), strict=True):
            assert own.grad is not None
            assert own.dtype == own.grad.dtype == torch.float32
            assert torch.equal(own.grad, other.grad)
        with torch.no_grad():
            workers.flat.vector.mul_(1.1)
            for parameter in expected.parameters():
                parameter.mul_(1.1)
    workers.close()


def test_narrow_weights_are_shared_by_all_workers_and_follow_the_network() -> None:
    module = wide_network()
    workers = GradientWorkers(module, 2, NARROW)
    seen = workers.map(lambda replica, share: next(replica.parameters()), len(WIDE_INPUTS))
    assert [weight.dtype for weight in seen] == [torch.bfloat16] * 2
    assert seen[0].data_ptr() == seen[1].data_ptr()
    before = seen[0].clone()
    with torch.no_grad():
        workers.flat.vector.add_(1.0)
    workers.map(lambda replica, share: None, 2, changed=False)
    assert torch.equal(seen[0], before), "those who know that nothing has changed do not pay for a copy"
    workers.map(lambda replica, share: None, 2)
    assert torch.equal(seen[0], module[0].weight.to(torch.bfloat16))
    workers.close()


@pytest.mark.parametrize(("size", "shares"), [(1, 1), (16, 1), (31, 1), (32, 2), (64, 2)])
def test_few_rows_are_left_to_one_worker_where_weights_are_narrow(size: int, shares: int) -> None:
    workers = GradientWorkers(wide_network(), 2, NARROW)
    rows = workers.map(lambda replica, share: share, size)
    assert len(rows) == shares
    assert sum(share.stop - share.start for share in rows) == size
    workers.close()


def test_weights_that_may_meet_float32_stay_as_they_are() -> None:
    workers = GradientWorkers(wide_network(nn.Sequential), 1, NARROW)

    def exact_loss(module: nn.Module, share: slice) -> tuple[Tensor, Tensor]:
        with NARROW.autocast(), torch.autocast("cpu", enabled=False):
            error = module(WIDE_INPUTS[share]).square().mean()
        return error, error.detach().reshape(1)

    workers.backward(exact_loss, len(WIDE_INPUTS))
    assert workers.flat.vector.grad is not None
    assert workers.flat.vector.grad.count_nonzero()
    workers.close()


def outputs(trained: Trained[nn.Module]) -> Tensor:
    with torch.inference_mode(), NARROW.autocast():
        return trained.map(lambda net, rows: net(WIDE_INPUTS[rows]), 4)[0]


def written_in_place(trained: Trained[nn.Module]) -> None:
    with torch.no_grad():
        next(trained.network.parameters()).mul_(1.1)


def written_from_a_file(trained: Trained[nn.Module]) -> None:
    for tensor in trained.network.state_dict().values():
        tensor.mul_(1.1)


def restored(trained: Trained[nn.Module]) -> None:
    state = copy.deepcopy(trained.state_dict())
    for tensor in state["network"].values():
        tensor.mul_(1.1)
    trained.load_state_dict(state)


def updated(trained: Trained[nn.Module]) -> None:
    trained.backward(autocast_loss, len(WIDE_INPUTS))
    trained.step(lr=0.1)


@pytest.mark.parametrize("change", [updated, restored, written_in_place, written_from_a_file])
def test_a_change_of_the_weights_is_seen_however_it_came_about(
    change: Callable[[Trained[nn.Module]], None],
) -> None:
    trained = Trained(wide_network(), NARROW, 1, ADAM)
    first = outputs(trained)
    change(trained)
    seen = outputs(trained)
    assert not torch.equal(seen, first)
    with torch.inference_mode(), NARROW.autocast():
        assert torch.equal(seen, trained.network(WIDE_INPUTS[:4]))
    trained.close()


def test_weights_that_others_write_are_seen_at_once() -> None:
    trained = Trained(wide_network(), NARROW, 1, ADAM)
    common = trained.weights.detach().clone()
    trained.flat.move_to(common)

    first = outputs(trained)
    common.mul_(1.1)  # another session of meta.distributed=shared
    assert not torch.equal(outputs(trained), first)
    trained.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_all_workers_are_in_the_mode_of_the_network(num_workers: int) -> None:
    # CrossQ normalizes by the minibatch only where the policy learns: in training mode.
    module = wide_network()
    workers = GradientWorkers(module, num_workers, NARROW)
    seen: list[bool] = []

    def loss(net: nn.Module, share: slice) -> tuple[Tensor, Tensor]:
        seen.append(net.training)
        return autocast_loss(net, share)

    for training in (False, True):
        seen.clear()
        module.train(training)
        workers.map(loss, len(WIDE_INPUTS))
        workers.backward(loss, len(WIDE_INPUTS))
        assert seen == [training] * 2 * num_workers
    workers.close()


@pytest.mark.parametrize(
    ("capability", "num_workers", "threads"), [("amx_bf16", 1, [2, 1]), ("avx512_bf16", 2, [1, 1, 1, 1])]
)
def test_all_cores_work_on_each_product_only_where_products_wait_for_the_weights(
    capability: str, num_workers: int, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True})
    seen: list[int] = []

    def loss(net: nn.Module, share: slice) -> tuple[Tensor, Tensor]:
        seen.append(torch.get_num_threads())
        return autocast_loss(net, share)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    trained = Trained(wide_network(), NARROW, NARROW.num_threads, ADAM)
    trained.backward(loss, len(WIDE_INPUTS))
    trained.map(loss, len(WIDE_INPUTS))
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert (trained.num_workers, seen, after) == (num_workers, threads, 1)
    trained.close()


def test_a_worker_without_a_share_adds_nothing() -> None:
    module = wide_network()
    workers = GradientWorkers(module, 2, NARROW)
    workers.backward(autocast_loss, len(WIDE_INPUTS))
    assert workers.flat.vector.grad is not None
    workers.backward(lambda net, share: autocast_loss(net, slice(0, 1)), 1)
    alone = workers.flat.vector.grad.clone()
    module.zero_grad(set_to_none=False)
    autocast_loss(module, slice(0, 1))[0].backward()
    assert torch.equal(alone, workers.flat.vector.grad)
    workers.close()
