"""A report as one HTML file: text escaped, data that cannot end its script, nothing fetched."""

from __future__ import annotations

import base64
import importlib.resources
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from numpy.typing import NDArray

from labrl.analysis.report.formats import number
from labrl.analysis.report.sections import Cell, Chart, Charts, Report, Table, Video, View
from labrl.analysis.report.thinning import thinned

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

TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "killed": "warn", "failed": "bad"}


def render(report: Report, folder: Path) -> str:
    """The text of `report.html`. folder: where it will lie, which links are relative to."""
    charts = _charts(report)
    curves = sum(len(line.views) for chart in charts for line in chart.lines)
    most = min(MOST_PER_CURVE, max(MOST_POINTS // max(curves, 1), FEWEST_PER_CURVE))
    environment = Environment(
        loader=PackageLoader("labrl.analysis.report"),
        autoescape=select_autoescape(["html.j2"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = {id(chart): index for index, chart in enumerate(charts)}
    environment.globals.update(
        chart_number=lambda chart: numbers[id(chart)],
        as_cell=_as_cell,
        numeric_columns=_numeric_columns,
        mixed=_mixed,
        raw=Markup,
        video_source=_VideoSources(folder),
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        most_warnings=MOST_WARNINGS,
        tone=TONES.get(report.status, "warn"),
        css=Markup(_asset("report.css")),
        script=Markup(_asset("scales.js") + _asset("report.js")),
        charts=Markup(_json([_spec(chart, index, most) for index, chart in enumerate(charts)])),
    )


def _asset(name: str) -> str:
    return (
        importlib.resources.files("labrl.analysis.report")
        .joinpath("assets", name)
        .read_text(encoding="utf-8")
    )


def _charts(report: Report) -> list[Chart]:
    found: list[Chart] = []
    for section in report.sections:
        for block in section.blocks:
            if isinstance(block, Chart):
                found.append(block)
            elif isinstance(block, Charts):
                found += block.charts
    return found


def _json(content: Any) -> str:
    """JSON that may stand inside a script element, whatever the strings in it hold."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _spec(chart: Chart, index: int, most: int) -> dict[str, Any]:
    """What `report.js` draws."""
    lines = []
    for line in chart.lines:
        views = {}
        for name, view in line.views.items():
            short = view if line.role == "points" else thinned(view, most)
            views[name] = _arrays(short)
        entry = {"key": line.key, "name": line.name, "role": line.role, "colour": line.colour, "views": views}
        optional = {"dash": list(line.dash), "shade": line.shade, "group": line.group}
        optional |= {"labels": list(line.labels), "mark": line.mark if line.mark != "dot" else None}
        lines.append(entry | {name: value for name, value in optional.items() if value})
    axes = {
        name: {"label": axis.label}
        | ({"ticks": list(axis.ticks)} if axis.ticks else {})
        | ({"fixed": list(axis.fixed)} if axis.fixed else {})
        | ({"log": True} if axis.log else {})
        for name, axis in chart.axes.items()
    }
    spec = {"id": index, "title": chart.title, "axes": axes, "lines": lines, "can_log": _may_be_log(chart)}
    if chart.fixed_y:
        spec["fixed_y"] = list(chart.fixed_y)
    return spec | {"tall": chart.tall, "log": chart.log}


def _arrays(view: View) -> dict[str, list[float | None]]:
    arrays = {"x": view.x, "y": view.y, "low": view.low, "high": view.high}
    return {name: _short(values) for name, values in arrays.items() if values is not None}


def _short(values: NDArray[np.float64]) -> list[float | None]:
    """Five significant digits, more than a screen shows; whole numbers as they are; None for a gap."""
    short: list[float | None] = []
    for value in values.tolist():
        if not math.isfinite(value):
            short.append(None)
        elif value == int(value) and abs(value) < 1e15:
            short.append(int(value))
        else:
            rounded = float(f"{value:.5g}")
            short.append(int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded)
    return short


def _may_be_log(chart: Chart) -> bool:
    """Whether all values are above 0 and far enough apart that a logarithmic scale shows more."""
    values = [view.y for line in chart.lines for view in line.views.values() if len(view.y)]
    known = np.concatenate(values) if values else np.empty(0)
    known = known[np.isfinite(known)]
    return bool(len(known) and known.min() > 0 and known.max() > 20 * known.min()) and not chart.fixed_y


@dataclass(frozen=True)
class _Shown:
    """A cell as the template writes it."""

    text: str
    sorted: str
    detail: str = ""
    link: str = ""
    colour: str = ""


def _as_cell(value: Cell | float | str | None) -> _Shown:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = cell.text
    if text is None:
        text = cell.value if isinstance(cell.value, str) else number(cell.value)
    order = "" if cell.value is None else str(cell.value)
    if isinstance(cell.value, float) and not math.isfinite(cell.value):
        order = ""
    return _Shown(text, order, cell.detail, quote(cell.link), cell.colour)


def _numeric_columns(table: Table) -> list[bool]:
    """Which columns hold no text: those are aligned to the right."""

    def value(cell: Cell | float | str | None) -> float | str | None:
        return cell.value if isinstance(cell, Cell) else cell

    columns: list[Sequence[Any]] = list(zip(*table.rows, strict=True)) or [() for _ in table.columns]
    return [bool(column) and not any(isinstance(value(cell), str) for cell in column) for column in columns]


def _mixed(colour: str, shade: int) -> str:
    """The CSS colour of a line, as `report.js` mixes it."""
    lifted = f"color-mix(in oklab, {colour}, white var(--lift))"
    if not shade:
        return lifted
    return f"color-mix(in oklab, {lifted} {100 - abs(shade)}%, var({'--paper' if shade > 0 else '--ink'}))"


@dataclass(frozen=True)
class _Source:
    embedded: bool
    address: str
    size: str


class _VideoSources:
    """Where each episode is played from; embeds while there is room."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._room = folder, MOST_VIDEO

    def __call__(self, video: Video) -> _Source:
        size = video.path.stat().st_size if video.path.exists() else 0
        told = f"{size / 1e6:.1f} MB"
        if 0 < size <= min(SMALL_VIDEO, self._room):
            self._room -= size
            content = base64.b64encode(video.path.read_bytes()).decode()
            return _Source(True, f"data:video/mp4;base64,{content}", told)
        return _Source(False, quote(relative(video.path, self._folder)), told)


def relative(path: Path, folder: Path) -> str:
    """`path` as a link from a file in `folder`."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
