"""The sections of a report that only a search has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colours import BLUE, GREEN, GREY, VERMILLION, Style
from labrl.analysis.formats import INTERVAL, UNKNOWN, interval, interval_by, number
from labrl.analysis.report.page import Block, Cell, Charts, Command, KeyFigure, Note, Section, Table
from labrl.analysis.search import (
    Parameter,
    SearchResult,
    SearchTrial,
    best_so_far,
    importances,
    runs_of,
    verdict,
)
from labrl.analysis.series import AXES, TimeAxes, evaluates, return_curve

MOST_LINES = 200
"""Trials in parallel coordinates: the best ones, where there are more."""

TOP_SHARE = 0.1
"""Of the complete trials, those that have a colour there."""


def search_sections(search: SearchResult, path: Path) -> list[Section]:
    """What a search came to, its history, its hyperparameters, its best against the default.

    path: the experiment folder.
    """
    sections = [_best_section(search, path), _history_section(search)]
    if len(search.valued) > 1:
        sections.append(_hyperparameters_section(search))
    curves = _curves_section(search, path)
    return [*sections, *([curves] if curves else []), _trials_section(search)]


def search_figures(search: SearchResult, found: Mapping[str, Any]) -> Iterator[KeyFigure]:
    """The numbers on top of the report. found: what `summary` says of the search."""
    objective = search.objective[0]
    for one in (search.winner, search.default):
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
    return Table(columns, rows, "On fresh seeds", marked=marked)


def _points(
    trials: Sequence[SearchTrial], state: str, axis: str, places: Sequence[float], heights: Sequence[float]
) -> Line:
    """The trials that ended in a state, each with its number and values to hover over."""
    name, colour, mark = {
        "complete": ("finished", BLUE, "dot"),
        "pruned": ("pruned, where it was stopped", GREY, "cross"),
        "fail": ("failed", VERMILLION, "cross"),
    }[state]
    labels = [f"trial {one.number}{_failure(one)}: {_told(one.params)}" for one in trials]
    view = {axis: View(places, heights)}
    return Line(f"search-{state}", name, Style(colour), view, "points", labels=labels, mark=mark)  # type: ignore[arg-type]


def _failure(trial: SearchTrial) -> str:
    return f" failed: {trial.error}" if trial.state == "fail" else ""


def _values(trials: Sequence[SearchTrial], place: int = 0) -> list[float]:
    return [trial.values[place] if trial.values else math.nan for trial in trials]


def _history_section(search: SearchResult) -> Section:
    states = {state: search.of_state(state) for state in ("complete", "pruned", "fail")}
    lines = [
        _points(trials, state, "trial", [trial.number for trial in trials], _values(trials))
        for state, trials in states.items()
        if state != "fail"
    ]
    if states["fail"] and search.valued:
        # a failed trial has no value: it stands at the worst of the others
        worst = (min if search.maximize[0] else max)(_values(search.valued))
        failed = states["fail"]
        at = [trial.number for trial in failed]
        lines.append(_points(failed, "fail", "trial", at, [worst] * len(failed)))
    sequence = sorted(search.ended, key=lambda trial: trial.number)
    if sequence:
        best = best_so_far(_values(sequence), search.maximize[0])
        last = max(trial.number for trial in search.trials)
        view = View([*(trial.number for trial in sequence), last], [*best, best[-1]])
        lines.append(Line("search-best", "best so far", Style(GREEN), {"trial": view}, step=True))
    axes = {"trial": Axis("trial", whole=True)}
    chart = Chart("Value of each trial", axes, lines, search.objective[0], tall=True)
    count = f"{len(search.ended)} finished, {len(states['pruned'])} pruned, {len(states['fail'])} failed"
    facts = search.facts
    note = f"{len(search.trials)} trials: {count}. Sampler {facts.get('sampler')}, "
    blocks: list[Block] = [Note(f"{note}pruner {facts.get('pruner', {}).get('kind')}."), Charts([chart])]
    if len(search.objective) > 1:
        ended = search.ended
        line = _points(ended, "complete", "second", _values(ended, 1), _values(ended))
        axes = {"second": Axis(search.objective[1])}
        blocks.append(Charts([Chart("One objective against the other", axes, [line], search.objective[0])]))
    return Section("history", "History", blocks)


def _hyperparameters_section(search: SearchResult) -> Section:
    blocks: list[Block] = []
    if found := importances(search):
        note = "How much each key decides whether a trial is among the best (PED-ANOVA); a pruned trial "
        blocks.append(Note(f"{note}counts with the value that it had come to."))
        most = max(found.values())
        bars = {key: Cell(share, f"{100 * share:.0f} %", bar=share / most) for key, share in found.items()}
        rows: list[list[Cell | str]] = [[key, cell] for key, cell in bars.items()]
        blocks.append(Table(["key", "importance"], rows, "Importance"))
    slices = Charts([_slice(search, one) for one in search.parameters], small=True)
    return Section("hyperparameters", "Hyperparameters", [*blocks, Charts([_parallel(search)]), slices])


def _parallel(search: SearchResult) -> Chart:
    """Each trial as a line through its values, the best ones coloured."""
    top = {trial.number for trial in search.ranked()[: max(1, math.ceil(TOP_SHARE * len(search.ended)))]}
    lines = []
    for trial in reversed([*search.ranked(), *search.of_state("pruned")][:MOST_LINES]):
        shares = [
            one.share(trial.params[one.key]) if one.key in trial.params else math.nan
            for one in search.parameters
        ]
        name = f"trial {trial.number}: {number(trial.values[0] if trial.values else None)}"
        view = {"key": View(range(len(shares)), shares)}
        best = trial.number in top
        key = "search-top" if best else f"search-{trial.state}"
        style = Style(BLUE) if best else Style(GREY)
        lines.append(Line(key, name, style, view, "center" if best else "reference"))
    axis = Axis("", ticks=[one.key.rpartition(".")[2] for one in search.parameters])
    title = "Each trial as a line: blue are the best, grey the others"
    unit = "from the low to the high end of each range"
    return Chart(title, {"key": axis}, lines, unit, tall=True, fixed_y=(0, 1))


def _slice(search: SearchResult, parameter: Parameter) -> Chart:
    lines = []
    for state in ("complete", "pruned"):
        trials = [trial for trial in search.of_state(state) if parameter.key in trial.params]
        places = [parameter.place(trial.params[parameter.key]) for trial in trials]
        lines.append(_points(trials, state, "place", places, _values(trials)))
    ticks = [str(choice) for choice in parameter.choices]
    axis = Axis(parameter.key, ticks, log=parameter.log, whole=parameter.whole)
    return Chart(parameter.key, {"place": axis}, lines, search.objective[0])


def _curves_section(search: SearchResult, path: Path) -> Section | None:
    """The winner and the default on the same fresh seeds."""
    if search.winner is None:
        return None
    chosen = [(one, colour) for one, colour in ((search.winner, BLUE), (search.default, GREY)) if one]
    runs = {one.name: runs_of(one, path) for one, _ in chosen}
    axes = TimeAxes([run for several in runs.values() for run in several])
    lines = []
    for one, colour in chosen:
        curves = [
            {axis: return_curve(session, axis, evaluates(run)) for axis in AXES}
            for run in runs[one.name]
            for session in run.sessions
        ]
        if views := axes.middles(curves):
            lines.append(Line(f"search-{one.name.replace(' ', '-')}", one.name, Style(colour), views))
    chart = Chart("Return on fresh seeds", axes.axes, lines, f"with its {INTERVAL}", tall=True)
    return Section("against-default", "Best against default", [Charts([chart])]) if lines else None


def _trials_section(search: SearchResult) -> Section:
    keys = [one.key for one in search.parameters]
    order = {trial.number: place for place, trial in enumerate(search.ranked())}
    ranked = sorted(search.trials, key=lambda trial: (order.get(trial.number, math.inf), trial.number))
    rows: list[list[Any]] = []
    for trial in ranked:
        state = {"complete": "finished", "fail": "failed"}.get(trial.state, trial.state)
        if trial.state == "pruned" and trial.intermediate:
            state = f"pruned at {max(trial.intermediate):,}"
        values = [*(trial.values or ()), *[None] * len(search.objective)][: len(search.objective)]
        params = [trial.params.get(key) for key in keys]
        told = [
            p if p is None or (isinstance(p, int | float) and p not in (True, False)) else str(p)
            for p in params
        ]
        label = Cell(trial.number, str(trial.number))
        rows.append([label, Cell(state, detail=trial.error or ""), *values, *told])
    dim = [row for row, trial in enumerate(ranked) if trial.state != "complete"]
    columns = ["trial", "state", *search.objective, *keys]
    table = Table(columns, rows, "Every trial, the best first", dim=dim, folded=len(rows) > 12)
    return Section("search-trials", "Searched values", [table])


def _told(params: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={number(value) if isinstance(value, float) else value}" for key, value in params.items()
    )
