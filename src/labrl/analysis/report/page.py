"""The HTML document of a report with its tables and charts, as one file that loads nothing else.

A report is a template in `assets/` that extends `report.html.j2`. It arranges the charts and numbers in a
report's `content` with the macros of `macros.html.j2`. All text is escaped when it is rendered, so names may
contain any characters.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from labrl.analysis.charts import Chart
from labrl.analysis.colors import Style
from labrl.analysis.formats import (
    UNKNOWN,
    alike,
    duration,
    interval,
    interval_heading,
    moment,
    number,
    typed,
)
from labrl.analysis.groups import value_text
from labrl.analysis.returns import MEANING
from labrl.run.folder import path_text
from labrl.run.provenance import as_yaml

MOST_POINTS = 80_000
"""Maximum total number of points of all curves in a report, which take about 2 MB."""
MOST_PER_CURVE = 600
FEWEST_PER_CURVE = 40

SMALL_VIDEO = 1_000_000
"""Maximum size in bytes of an embedded video of an episode."""
MOST_VIDEO = 2_000_000
"""Maximum total size in bytes of all embedded videos."""

MOST_WARNINGS = 8
"""Number of warnings that are shown without a click."""


class Page:
    """One document while it is rendered: the sections, charts and videos that the template has requested."""

    def __init__(self, folder: Path) -> None:
        self.sections: list[tuple[str, str]] = []
        """Anchor and title of each section."""
        self.figures: list[tuple[str, str, str]] = []
        """Label, value and detail of each number at the top."""
        self._charts: list[Chart] = []
        self._folder, self._room = folder, MOST_VIDEO

    def number_of(self, chart: Chart) -> int:
        """Return the number by which the script finds a chart."""
        self._charts.append(chart)
        return len(self._charts) - 1

    def charts_json(self) -> Markup:
        """Return all charts as JSON for a script element, with each curve thinned according to the number of
        curves."""
        curves = sum(len(line.views) for chart in self._charts for line in chart.lines)
        most = min(MOST_PER_CURVE, max(MOST_POINTS // max(curves, 1), FEWEST_PER_CURVE))
        specs = [chart.spec(most) for chart in self._charts]
        text = json.dumps(specs, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))

    def source_of(self, video: Path) -> dict[str, Any]:
        """Return the address of an episode's video, and its size. The video is embedded while there is room;
        otherwise, the address is that of its file."""
        size = video.stat().st_size if video.exists() else 0
        embedded = 0 < size <= min(SMALL_VIDEO, self._room)
        address = quote(relative(video, self._folder))
        if embedded:
            self._room -= size
            address = f"data:video/mp4;base64,{base64.b64encode(video.read_bytes()).decode()}"
        return {"embedded": embedded, "address": address, "size": f"{size / 1e6:.1f} MB"}


def render(template: str, content: Mapping[str, Any], folder: Path) -> str:
    """Return the text of `report.html`.

    template: name of the template's file in `assets/`, without the suffix; folder: folder of the page, to
    which links are relative; content: the values that the template uses, and for the top of every page
    `title`, `subtitle`, `status` (see `Run.status`), `verdict` (the result in a sentence or two), `warnings`
    and `footer`.
    """
    environment, css, script = assets()
    return environment.get_template(f"{template}.html.j2").render(
        page=Page(folder),
        css=css,
        script=script,
        alike=alike,
        interval=interval,
        interval_heading=interval_heading,
        unknown=UNKNOWN,
        meaning=MEANING,
        color=_css_color,
        most_warnings=MOST_WARNINGS,
        **content,
    )


@functools.cache
def assets() -> tuple[Environment, Markup, Markup]:
    """Return the environment of the templates, and the style and script of every page.

    The environment keeps compiled templates for the next report; compiling takes 0.1 s.
    """
    loader = PackageLoader("labrl.analysis.report", "assets")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    for show in (number, duration, moment, value_text, typed, quote):
        environment.filters[show.__name__] = show
    environment.filters["thousands"] = lambda value: UNKNOWN if value is None else f"{value:,}"
    environment.filters["order"] = _order
    environment.filters["yaml"] = as_yaml
    css, uplot, own = (
        loader.get_source(environment, name)[0] for name in ("report.css", "uplot.min.js", "report.js")
    )
    return environment, Markup(css), Markup(f"{uplot}\n{own}")


def relative(path: Path, folder: Path) -> str:
    """Return `path` as a link from a file in `folder`."""
    return path_text(os.path.relpath(path.resolve(), folder.resolve()))


def _order(value: Any) -> str:
    """Return the text by which a column is sorted; undefined values are empty and come last."""
    unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
    return "" if unknown else str(value)


def _css_color(style: Style, shade: int) -> str:
    """Return the CSS color of a line, mixed as in `report.js`."""
    lifted = f"color-mix(in oklab, {style.color}, white var(--lift))"
    if not shade:
        return lifted
    return f"color-mix(in oklab, {lifted} {100 - abs(shade)}%, var({'--paper' if shade > 0 else '--ink'}))"
