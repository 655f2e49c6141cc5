"""The interactive curves of a trial: the middle of its sessions, every seed, and how learning went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labrl.analysis.plots.colours import Style, agent_style
from labrl.analysis.plots.session import diagnostics, further, title
from labrl.analysis.report.sections import (
    Axis,
    Block,
    Chart,
    Charts,
    Controls,
    Line,
    Note,
    Section,
    Toggle,
    View,
)
from labrl.analysis.runs import Run, SessionRun
from labrl.analysis.series import STATISTICS, Curve, column_curve, evaluates, middle, return_curve, time_unit

MIDDLE = "middle"
"""Key of the curve over all sessions."""

STRONGEST_SHADE = 48
"""Ink or paper in the colour of the first and the last seed, percent."""


class Axes:
    """What the curves of a report are drawn against, in units that suit the longest of them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        ends = [
            float(session.train["wall"][-1])
            for run in runs
            for session in run.sessions
            if len(session.train.get("wall", ()))
        ]
        unit, self._seconds = time_unit(max((end for end in ends if np.isfinite(end)), default=0.0))
        self.labels = {"frame": Axis("frames"), "wall": Axis(f"wall time ({unit})")}
        self.buttons = {"frame": "frames", "wall": "wall time"}

    def view(self, axis: str, curve: Curve) -> View:
        """`curve`, whose x is frames or seconds, in the units of `axis`."""
        return View(curve.x / self._divisor(axis), curve.y)

    def middle(self, axis: str, curves: Sequence[Curve]) -> View | None:
        """The middle of `curves` with its interval."""
        together = middle(curves)
        if together is None:
            return None
        band = together.band
        interval = (band.low, band.high) if np.isfinite(band.low).any() else (None, None)
        return View(together.x / self._divisor(axis), band.value, *interval)

    def _divisor(self, axis: str) -> float:
        return self._seconds if axis == "wall" else 1.0


def seed_key(session: SessionRun) -> str:
    """Of the button that hides a session's curves."""
    return f"session-{session.index}"


def seed_shade(place: int, number: int) -> int:
    """Of the seed at `place` among `number`: from ink to paper, so that neighbours can be told apart."""
    if number < 2:
        return 0
    return round(STRONGEST_SHADE * (2 * place / (number - 1) - 1))


def curves_section(run: Run) -> Section:
    """Return, evaluations, and every other column that has something to show."""
    axes, style = Axes([run]), agent_style(run.agent)
    blocks: list[Block] = [
        Controls(axes.buttons, _toggles(run, style)),
        _return_chart(run, axes, style, False),
    ]
    if evaluates(run):
        blocks.append(_return_chart(run, axes, style, evaluation=True))
    columns = {
        name: None
        for choose in (diagnostics, further)
        for session in run.sessions
        for name in choose(session.train)
        if name != "return_mean"
    }
    blocks.append(Charts([_chart(run, axes, style, column) for column in columns], small=True))
    blocks.append(Note("Drag over a chart to zoom, double-click to see all; a click on a name hides it."))
    return Section("curves", "Curves", blocks)


def _toggles(run: Run, style: Style) -> list[Toggle]:
    sessions = run.sessions
    together = [Toggle(MIDDLE, _middle_name(run), style.colour, style.dash)] if len(sessions) > 1 else []
    return together + [
        Toggle(seed_key(s), _seed_name(s), style.colour, shade=seed_shade(place, len(sessions)))
        for place, s in enumerate(sessions)
    ]


def _seed_name(session: SessionRun) -> str:
    return f"session {session.index}"


def _middle_name(run: Run) -> str:
    return f"{STATISTICS['iqm' if len(run.sessions) >= 4 else 'mean']} of {len(run.sessions)}"


def _return_chart(run: Run, axes: Axes, style: Style, evaluation: bool) -> Chart:
    by_axis = {axis: [return_curve(s, axis, evaluation) for s in run.sessions] for axis in axes.labels}
    lines = _seed_lines(run, axes, style, by_axis)
    if len(run.sessions) > 1:
        views = {axis: view for axis in axes.labels if (view := axes.middle(axis, by_axis[axis]))}
        if views:
            lines.append(Line(MIDDLE, _middle_name(run), style.colour, views, "center", style.dash))
    if evaluation:
        unit = f"{run.config['meta']['rigorous_eval']} episodes in environments of their own"
        return Chart("Return of evaluations", axes.labels, lines, unit, tall=True)
    window = run.config.get("meta", {}).get("episode_window")
    unit = f"mean of the last {window} training episodes" if window else ""
    return Chart("Return", axes.labels, lines, unit, tall=True)


def _chart(run: Run, axes: Axes, style: Style, column: str) -> Chart:
    by_axis = {axis: [column_curve(s, column, axis) for s in run.sessions] for axis in axes.labels}
    return Chart(
        title(column).capitalize() if column != "kl" else "KL divergence",
        axes.labels,
        _seed_lines(run, axes, style, by_axis),
    )


def _seed_lines(run: Run, axes: Axes, style: Style, by_axis: dict[str, list[Curve]]) -> list[Line]:
    lines = []
    for place, session in enumerate(run.sessions):
        views = {axis: axes.view(axis, curves[place]) for axis, curves in by_axis.items()}
        if not any(np.isfinite(view.y).any() for view in views.values()):
            continue
        shade = seed_shade(place, len(run.sessions))
        lines.append(Line(seed_key(session), _seed_name(session), style.colour, views, "seed", shade=shade))
    return lines
