"""What a report consists of, as plain data, and how it becomes one HTML file that fetches nothing.

Another part adds to a report by returning a `Section`:

    Section("history", "History", [
        Note("Each point is a trial."),
        Charts([Chart("Value", {"trial": Axis("trial", whole=True)}, [
            Line("trials", "finished", Style(BLUE), {"trial": View(numbers, values)}, role="points"),
        ])]),
        Table(["trial", "value"], [[0, 12.5], [1, None]]),
    ])

All text is escaped where it is rendered, so names may hold anything.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from labrl.analysis.charts import Chart
from labrl.analysis.colours import Style
from labrl.analysis.formats import number

MOST_POINTS = 80_000
"""Of all curves of a report together: about 2 MB."""
MOST_PER_CURVE = 600
FEWEST_PER_CURVE = 40

SMALL_VIDEO = 1_000_000
"""Bytes up to which an episode is embedded."""
MOST_VIDEO = 2_000_000
"""Bytes of all embedded episodes together."""

MOST_WARNINGS = 8
"""Those that are shown without a click."""

TONES = {"finished": "good", "failed": "bad"}


@dataclass(frozen=True)
class Charts:
    """Charts side by side; interactive."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]
    small: bool = False
    """Three in a row where there is room, not two."""


@dataclass(frozen=True)
class Toggle:
    """A button that hides and shows the lines of one key."""

    key: str
    name: str
    style: Style
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
    bar: float = 0.0
    """Share of the cell's width that a bar fills."""

    @property
    def shown(self) -> str:
        """The text of the cell."""
        if self.text is not None:
            return self.text
        return self.value if isinstance(self.value, str) else number(self.value)

    @property
    def order(self) -> str:
        """What the column is sorted by, as text; empty comes last."""
        unknown = self.value is None or (isinstance(self.value, float) and not math.isfinite(self.value))
        return "" if unknown else str(self.value)


class Table:
    """Rows that are sorted by a click on a column's head."""

    kind = "table"

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell | float | str | None]],
        caption: str = "",
        marked: Sequence[int] = (),
        dim: Sequence[int] = (),
        folded: bool = False,
    ) -> None:
        """marked, dim: rows that stand out, that step back; folded: whether a click shows it."""
        self.columns, self.caption, self.folded = columns, caption, folded
        self.marked, self.dim = frozenset(marked), frozenset(dim)
        self.rows = [[one if isinstance(one, Cell) else Cell(one) for one in row] for row in rows]
        # columns without text are aligned to the right
        cells = list(zip(*self.rows, strict=True)) or [()] * len(columns)
        self.numeric = [bool(c) and not any(isinstance(one.value, str) for one in c) for c in cells]


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
class Videos:
    """Recorded episodes side by side, with a caption each; embedded where the file is small, else linked."""

    kind: ClassVar[str] = "videos"
    videos: Mapping[Path, str]


Block = Charts | Controls | Table | Note | Command | Videos


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


def render(report: Report, folder: Path) -> str:
    """The text of `report.html`. folder: where it will lie, which links are relative to."""
    charts = [
        chart
        for section in report.sections
        for block in section.blocks
        if isinstance(block, Charts)
        for chart in block.charts
    ]
    curves = sum(len(line.views) for chart in charts for line in chart.lines)
    most = min(MOST_PER_CURVE, max(MOST_POINTS // max(curves, 1), FEWEST_PER_CURVE))
    environment = Environment(
        loader=PackageLoader("labrl.analysis.report", "assets"),
        autoescape=select_autoescape(["html.j2"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = {id(chart): index for index, chart in enumerate(charts)}
    environment.globals.update(
        chart_number=lambda chart: numbers[id(chart)],
        colour=_css_colour,
        sources=_VideoSources(folder),
        quote=quote,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        most_warnings=MOST_WARNINGS,
        tone=TONES.get(report.status, "warn"),
        css=Markup(_asset("report.css")),
        script=Markup(_asset("report.js")),
        charts=Markup(_json([chart.spec(most) for chart in charts])),
    )


def relative(path: Path, folder: Path) -> str:
    """`path` as a link from a file in `folder`."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _asset(name: str) -> str:
    files = importlib.resources.files("labrl.analysis.report")
    return files.joinpath("assets", name).read_text(encoding="utf-8")


def _json(content: Any) -> str:
    """JSON that may stand inside a script element, whatever the strings in it hold."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _css_colour(style: Style, shade: int) -> str:
    """The CSS colour of a line, as `report.js` mixes it."""
    lifted = f"color-mix(in oklab, {style.colour}, white var(--lift))"
    if not shade:
        return lifted
    return f"color-mix(in oklab, {lifted} {100 - abs(shade)}%, var({'--paper' if shade > 0 else '--ink'}))"


class _VideoSources:
    """Where each episode is played from; embeds while there is room."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._room = folder, MOST_VIDEO

    def __call__(self, video: Path) -> dict[str, Any]:
        size = video.stat().st_size if video.exists() else 0
        embedded = 0 < size <= min(SMALL_VIDEO, self._room)
        address = quote(relative(video, self._folder))
        if embedded:
            self._room -= size
            address = f"data:video/mp4;base64,{base64.b64encode(video.read_bytes()).decode()}"
        return {"embedded": embedded, "address": address, "size": f"{size / 1e6:.1f} MB"}
