"""The sections of a report that only a search has."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.analysis.plots.colours import BLUE, GREEN, GREY, VERMILLION
from labrl.analysis.report.curves import Axes
from labrl.analysis.report.formats import INTERVAL, UNKNOWN, interval, interval_by, number
from labrl.analysis.report.sections import (
    Axis,
    Block,
    Cell,
    Chart,
    Charts,
    Command,
    KeyFigure,
    Line,
    Note,
    Picture,
    Section,
    Table,
    View,
)
from labrl.analysis.runs import Experiment
from labrl.analysis.search import (
    Parameter,
    SearchResult,
    SearchTrial,
    best_so_far,
    importances,
    read_search,
    runs_of,
    scatter,
    verdict,
)
from labrl.analysis.series import evaluates, return_curve

MOST_LINES = 200
"""Trials in parallel coordinates: the best ones, where there are more."""

TOP_SHARE = 0.1
"""Of the complete trials, those that have a colour there."""


def search_sections(experiment: Experiment) -> list[Section]:
    """What a search came to, its history, its hyperparameters, its best against the default; or nothing."""
    search = read_search(experiment.info)
    if search is None:
        return []
    sections = [_best_section(search, experiment.path), _history_section(search)]
    if len(search.valued) > 1:
        sections.append(_hyperparameters_section(search))
    curves = _curves_section(search, experiment.path)
    return [*sections, *([curves] if curves else []), _trials_section(search)]


def search_figures(search: SearchResult, found: Mapping[str, Any]) -> Iterator[KeyFigure]:
    """The numbers on top of the report. found: what `summary` says of the search."""
    winner, default, objective = search.winner, search.default, search.objective[0]
    for one in (winner, default):
        if one is not None and one.estimate is not None:
            value, low, high = one.estimate
            seeds = f"{len(one.values)} fresh seed{'' if len(one.values) == 1 else 's'}"
            detail = "; ".join(part for part in (seeds, interval_by(low, high)) if part)
            label = "The default" if one.trial is None else f"Best, confirmed: {one.name}"
            yield KeyFigure(f"{label} ({objective})", number(value), detail)
    for best in found["best_in_the_search"]:
        highest = "highest" if search.maximize[0] else "lowest"
        detail = f"trial {best['trial']}, the {highest} of {best['of']}: partly luck"
        yield KeyFigure(f"In the search ({objective})", number(best["value"]), detail)
    pruned = sum(trial.state == "pruned" for trial in search.trials)
    yield KeyFigure("Trials", str(len(search.trials)), f"{pruned} of them pruned")
    frames = found["frames"]
    detail = f"{number(frames['search'])} in the search, {number(frames['confirmation'])} in the confirmation"
    yield KeyFigure("Frames", number(sum(frames.values())), detail)


def _best_section(search: SearchResult, path: Path) -> Section:
    blocks: list[Block] = [Note(" ".join(verdict(search)))]
    if search.confirmed:
        blocks.append(_confirm_table(search))
    if best := search.facts.get("best"):
        blocks.append(Command(best["command"], "The best configuration"))
        blocks.append(Command(f"labrl --config-dir {path} experiment=best", "The same as a recipe"))
    return Section("best", "Best", blocks)


def _confirm_table(search: SearchResult) -> Table:
    rows, winner = [], search.winner
    for one in search.confirmed:
        ends = interval(one.estimate.low, one.estimate.high) if one.estimate else ""
        missing = [UNKNOWN] * (len(one.folders) - len(one.values))
        each = ", ".join([*map(number, one.values), *missing])
        rows.append([Cell(one.name), one.mean, ends or UNKNOWN, Cell(None, each), one.searched])
    marked = [i for i, one in enumerate(search.confirmed) if winner and one.trial == winner.trial]
    columns = ["", f"{search.objective[0]} on fresh seeds", INTERVAL, "each seed", "in the search"]
    return Table(columns, rows, marked=frozenset(marked), caption="On fresh seeds")


def _points(trials: Sequence[SearchTrial], key: str, name: str, colour: str, mark: Any) -> Line:
    values = [trial.values[0] if trial.values else math.nan for trial in trials]
    view = View([trial.number for trial in trials], values)
    labels = [f"trial {trial.number}: {_told(trial.params)}" for trial in trials]
    return Line(key, name, colour, {"trial": view}, role="points", labels=labels, mark=mark)


def _history_section(search: SearchResult) -> Section:
    pruned = [trial for trial in search.valued if trial.state == "pruned"]
    failed = [trial for trial in search.trials if trial.state == "fail"]
    sequence = sorted(search.ended, key=lambda trial: trial.number)
    best = best_so_far([trial.values[0] for trial in sequence if trial.values], search.maximize[0])
    lines = [
        _points(search.ended, "search-complete", "finished", BLUE, "dot"),
        _points(pruned, "search-pruned", "pruned, where it was stopped", GREY, "cross"),
    ]
    if failed and search.valued:
        worst = (min if search.maximize[0] else max)(
            trial.values[0] for trial in search.valued if trial.values
        )
        view = View([trial.number for trial in failed], [worst] * len(failed))
        labels = [f"trial {trial.number} failed: {trial.error}" for trial in failed]
        lines.append(
            Line(
                "search-failed",
                "failed",
                VERMILLION,
                {"trial": view},
                role="points",
                labels=labels,
                mark="cross",
            )
        )
    if len(sequence):
        numbers = [trial.number for trial in sequence]
        lines.append(Line("search-best", "best so far", GREEN, {"trial": View(numbers, best)}))
    chart = Chart("Value of each trial", {"trial": Axis("trial")}, lines, search.objective[0], tall=True)
    count = f"{len(search.ended)} finished, {len(pruned)} pruned, {len(failed)} failed"
    facts = search.facts
    note = (
        f"{len(search.trials)} trials: {count}. Sampler {facts.get('sampler')}, "
        f"pruner {facts.get('pruner', {}).get('kind')}."
    )
    blocks: list[Block] = [Note(note), chart]
    if len(search.objective) > 1:
        blocks.append(_front_chart(search))
    return Section("history", "History", blocks)


def _front_chart(search: SearchResult) -> Chart:
    trials = [trial for trial in search.ended if trial.values]
    view = View(
        [trial.values[1] for trial in trials if trial.values],
        [trial.values[0] for trial in trials if trial.values],
    )
    labels = [f"trial {trial.number}: {_told(trial.params)}" for trial in trials]
    line = Line("search-complete", "finished", BLUE, {"second": view}, role="points", labels=labels)
    return Chart(
        "One objective against the other", {"second": Axis(search.objective[1])}, [line], search.objective[0]
    )


def _hyperparameters_section(search: SearchResult) -> Section:
    blocks: list[Block] = []
    found = importances(search)
    if found:
        blocks.append(
            Note(
                "How much each key decides whether a trial is among the best (PED-ANOVA); "
                "a pruned trial counts with the value that it had come to."
            )
        )
        blocks.append(Picture(_bars(found), "Importance"))
    blocks.append(_parallel(search))
    blocks.append(Charts([_slice(search, one) for one in search.parameters], small=True))
    return Section("hyperparameters", "Hyperparameters", blocks)


def _bars(shares: Mapping[str, float]) -> str:
    """Horizontal bars, the longest first, as SVG."""
    height, left, width = 24, 220, 400
    parts = [
        f'<svg viewBox="0 0 {left + width + 60} {height * len(shares) + 4}" role="img" '
        'aria-label="Importance of each hyperparameter" style="max-width:680px" fill="currentColor">'
    ]
    largest = max(shares.values())
    for row, (key, share) in enumerate(shares.items()):
        y = row * height
        bar = width * share / largest
        parts.append(
            f'<text x="{left - 8}" y="{y + 16}" text-anchor="end" font-size="12">{html.escape(key)}</text>'
            f'<rect x="{left}" y="{y + 5}" width="{bar:.1f}" height="14" fill="{BLUE}"/>'
            f'<text x="{left + bar + 6:.1f}" y="{y + 16}" font-size="12">{100 * share:.0f} %</text>'
        )
    return "".join([*parts, "</svg>"])


def _parallel(search: SearchResult) -> Chart:
    ranked = search.ranked()
    top = {trial.number for trial in ranked[: max(1, math.ceil(TOP_SHARE * len(ranked)))]}
    shown = [*ranked, *(trial for trial in search.valued if trial.state == "pruned")][:MOST_LINES]
    lines = []
    for trial in reversed(shown):
        shares = [
            one.share(trial.params[one.key]) if one.key in trial.params else math.nan
            for one in search.parameters
        ]
        name = f"trial {trial.number}: {number(trial.values[0] if trial.values else None)}"
        view = {"key": View(range(len(shares)), shares)}
        if trial.number in top:
            lines.append(Line("search-top", name, BLUE, view))
        else:
            state = "search-pruned" if trial.state == "pruned" else "search-complete"
            lines.append(Line(state, name, GREY, view, "seed"))
    axis = Axis("", ticks=[one.key.rpartition(".")[2] for one in search.parameters])
    title = "Each trial as a line: blue are the best, grey the others"
    return Chart(
        title, {"key": axis}, lines, "from the low to the high end of each range", tall=True, fixed_y=(0, 1)
    )


def _slice(search: SearchResult, parameter: Parameter) -> Chart:
    lines = []
    for state, name, colour, mark in (
        ("complete", "finished", BLUE, "dot"),
        ("pruned", "pruned", GREY, "cross"),
    ):
        places, values = scatter(search, parameter, state)  # type: ignore[arg-type]
        view = {"place": View(places, values)}
        lines.append(
            Line(f"search-{state}", name, colour, view, role="points", mark=mark)  # type: ignore[arg-type]
        )
    label = f"log10 of {parameter.key}" if parameter.log else parameter.key
    axis = Axis(label, ticks=[str(choice) for choice in parameter.choices])
    return Chart(parameter.key, {"place": axis}, lines, search.objective[0])


def _curves_section(search: SearchResult, path: Path) -> Section | None:
    """The winner and the default on the same fresh seeds."""
    chosen = [
        (one, colour) for one, colour in ((search.winner, BLUE), (search.default, GREY)) if one is not None
    ]
    if search.winner is None:
        return None
    runs = {one.name: runs_of(one, path) for one, _ in chosen}
    axes = Axes([run for several in runs.values() for run in several])
    lines = []
    for one, colour in chosen:
        name = one.name
        curves = {
            axis: [
                return_curve(session, axis, evaluates(run)) for run in runs[name] for session in run.sessions
            ]
            for axis in axes.labels
        }
        views = {axis: view for axis, own in curves.items() if (view := axes.middle(axis, own))}
        if views:
            lines.append(Line(f"search-{name.replace(' ', '-')}", name, colour, views))
    if not lines:
        return None
    chart = Chart("Return on fresh seeds", axes.labels, lines, f"with its {INTERVAL}", tall=True)
    return Section("against-default", "Best against default", [chart])


def _trials_section(search: SearchResult) -> Section:
    keys = [one.key for one in search.parameters]
    rows, dim = [], []
    order = {trial.number: place for place, trial in enumerate(search.ranked())}
    ranked = sorted(search.trials, key=lambda trial: (order.get(trial.number, math.inf), trial.number))
    for row, trial in enumerate(ranked):
        state = {"complete": "finished", "fail": "failed"}.get(trial.state, trial.state)
        if trial.state == "pruned" and trial.intermediate:
            state = f"pruned at {max(trial.intermediate):,}"
        values = [*(trial.values or ()), *[None] * len(search.objective)][: len(search.objective)]
        params = [trial.params.get(key) for key in keys]
        rows.append(
            [trial.number, Cell(state, state, detail=trial.error or ""), *values, *map(_cell, params)]
        )
        if trial.state != "complete":
            dim.append(row)
    columns = ["trial", "state", *search.objective, *keys]
    table = Table(
        columns, rows, dim=frozenset(dim), caption="Every trial, the best first", folded=len(rows) > 12
    )
    return Section("search-trials", "Searched values", [table])


def _cell(value: Any) -> Cell | float | str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _told(params: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={number(value) if isinstance(value, float) else value}" for key, value in params.items()
    )
