"""Storage of experience: rollouts and replay buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """A minibatch of arrays or tensors; derived dataclasses name the columns.

    The first column has one row for each sample, the others one or several. Columns that are None stay None.
    """

    place: ClassVar[int] = 0
    """Address of data that it shares with other minibatches, of which there are none."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns that are tensors, by name."""
        return {name: column for name, column in vars(self).items() if isinstance(column, Tensor)}

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(next(iter(vars(self).values())))

    def __getitem__(self, samples: slice) -> Self:
        """Return a slice of the samples."""
        columns, count = dict(vars(self)), len(self)
        begin, end, _ = samples.indices(count)
        for name, column in columns.items():
            if column is not None:
                rows = len(column) // count  # of each sample
                columns[name] = column[begin * rows : end * rows]
        return type(self)(**columns)
