"""The processes that torchrun starts to train one session together, and their communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labrl.errors import LostProcessError, first_line


class RankLostError(LostProcessError):
    """Another process of the session has ended, or the network connection is lost."""


@contextmanager
def _talking() -> Iterator[None]:
    """Context manager: raise the errors of torch's communication as RankLostError."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(first_line(error)) from error


@dataclass(frozen=True)
class Ranks:
    """One of `size` processes of torch's default process group; with size 1, there is no communication.

    All ranks must call the same methods in the same order.
    """

    rank: int = 0
    """Index of this process, from 0; rank 0 is the leader."""
    size: int = 1
    local_rank: int = 0
    """Index of this process on its machine, from 0."""
    local_size: int = 1
    """Number of processes on this machine."""

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def all_reduce_mean_(self, *tensors: Tensor) -> None:
        """Replace each tensor with its mean over the ranks, in one message. All ranks get identical bits.

        The number of ranks and the backend determine the order of summation, so a run is reproducible.
        """
        if self.alone:
            return
        message = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _talking():
            dist.all_reduce(message)
        message.div_(self.size)
        for tensor, mean in zip(tensors, message.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sample standard deviation and the mean over the columns of all ranks, [rows, 1] each.

        values: [rows, columns]; the number of columns must be equal on all ranks.
        """
        mean = values.mean(dim=1, keepdim=True)
        self.all_reduce_mean_(mean)
        squares = (values - mean).square().mean(dim=1, keepdim=True)
        self.all_reduce_mean_(squares)
        count = values.shape[1] * self.size
        return (squares * (count / max(count - 1, 1))).sqrt(), mean

    def all_reduce_max(self, *numbers: int) -> list[int]:
        """Return the maximum of each number over all ranks."""
        if self.alone:
            return list(numbers)
        told = torch.tensor(numbers)
        with _talking():
            dist.all_reduce(told, dist.ReduceOp.MAX)
        return told.tolist()

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order. value: plain data, arrays and tensors on the CPU."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        with _talking():
            dist.all_gather_object(values, value)
        return values

    def gather_to_rank0(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order, on rank 0; an empty list on the other ranks."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with _talking():
            dist.gather_object(value, values)
        return values or []

    def scatter_from_rank0(self, values: Sequence[Any] | None) -> Any:
        """Return the value that rank 0 sends to this rank.

        values: on rank 0, the values in rank order; None on the other ranks.
        """
        received: list[Any] = [None]
        with _talking():
            dist.scatter_object_list(received, list(values) if values is not None else None)
        return received[0]


ALONE = Ranks()
"""The single rank of a session without torchrun."""
