"""The report of several groups of runs: an experiment, a search, or any runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colours import GREY, Style, group_styles
from labrl.analysis.figures import Sheet
from labrl.analysis.formats import INTERVAL, UNKNOWN, interval, interval_by, moment, number, typed
from labrl.analysis.groups import Group, by_env, told, varied
from labrl.analysis.intervals import PAIR_METHOD
from labrl.analysis.report.page import (
    Block,
    Cell,
    Charts,
    Command,
    Controls,
    KeyFigure,
    Note,
    Report,
    Section,
    Table,
    Toggle,
    relative,
)
from labrl.analysis.report.search import search_figures, search_sections
from labrl.analysis.report.trial import group_figure
from labrl.analysis.returns import MEANING, NAMES
from labrl.analysis.runs import Experiment, Run
from labrl.analysis.search import SearchResult, verdict
from labrl.analysis.series import AXES, TimeAxes, evaluates, return_curve
from labrl.analysis.settings import Setting, settings
from labrl.analysis.statistics import final_return, improvement, ranked, statistic_of, values_of

MOST_NAMED = 8
"""Groups that have a colour of their own; the others are grey lines behind them."""

MOST_IN_MATRIX = 10
"""Groups up to which every one is set against every other."""

MOST_VERDICTS = 4
"""Environments that the sentences and numbers on top speak of."""


@dataclass(frozen=True)
class Member:
    """A group of a comparison in its environment."""

    group: Group
    entry: Mapping[str, Any]
    """Of `group_statistics`."""
    style: Style
    named: bool
    """Whether it is one of the best, which have a colour of their own."""
    key: str
    """What hides its curves."""


@dataclass(frozen=True)
class EnvComparison:
    """The groups of one environment beside each other."""

    entry: Mapping[str, Any]
    """One of `compare`'s `envs`."""
    members: Sequence[Member]
    axes: TimeAxes
    suffix: str
    """Behind the names of anchors and files where there are several environments."""
    where: str
    """Behind the titles, likewise."""

    @classmethod
    def of(
        cls, entry: Mapping[str, Any], groups: Sequence[Group], axes: TimeAxes, several: bool
    ) -> EnvComparison:
        """entry: the statistics of the environment; groups: those in it, in the same order."""
        slug = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in entry["env"])
        suffix, entries = f"_{slug}" if several else "", entry["groups"]
        order = [one["name"] for _, one in ranked(entries)]
        order += [one["name"] for one in entries if one["name"] not in order]
        best = set(order[:MOST_NAMED])
        styles = iter(group_styles([group.agent for group in groups if group.name in best]))
        members = [
            Member(
                group,
                one,
                next(styles) if group.name in best else Style(GREY),
                group.name in best,
                f"{group.name if group.name in best else 'others'}{suffix}",
            )
            for group, one in zip(groups, entries, strict=True)
        ]
        return cls(entry, members, axes, suffix, f" on {entry['env']}" if several else "")

    def parts(self) -> tuple[list[Section], list[Sheet]]:
        """The sections and the plots of the environment."""
        curves, scores, profile = self._curves(), self._scores_chart(), self._profile()
        title = str(self.entry["env"])
        sheets = [Sheet(f"return_{axis}{self.suffix}", [curves], axis, title) for axis in AXES]
        sections = [self._curves_section(curves)]
        blocks: list[Block] = [self._scores_table()]
        if (pairs := self._pairs()) is not None:
            blocks += [pairs, Note(f"95 % intervals: {PAIR_METHOD}.")]
        if profile is not None:
            blocks.append(Charts([scores, profile]))
            sheets.append(Sheet(f"scores{self.suffix}", [scores], "group", title))
            sheets.append(Sheet(f"profile{self.suffix}", [profile], "score", title))
        sections.append(Section(f"scores{self.suffix}", f"Scores{self.where}", blocks))
        found = settings([one.group for one in self.members], self.entry["groups"])
        by_setting: list[Block] = []
        for setting in found:
            charts = list(self._measures(setting))
            by_setting += [Note(f"Against {setting.key}:"), Charts(charts, small=True)]
            name = f"measures_{setting.key.replace('/', '.')}{self.suffix}"
            sheets.append(Sheet(name, charts, "value", f"{title}, against {setting.key}"))
        if found:
            sections.append(Section(f"settings{self.suffix}", f"By setting{self.where}", by_setting))
        return sections, sheets

    def _curves(self) -> Chart:
        lines: list[Line] = []
        for one in self.members:
            found = [
                (session, {axis: return_curve(session, axis, evaluates(run)) for axis in AXES})
                for run in one.group.runs
                for session in run.sessions
            ]
            views = self.axes.middles([curves for _, curves in found])
            if not views:
                continue
            name, style = one.group.name, one.style
            if not one.named:
                bare = {axis: View(view.x, view.y) for axis, view in views.items()}
                lines.append(Line(one.key, name, style, bare, "reference"))
                continue
            for place, (session, curves) in enumerate(found):
                seed = session.index if session.seed is None else session.seed
                own = self.axes.views(curves)
                said = f"{name}, seed {seed}"
                lines.append(Line(f"{one.key} {place}", said, style, own, "seed", group=one.key))
            lines.append(Line(one.key, name, style, views))
        rigorous = all(evaluates(run) for one in self.members for run in one.group.runs)
        unit = f"of {'evaluation' if rigorous else 'training'} episodes"
        return Chart("Return", self.axes.axes, lines, unit, tall=True)

    def _curves_section(self, chart: Chart) -> Section:
        toggles = [Toggle(one.key, one.group.name, one.style) for one in self.members if one.named]
        most = max(len(one.group.sessions) for one in self.members)
        note = f"{NAMES[statistic_of(most)].capitalize()} over the seeds of a group, with its {INTERVAL}. "
        note += "Drag to zoom, double-click to see all; a click on a name hides it."
        if len(toggles) < len(self.members):
            others = len(self.members) - len(toggles)
            toggles.append(Toggle(f"others{self.suffix}", f"{others} others", Style(GREY)))
            note += f" Of {len(self.members)} groups the {MOST_NAMED} best have a colour."
        controls = Controls({"frame": "frames", "wall": "wall time"}, toggles, seeds=False)
        return Section(f"curves{self.suffix}", f"Curves{self.where}", [controls, Charts([chart]), Note(note)])

    def _scores_table(self) -> Table:
        entries = self.entry["groups"]
        most = max((group["counted"] for group in entries), default=0)
        columns = ["group", "seeds", f"final return ({'IQM' if statistic_of(most) == 'iqm' else 'mean'})"]
        columns += [INTERVAL, "mean", "best", "average return", "strength", "sample efficiency", "stability"]
        columns += ["consistency", "frames/s"]
        humans = any("human_normalized" in group["estimates"] for group in entries)
        names = (
            "final_return",
            "best_return",
            "area_under_curve",
            "strength",
            "sample_efficiency",
            "stability",
        )
        by_name = {one.group.name: one for one in self.members}
        order = [group for _, group in ranked(entries)]
        rows: list[Sequence[Any]] = []
        for group in [*order, *(group for group in entries if group not in order)]:
            means = {name: facts["mean"] for name, facts in group["measures"].items()}
            middle = group_figure(group)
            rows.append(
                [
                    Cell(group["name"], colour=by_name[group["name"]].style.colour),
                    Cell(group["counted"], str(group["counted"])),
                    middle.value if middle else None,
                    (interval(middle.low, middle.high) if middle else "") or UNKNOWN,
                    *(means[name] for name in names),
                    group["consistency"],
                    Cell(means["fps"], number(means["fps"], 3)),
                    *([means["human_normalized"]] if humans else []),
                ]
            )
        return Table([*columns, "human-normalized"] if humans else columns, rows)

    def _scores_chart(self) -> Chart:
        """The final return of each named group with its interval, and of each of its seeds."""
        shown = [one for one in self.members if one.named and one.entry["counted"]]
        shown.sort(key=lambda one: -final_return(one.entry).value)  # type: ignore[union-attr]
        lines = []
        for place, one in enumerate(shown):
            scores, middle = values_of(one.entry, "final_return"), group_figure(one.entry)
            seeds = View(np.full(len(scores), place), scores)
            name = f"{one.group.name}, each seed"
            lines.append(Line(one.key, name, one.style, {"group": seeds}, "points", mark="cross"))
            if middle is not None:
                ends = ([middle.low], [middle.high]) if middle.low is not None else ()
                view = View([place], [middle.value], *ends)
                lines.append(Line(one.key, one.group.name, one.style, {"group": view}, "points"))
        axis = Axis("", ticks=[one.group.name for one in shown])
        return Chart("Final return", {"group": axis}, lines, f"with its {INTERVAL}, and of each seed")

    def _pairs(self) -> Table | None:
        """How likely a seed of the row's group beats one of the column's."""
        pairs, caption = self.entry["improvement"], f"Probability of improvement{self.where}"
        names = list(dict.fromkeys(pair[side] for pair in pairs for side in ("x", "y")))
        if len(names) < 2:
            return None
        if len(names) > MOST_IN_MATRIX:
            rows = [
                [pair["x"], pair["y"], pair["value"], interval(pair["low"], pair["high"]) or UNKNOWN]
                for pair in pairs
            ]
            return Table(["a seed of", "beats one of", "probability", "95 % interval"], rows, caption)
        matrix: list[Sequence[Cell | str]] = []
        for x in names:
            found = [improvement(self.entry, x, y) for y in names]
            cells = [
                Cell(None, "") if p is None else Cell(p.value, f"{p.value:.2f}", interval(p.low, p.high))
                for p in found
            ]
            matrix.append([x, *cells])
        return Table(["a seed of … beats one of", *names], matrix, caption)

    def _profile(self) -> Chart | None:
        profile = self.entry["profile"]
        if not profile:
            return None
        lines = [
            Line(
                one.key,
                one.group.name,
                one.style,
                {"score": View(profile["thresholds"], found["value"], found["low"], found["high"])},
                step=True,
            )
            for one in self.members
            if one.named and (found := profile["groups"].get(one.group.name))
        ]
        axes = {"score": Axis("final return")}
        return Chart("Performance profile", axes, lines, "share of seeds above a return", fixed_y=(0.0, 1.0))

    def _measures(self, setting: Setting) -> Iterator[Chart]:
        """Each measure against one hyperparameter that differs."""
        agents = [one.group.agent for one in self.members]
        styles = dict(zip(dict.fromkeys(agents), group_styles(list(dict.fromkeys(agents))), strict=True))
        places = np.log10(setting.places) if setting.logarithmic else setting.places
        axis = Axis(setting.key, setting.names, log=setting.logarithmic, whole=setting.whole)
        for name, estimates in setting.measures.items():
            lines = []
            for agent, style in styles.items():
                own = [i for i, other in enumerate(agents) if other == agent and estimates[i] is not None]
                columns = np.array([estimates[i] for i in own], dtype=np.float64).reshape(-1, 3)
                view = View(places[own], *columns.T)
                labels = [self.members[i].group.name for i in own]
                lines.append(Line(f"by {agent}", agent, style, {"value": view}, "points", labels=labels))
            yield Chart(name.capitalize(), {"value": axis}, lines)


@dataclass(frozen=True)
class Comparison:
    """What a report of several groups is made of."""

    title: str
    groups: Sequence[Group]
    statistics: Mapping[str, Any]
    """Of `compare`."""
    folder: Path
    """Where the report will lie."""
    status: str
    experiment: Experiment | None = None
    """Whose trials they are, if all are of one."""
    search: SearchResult | None = None
    """Where it is one: what it confirmed on fresh seeds is the verdict of the report."""


def comparison_report(comparison: Comparison) -> tuple[Report, list[Sheet]]:
    """Curves, scores, pairs and profiles by environment, then the trials and what differs between them."""
    statistics, groups, search = comparison.statistics, comparison.groups, comparison.search
    info = comparison.experiment.info if comparison.experiment else {}
    sections, sheets = [], []
    if comparison.experiment is not None and search is not None:
        sections += search_sections(search, comparison.experiment.path)
    axes = TimeAxes([run for group in groups for run in group.runs])
    for entry, own in zip(statistics["envs"], by_env(groups).values(), strict=True):
        found = EnvComparison.of(entry, own, axes, len(statistics["envs"]) > 1).parts()
        sections += found[0]
        sheets += found[1]
    if statistics["across"]:
        sections.append(_across_section(statistics["across"]))
    sections += [_trials_section(comparison), _groups_section(groups, info)]
    if search is None:
        sentences = [_verdict(entry) for entry in statistics["envs"]][:MOST_VERDICTS]
        figures = list(_figures(comparison))
    else:
        sentences = list(verdict(search))
        figures = list(search_figures(search, statistics["search"]))
    report = Report(
        title=comparison.title,
        subtitle=moment(info["created"]) if info.get("created") else "",
        status=comparison.status,
        verdict=" ".join(sentences),
        figures=figures,
        warnings=list(_warnings(comparison)),
        sections=sections,
        facts={"": str(comparison.folder)},
    )
    return report, sheets


def _verdict(entry: Mapping[str, Any]) -> str:
    """Which group of an environment has the highest return, and whether the seeds tell it from the next."""
    found, env = ranked(entry["groups"]), entry["env"]
    if not found:
        return f"{env}: no group has a return yet."
    best = group_figure(found[0][1])
    assert best is not None
    name = found[0][1]["name"]
    if len(found) == 1:
        return f"On {env} {name} has a final return of {best.sentence()}."
    (second, other), pair = found[1], improvement(entry, name, found[1][1]["name"])
    head = f"On {env} {name} is best" if entry["best"] else f"On {env} no group is clearly the best: {name}"
    told_of = f"{head} {'with' if entry['best'] else 'has'} a final return of {best.sentence()}, "
    told_of += f"before {other['name']} with {number(second.value)}."
    if pair is None:
        return told_of
    spread = f" (95 % interval {ends}, {PAIR_METHOD})" if (ends := interval(pair.low, pair.high)) else ""
    return (
        f"{told_of} A seed of {name} beats one of {other['name']} with probability {pair.value:.2f}{spread}."
    )


def _figures(comparison: Comparison) -> Iterator[KeyFigure]:
    entries = comparison.statistics["envs"]
    for entry in entries[:MOST_VERDICTS]:
        if found := ranked(entry["groups"]):
            (value, low, high), best = found[0]
            where = f" on {entry['env']}" if len(entries) > 1 else ""
            yield KeyFigure(f"Highest return{where}: {best['name']}", number(value), interval_by(low, high))
    runs = [run for group in comparison.groups for run in group.runs]
    trials = comparison.experiment.info.get("trials", []) if comparison.experiment else []
    sessions = [session for entry in entries for group in entry["groups"] for session in group["sessions"]]
    yield KeyFigure("Groups", str(len(comparison.groups)), "that differ in more than the seed")
    yield KeyFigure("Trials", str(len(trials) or len(runs)), f"{len(sessions)} sessions")
    frames = sum(session["frames"] for session in sessions)
    yield KeyFigure("Frames", number(float(frames)), "of all sessions")


def _warnings(comparison: Comparison) -> Iterator[str]:
    """Everything to keep in mind, with the environment and the groups that it is said of."""
    yield from comparison.experiment.warnings if comparison.experiment else ()
    yield from comparison.statistics["warnings"]
    envs = comparison.statistics["envs"]
    for entry in envs:
        where = f"{entry['env']}, " if len(envs) > 1 else ""
        yield from (f"{where}{warning}" for warning in entry["warnings"])
        said: dict[str, list[str]] = {}
        for group in entry["groups"]:
            for warning in group["warnings"]:
                said.setdefault(warning, []).append(group["name"])
        for warning, names in said.items():
            who = "every group" if len(names) == len(entry["groups"]) else ", ".join(names[:3])
            who += " and others" if 3 < len(names) < len(entry["groups"]) else ""
            yield warning if len(comparison.groups) == 1 else f"{where}{who}: {warning}"


def _across_section(across: Mapping[str, Any]) -> Section:
    rows = [
        [group["name"], Cell(group["sessions"], str(group["sessions"])), name, e["value"], ends or UNKNOWN]
        for group in across["groups"]
        for name, e in group["human_normalized"].items()
        for ends in [interval(e["low"], e["high"])]
    ]
    note = f"Over {len(across['envs'])} games that every group has played: {', '.join(across['envs'])}."
    columns = ["group", "sessions", "human-normalized", "value", INTERVAL]
    return Section("across", "Over games", [Note(note), Table(columns, rows)])


def _trials_section(comparison: Comparison) -> Section:
    """Every trial with what it reached, and a link to its own report."""
    names = {run.path.resolve(): group.name for group in comparison.groups for run in group.runs}
    runs = {run.path.resolve(): run for group in comparison.groups for run in group.runs}
    finals = _finals(comparison)
    trials: list[tuple[Path | None, Mapping[str, Any]]] = []
    if comparison.experiment is not None:
        home = comparison.experiment.path.resolve()
        listed = comparison.experiment.info.get("trials", [])
        trials = [((home / str(trial.get("folder"))).resolve(), trial) for trial in listed]
    trials += [(path, {}) for path in runs if path not in {path for path, _ in trials}]
    rows: list[list[Cell | float | str | None]] = []
    for path, trial in trials:
        run, facts = runs.get(path) if path else None, finals.get(path, {}) if path else {}
        count = trial.get("number", len(rows))
        status = str(trial.get("status", ""))
        if run is not None and status in ("", "running"):
            status = run.status
        seed = None if run is None else run.seed
        rows.append(
            [
                Cell(count, str(count)),
                Cell(UNKNOWN) if run is None else Cell(run.name, link=_link(run, comparison.folder)),
                names.get(path, "") if path else "",
                status,
                Cell(seed, UNKNOWN if seed is None else str(seed)),
                *(facts.get(name) for name in ("final", "best", "frames")),
                str(trial.get("error") or ""),
            ]
        )
    columns = ["trial", "run", "group", "status", "seed", "final return", "best", "frames", "error"]
    failed = [i for i, row in enumerate(rows) if row[3] == "failed"]
    dim = [i for i, row in enumerate(rows) if row[3] in ("pruned", "waiting")]
    note = Note(f"The {MEANING}; of several sessions the mean.")
    return Section("trials", "Trials", [Table(columns, rows, marked=failed, dim=dim), note])


def _link(run: Run, folder: Path) -> str:
    report = run.path / "report.html"
    return relative(report, folder) if report.exists() else ""


def _finals(comparison: Comparison) -> dict[Path, dict[str, Any]]:
    """By folder of the run: its final and best return and its frames, over its sessions.

    Names do not tell runs apart: each experiment has a first trial.
    """
    sessions: dict[Path, list[Mapping[str, Any]]] = {}
    for entry, own in zip(comparison.statistics["envs"], by_env(comparison.groups).values(), strict=True):
        for facts, group in zip(entry["groups"], own, strict=True):
            paths = [run.path.resolve() for run in group.runs for _ in run.sessions]
            for path, session in zip(paths, facts["sessions"], strict=True):
                sessions.setdefault(path, []).append(session)
    found = {}
    for path, facts_of in sessions.items():
        finals = [s["final_return"] for s in facts_of if s["final_return"] is not None]
        best = [s["best_return"] for s in facts_of if s["best_return"] is not None]
        found[path] = {
            "final": float(np.mean(finals)) if finals else None,
            "best": max(best, default=None),
            "frames": max(session["frames"] for session in facts_of),
        }
    return found


def _groups_section(groups: Sequence[Group], info: Mapping[str, Any]) -> Section:
    """What was typed, at first and at each resume, and what differs between the groups."""
    firsts = [group.runs[0] for group in groups]
    blocks: list[Block] = []
    if command := typed(info.get("command")):
        blocks.append(Command(command, "What was typed:"))
    if resumes := info.get("resumes"):
        rows = [[moment(entry.get("time")), typed(entry.get("command"))] for entry in resumes]
        blocks.append(Table(["resumed", "command"], rows, caption="Resumed"))
    if different := varied(firsts):
        keys = list(different)[:20]
        rows = [[group.name, *(told(different[key][i]) for key in keys)] for i, group in enumerate(groups)]
        blocks.append(Table(["group", *keys], rows, caption="What differs between the groups"))
    versions = sorted({_code(run) for group in groups for run in group.runs})
    of = f"{len(versions)} versions of the code" if len(versions) > 1 else "one code"
    blocks.append(Note(f"The runs are of {of}: {'; '.join(versions)}."))
    whole = yaml.safe_dump(firsts[0].config, sort_keys=False, allow_unicode=True)
    blocks.append(Command(whole, f"the whole configuration of {groups[0].name}", folded=True))
    return Section("configuration", "Configuration", blocks)


def _code(run: Run) -> str:
    git = (run.provenance.get("git") or {}).get("labrl") or {}
    version = run.provenance.get("packages", {}).get("labrl", UNKNOWN)
    commit = str(git.get("commit") or "")[:10]
    changed = " with changes" if git.get("dirty") else ""
    return f"labrl {version}" + (f", commit {commit}{changed}" if commit else "")
