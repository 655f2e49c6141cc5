"""What a report consists of, as plain data: sections of blocks. Nothing here knows HTML.

Another part adds to a report by returning a `Section`:

    Section("history", "History", [
        Note("Each point is a trial."),
        Chart("Value of each trial", {"trial": Axis("trial")}, "value", [
            Line("trials", "finished", BLUE, {"trial": View(numbers, values)}, role="points"),
        ]),
        Table(["trial", "value"], [[0, 12.5], [1, None]]),
    ])

All text is escaped where it is rendered, so names may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class View:
    """A curve against one of its chart's axes."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    """Of the same length; not finite: a gap."""
    low: NDArray[np.float64] | None = None
    """Lower end of the band around `y`."""
    high: NDArray[np.float64] | None = None

    def __init__(
        self, x: ArrayLike, y: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None
    ) -> None:
        for name, values in {"x": x, "y": y, "low": low, "high": high}.items():
            array = None if values is None else np.asarray(values, dtype=np.float64)
            object.__setattr__(self, name, array)


@dataclass(frozen=True)
class Axis:
    """One of the quantities that a chart can be drawn against."""

    label: str
    ticks: Sequence[str] = ()
    """Names of the places 0, 1, 2, ... where the axis is no scale."""
    fixed: tuple[float, float] | None = None
    """Its ends; None: those of the data."""
    log: bool = False
    """Whether the values are decimal logarithms of what is meant."""


@dataclass(frozen=True)
class Line:
    """One curve, or one set of points."""

    key: str
    """What hides it: lines with one key come and go together in all charts."""
    name: str
    colour: str
    views: Mapping[str, View]
    """By name of the chart's axis."""
    role: Literal["center", "seed", "reference", "points"] = "center"
    """`center`: thick; `seed`: thin, behind it, and hidden by `seeds` in a comparison."""
    dash: Sequence[float] = ()
    shade: int = 0
    """Share of ink (below 0) or paper (above 0) that the colour is mixed with, percent."""
    group: str | None = None
    """Key of a line that hides this one too."""
    labels: Sequence[str] = ()
    """Of points, one for each."""
    mark: Literal["dot", "cross"] = "dot"
    """Of points."""


@dataclass(frozen=True)
class Chart:
    """Curves with one vertical scale; interactive."""

    kind: ClassVar[str] = "chart"
    title: str
    axes: Mapping[str, Axis]
    lines: Sequence[Line]
    unit: str = ""
    """Said behind the title."""
    tall: bool = False
    """Whether it has the whole width."""
    fixed_y: tuple[float, float] | None = None
    log: bool = False
    """Whether the vertical scale begins as a logarithmic one."""


@dataclass(frozen=True)
class Charts:
    """Charts side by side."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]
    small: bool = False
    """Three in a row where there is room, not two."""


@dataclass(frozen=True)
class Toggle:
    """A button that hides and shows the lines of one key."""

    key: str
    name: str
    colour: str
    dash: Sequence[float] = ()
    shade: int = 0


@dataclass(frozen=True)
class Controls:
    """What the charts are drawn against, and what is shown in them; one block serves all charts."""

    kind: ClassVar[str] = "controls"
    axes: Mapping[str, str]
    """Name of the axis to what the button says; the first is chosen."""
    toggles: Sequence[Toggle] = ()
    seeds: bool | None = None
    """Whether every seed is shown at first; None: no button for that."""


@dataclass(frozen=True)
class Cell:
    """A cell that is more than its value."""

    value: float | str | None
    """What the column is sorted by."""
    text: str | None = None
    """What is shown in place of the value."""
    detail: str = ""
    """In small letters below."""
    link: str = ""
    """Relative to the report."""
    colour: str = ""
    """Of a mark before the text: the curve's."""


@dataclass(frozen=True)
class Table:
    """Rows that are sorted by a click on a column's head."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | float | str | None]]
    marked: frozenset[int] = frozenset()
    """Rows that stand out."""
    dim: frozenset[int] = frozenset()
    """Rows that step back."""
    caption: str = ""
    folded: bool = False
    """Whether it is unfolded by a click on its caption."""


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class Command:
    """Something to type or to read as it is; `label` says what it is."""

    kind: ClassVar[str] = "command"
    text: str
    label: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """An SVG drawing of our own making, taken over as it is: its text must be escaped already."""

    kind: ClassVar[str] = "picture"
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Video:
    """A recorded episode; embedded where the file is small, else linked."""

    path: Path
    caption: str
    detail: str = ""


@dataclass(frozen=True)
class Videos:
    """Recorded episodes side by side."""

    kind: ClassVar[str] = "videos"
    videos: Sequence[Video]


Block = Chart | Charts | Controls | Table | Note | Command | Picture | Videos


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading, which the bar on top links to."""

    name: str
    """Of the anchor: letters and dashes."""
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class KeyFigure:
    """One number on top."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """All that one `report.html` shows."""

    title: str
    subtitle: str
    status: str
    """`finished`, `failed`, `interrupted`, `running` or `killed`."""
    verdict: str
    """What came out, in a sentence or two."""
    figures: Sequence[KeyFigure]
    warnings: Sequence[str]
    sections: Sequence[Section]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Small print at the end."""
