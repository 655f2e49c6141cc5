"""Draw the recorded curves of all cells, with the published score as a line, as a page of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks import chapters
from benchmarks.published import cells
from benchmarks.record import POINTS, Records
from labrl.analysis.colors import BLUE, VERMILLION
from labrl.analysis.figures import tick_format, use_style

PAGE = "curves.md"

PREFACE = """# Curves

The return over frames of the cells of the [results](../results.md): the mean over the last 100 training
episodes of each session (thin), and the mean of the sessions (thick). The dashed line is the published
score, where there is one. `curves.csv` contains the points, at most 50 for each session, and the commit with
which they were measured.
"""

PANELS = 4
"""Number of cells side by side in a picture."""


@dataclass(frozen=True)
class Panel:
    """A cell in a picture, with the published score if there is one."""

    name: str
    title: str
    published: float | None = None


def write_page(records: Records) -> None:
    """Write the page and a picture for each environment and chapter in the folder of the records."""
    text = PREFACE
    for title, name, panels in _pictures():
        drawn = [panel for panel in panels if records.curve(panel.name)]
        pictures = {}
        if drawn:
            _draw(drawn, records, name)
            pictures[name] = ", ".join(panel.title for panel in drawn)
        for panel in panels:
            early = records.folder / f"{panel.name}.png"  # drawn before points were kept
            if panel in drawn:
                early.unlink(missing_ok=True)
            elif early.exists():
                pictures[panel.name] = panel.name
        text += f"\n## {title}\n" if pictures else ""
        for file, what in pictures.items():
            text += f"\n![Return over frames of {what}]({file}.png)\n"
    (records.folder / PAGE).write_text(text)


def _pictures() -> list[tuple[str, str, list[Panel]]]:
    """Return the title, the file name and the panels of each picture."""
    found = [
        (
            env_id,
            f"curves_{group[0].env}",
            [Panel(cell.name, cell.agent, cell.score) for cell in group],
        )
        for env_id, group in ((key, list(one)) for key, one in groupby(cells(), lambda cell: cell.env_id))
    ]
    return found + [
        (
            chapter.title,
            f"curves_{chapter.name}",
            [Panel(name, name, chapter.published.get(name, (None,))[0]) for name in chapter.overrides],
        )
        for chapter in chapters.CHAPTERS
        if chapter.with_curves
    ]


def _draw(panels: Sequence[Panel], records: Records, name: str) -> None:
    columns = min(PANELS, len(panels))
    rows = -(-len(panels) // columns)
    with use_style():
        figure = Figure(figsize=(2.3 * columns, 1.9 * rows + 0.3), layout="constrained")
        FigureCanvasAgg(figure)
        every = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(every, panels, strict=False):
            sessions = records.curve(panel.name)
            for frame, returns in sessions:
                axes.plot(frame, returns, color=BLUE, linewidth=0.6, alpha=0.5)
            # The mean is shown where all sessions have a return.
            first, last = max(frame[0] for frame, _ in sessions), min(frame[-1] for frame, _ in sessions)
            grid = np.linspace(first, last, POINTS)
            mean = np.mean([np.interp(grid, *session) for session in sessions], axis=0)
            axes.plot(grid, mean, color=BLUE, label="mean of the sessions")
            if panel.published is not None:
                axes.axhline(
                    panel.published, color=VERMILLION, linestyle="--", linewidth=1, label="published"
                )
            axes.set_title(panel.title, loc="left")
            axes.set_xlabel("frames")
            for scale in (axes.xaxis, axes.yaxis):
                scale.set_major_locator(MaxNLocator(4))
                scale.set_major_formatter(tick_format())
        for axes in every[len(panels) :]:
            axes.set_axis_off()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=len(labels))
        figure.savefig(records.folder / f"{name}.png", dpi=200, metadata={"Software": "labrl"})
