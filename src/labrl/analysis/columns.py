"""Choice of the columns of a table that fit a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def widths_that_fit(
    cells: Sequence[Mapping[str, str]], columns: Sequence[str], dispensable: Sequence[str], width: int | None
) -> dict[str, int]:
    """The columns of a table for which `width` characters are enough, two between them, and how wide each is.

    dispensable: those that it goes without where it must, the first of them first; the rest stay anyway.
    """
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in columns}
    for name in dispensable:
        if width is None or sum(widths.values()) + 2 * (len(widths) - 1) <= width:
            break
        del widths[name]
    return widths
