"""Storage of experience: rollouts and replay buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Columns:
    """A minibatch of arrays or tensors with one row for each sample; derived dataclasses name the columns."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(vars(self).values())))

    def __getitem__(self, rows: slice) -> Self:
        """Return a slice of the rows of all columns; columns that are None stay None."""
        columns = dict(vars(self))
        for name, column in columns.items():
            if column is not None:
                columns[name] = column[rows]
        return type(self)(**columns)
