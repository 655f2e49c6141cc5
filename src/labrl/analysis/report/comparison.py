"""The report of several groups of runs: an experiment, a search, or any runs that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labrl.analysis.charts import Axis, Chart, Line, View
from labrl.analysis.colors import GRAY, Style, group_styles
from labrl.analysis.figures import Sheet
from labrl.analysis.formats import UNKNOWN, join_names, moment, number
from labrl.analysis.groups import Group, by_env, distinguishing_keys, group_by_key, value_text
from labrl.analysis.intervals import FEWEST_FOR_BEST, PAIR_MEANING, PAIR_METHODS, aggregates
from labrl.analysis.report.page import relative
from labrl.analysis.report.search_charts import search_content
from labrl.analysis.returns import NAMES, GroupReturn, group_return, improvement_text, statistic_name
from labrl.analysis.search_result import read_search, summary, verdict
from labrl.analysis.series import AXES, TimeAxes, Views, split
from labrl.analysis.stages import best_of, compare_entries, next_text, pair_text, stages_of
from labrl.analysis.statistics import (
    compare,
    final_return,
    improvement,
    rank_groups,
    statistic_of,
    values_of,
)
from labrl.analysis.tables import differences
from labrl.run.experiment import Experiment
from labrl.run.run import Run
from labrl.run.session import RunSession
from labrl.types import INFO

MOST_NAMED = 8
"""Maximum number of groups with their own color; the other groups are gray lines behind them."""

MOST_IN_MATRIX = 10
"""Largest number of groups for which every pair is shown as a matrix."""

MOST_VERDICTS = 4
"""Largest number of environments that the sentences and numbers at the top describe."""

SETTING_MEASURES = {
    "final_return": "Final return",
    "area_under_curve": "Average return",
    "strength": "Strength",
    "sample_efficiency": "Sample efficiency",
    "stability": "Stability",
    "fps": "Frames/s",
}
"""Measures of a session that are drawn over the values of a setting, with the titles of their charts."""

MOST_KEYS = 6
"""Maximum number of keys for which measures are drawn over the values of the key."""


def comparison_report(
    groups: Sequence[Group], folder: Path, title: str, experiment: Experiment | None = None
) -> tuple[dict[str, Any], list[Sheet], dict[str, Any]]:
    """Return the content of a comparison's page, its plots and the statistics.

    The content has the curves, scores, pairs and profiles of each environment, the trials, and the
    differences between them. folder: folder of the report; experiment: the experiment that contains all
    trials; None if there is no such experiment. Trials of a search are named by their number, and the verdict
    is what the search confirmed on fresh seeds.
    """
    runs = [run for group in groups for run in group.runs]
    search = read_search(experiment.info) if experiment else None
    if experiment is not None and search is not None:
        numbers = [experiment.number_of(group.runs[0]) for group in groups]
        groups = [
            group if number is None or numbers.count(number) > 1 else group._replace(name=f"trial {number}")
            for group, number in zip(groups, numbers, strict=True)
        ]
    statistics = compare(groups)
    if (stages := stages_of(experiment)) is not None:
        for entry in statistics["envs"]:
            if len(entry["groups"]) > 1:
                entry["stages"] = compare_entries(entry["groups"], stages)
                entry["best"] = best_of(entry["stages"])
    if experiment is not None and search is not None:
        statistics["search"] = summary(search, runs, experiment.path)
    info = {"command": None, "resumes": None, **(experiment.info if experiment else {})}
    entries, axes = statistics["envs"], TimeAxes(runs)
    envs = [
        EnvComparison(entry, own, axes, len(entries) > 1)
        for entry, own in zip(entries, by_env(groups).values(), strict=True)
    ]
    going_on = "running" if any(run.status == "running" for run in runs) else "finished"
    content = {
        "search": search,
        "searched": search_content(search) if search else None,
        "path": experiment.path if experiment else None,
        "envs": envs,
        "pair_method": PAIR_METHODS,
        "pair_meaning": PAIR_MEANING,
        "aggregate_names": NAMES,
        "improvement": improvement,
        "final_return": final_return,
        "pair_text": pair_text,
        "next_text": next_text,
        "most_in_matrix": MOST_IN_MATRIX,
        "statistics": statistics,
        "best": [
            (entry["env"], *found[0])
            for entry in entries[:MOST_VERDICTS]
            if (found := rank_groups(entry["groups"]))
        ],
        "trials": list(_trials(statistics, groups, folder, experiment)),
        "several_sessions": any(len(run.sessions) > 1 for run in runs),
        "groups": groups,
        "info": info,
        "differences": differences,
        "versions": sorted(set(map(_code, runs))),
        "title": title,
        "subtitle": moment(info["created"]) if info.get("created") else "",
        "status": experiment.status if experiment else going_on,
        "verdict": " ".join(
            verdict(search) if search else (_verdict(one, experiment) for one in entries[:MOST_VERDICTS])
        ),
        "warnings": list(_warnings(statistics, groups, experiment)),
        "footer": str(folder),
    }
    return content, [sheet for env in envs for sheet in env.sheets()], statistics


class Member(NamedTuple):
    """A group of a comparison in its environment."""

    group: Group
    entry: Mapping[str, Any]
    """Result of `group_statistics`."""
    final: GroupReturn | None
    style: Style
    named: bool
    """Whether the group is one of the best, which have their own colors."""
    key: str
    """Key by which the curves of the group are hidden."""


class EnvComparison:
    """The comparison of the groups in one environment."""

    def __init__(
        self, entry: Mapping[str, Any], groups: Sequence[Group], axes: TimeAxes, several: bool
    ) -> None:
        """entry: the statistics of the environment; groups: its groups, in the order of `entry`; several:
        whether there are several environments, so that anchors, files and titles include the environment's
        name."""
        self.entry, self._axes, entries = entry, axes, entry["groups"]
        slug = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in entry["env"])
        self.suffix, self.where = (f"_{slug}", f" on {entry['env']}") if several else ("", "")
        order = [one["name"] for _, one in rank_groups(entries)]
        order += [one["name"] for one in entries if one["name"] not in order]
        best = set(order[:MOST_NAMED])
        styles = iter(group_styles([group.agent for group in groups if group.name in best]))
        self.members = [
            Member(group, one, final_return(one), next(styles), True, f"{group.name}{self.suffix}")
            if group.name in best
            else Member(group, one, final_return(one), Style(GRAY), False, f"others{self.suffix}")
            for group, one in zip(groups, entries, strict=True)
        ]
        self.ranked = sorted(self.members, key=lambda one: order.index(one.group.name))
        self.legend = [Line(one.key, one.group.name, one.style, {}) for one in self.members if one.named]
        if others := len(self.members) - len(self.legend):
            self.legend.append(Line(f"others{self.suffix}", f"{others} others", Style(GRAY), {}))
        self.statistic = NAMES[statistic_of(max(len(group.sessions) for group in groups))]
        counts = [one["counted"] for one in entries if one["counted"]]
        self.short_statistic = " or ".join(sorted(set(map(statistic_name, counts)))) or "mean"
        self.seeds = counts[0] if len(set(counts)) == 1 else None
        """Number of counted seeds of each group; None if it differs between groups."""
        self.branches = entry["branches"] or {}
        self.humans = any("human_normalized" in one["estimates"] for one in entries)
        rigorous = all(run.evaluates for one in self.members for run in one.group.runs)
        unit = f"of {'evaluation' if rigorous else 'training'} episodes"
        self.returns = self._over_time("Return", unit, partial(axes.scores, "return_mean"), tall=True)
        sessions = [session for group in groups for session in group.sessions]
        names = sorted({name for one in sessions for name in one.train if name.startswith(INFO)})
        self.infos = [self._over_time(name, unit, partial(axes.scores, name)) for name in names]
        self.scores, self.profile = self._scores(), self._profile()
        self.pairs = [] if all(pair["low"] is None for pair in entry["improvement"]) else entry["improvement"]
        """Probability that a seed of one group beats one of another; empty if every group has a single
        seed."""
        self.settings = _setting_charts(groups, entries)

    def sheets(self) -> Iterator[Sheet]:
        """Yield the plots of the environment."""
        title = str(self.entry["env"])
        for axis in AXES:
            yield Sheet(f"return_{axis}{self.suffix}", [self.returns], axis, title)
            if self.infos:
                yield Sheet(f"info_{axis}{self.suffix}", self.infos, axis, title)
        if self.profile is not None:
            yield Sheet(f"scores{self.suffix}", [self.scores], "group", title)
            yield Sheet(f"profile{self.suffix}", [self.profile], "score", title)
        for key, charts in self.settings.items():
            name = f"measures_{key.replace('/', '.')}{self.suffix}"
            yield Sheet(name, charts, "value", f"{title}, by {key}")

    def _over_time(
        self, title: str, unit: str, curve_of: Callable[[RunSession, bool], Views], tall: bool = False
    ) -> Chart:
        """Return the chart of a quantity, with a line for each group and for each of its seeds.

        curve_of: function from a session, and whether its run evaluates in separate environments, to the
        session's curve.
        """
        lines: list[Line] = []
        trunk: list[Views] = []
        for one in self.members:
            seeds = [(session, run.evaluates) for run in one.group.runs for session in run.sessions]
            curves = [curve_of(session, apart) for session, apart in seeds]
            if self.branches and one.group.name in self.branches["groups"]:
                parts = [split(curve, self.branches["frame"]) for curve in curves]
                trunk, curves = trunk or [past for past, _ in parts], [rest for _, rest in parts]
            views = self._axes.middles(curves, intervals=one.named)
            if views and not one.named:
                lines.append(Line(one.key, one.group.name, one.style, views, "reference"))
            elif views:
                for place, ((session, _), own) in enumerate(zip(seeds, curves, strict=True)):
                    name = f"{one.group.name}, seed {session.index if session.seed is None else session.seed}"
                    lines.append(Line(f"{one.key} {place}", name, one.style, own, "seed", group=one.key))
                lines.append(Line(one.key, one.group.name, one.style, views))
        if past := self._axes.middles(trunk):
            name = f"shared past, up to frame {self.branches['frame']:,}"
            lines.append(Line(f"trunk{self.suffix}", name, Style(GRAY), past))
        return Chart(title, self._axes.axes, lines, unit, tall=tall)

    def _scores(self) -> Chart:
        """Return the chart of the final return of each named group with its interval, and of each of its
        seeds."""
        shown = [(one, one.final) for one in self.ranked if one.named and one.final is not None]
        lines = []
        for place, (one, final) in enumerate(shown):
            scores = values_of(one.entry, "final_return")
            seeds = {"group": View(np.full(len(scores), place), scores)}
            name = f"{one.group.name}, each seed"
            lines.append(Line(one.key, name, one.style, seeds, "points", mark="cross"))
            ends = ([final.low], [final.high]) if final.low is not None else ()
            middle = {"group": View([place], [final.value], *ends)}
            lines.append(Line(one.key, one.group.name, one.style, middle, "points"))
        axis = Axis("", ticks=[one.group.name for one, _ in shown])
        return Chart("Final return", {"group": axis}, lines, "with its 95 % interval, and each seed")

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


def _setting_charts(groups: Sequence[Group], entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Chart]]:
    """Return a chart of each measure over the values of each key that differs between groups of one agent.

    entries: result of `group_statistics` for each of `groups`, which are all in one environment. There are
    charts for at most MOST_KEYS keys, with a line for each agent. A measure without values has no chart.
    """
    agents = np.array([group.agent for group in groups])
    names = list(dict.fromkeys(agents.tolist()))
    styles = dict(zip(names, group_styles(names), strict=True))
    means = {}
    for measure, title in SETTING_MEASURES.items():
        samples = [values_of(one, measure) for one in entries]
        estimates = [aggregates(sample)["mean"] if len(sample) else (None,) * 3 for sample in samples]
        means[title] = np.array(estimates, dtype=np.float64)  # [groups, (value, low, high)], None as nan
    found: dict[str, list[Chart]] = {}
    for key, values in (
        distinguishing_keys([group.runs[0] for group in groups]).items() if len(groups) > 1 else ()
    ):
        pairs = {(agent, repr(value)) for agent, value in zip(agents, values, strict=True)}
        nested = key.endswith("_target_") or any(isinstance(value, dict | list) for value in values)
        if nested or len(pairs) == len(names) or len(found) == MOST_KEYS:
            continue  # the key has no plain values, only follows from the agent, or is one too many
        axis, places = _setting_axis(key, values)
        found[key] = []
        for title, columns in means.items():
            known = np.isfinite(columns[:, 0])
            lines = []
            for agent, style in styles.items():
                own = np.flatnonzero(known & (agents == agent)).tolist()
                view = {"value": View(places[own], *columns[own].T)}
                labels = [groups[index].name for index in own]
                lines.append(Line(f"by {agent}", agent, style, view, "points", labels=labels))
            if known.any():
                found[key].append(Chart(title, {"value": axis}, lines))
    return {key: charts for key, charts in found.items() if charts}


def _setting_axis(key: str, values: Sequence[Any]) -> tuple[Axis, np.ndarray]:
    """Return the axis for the values of a key, and the positions of `values` on it, [groups]."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        names = list(dict.fromkeys(map(value_text, values)))
        return Axis(key, names), np.array(
            [names.index(value_text(value)) for value in values], dtype=np.float64
        )
    places = np.array(values, dtype=np.float64)
    whole = bool((places == np.round(places)).all())
    log = bool(places.min() > 0 and places.max() > 9.99 * places.min())
    return Axis(key, log=log, whole=whole), np.log10(places) if log else places


def _verdict(entry: Mapping[str, Any], experiment: Experiment | None) -> str:
    """Return a text on which group has the highest return, and on the probability that one of its seeds beats
    a seed of the next group. If there are too few seeds to decide, also say how to add more."""
    found, env = rank_groups(entry["groups"]), entry["env"]
    if not found:
        return f"{env}: no group has a return yet."
    (best, first), *others = found
    name = first["name"]
    if not others:
        return f"On {env}, {name} has a final return of {best.sentence()}."
    (second, other), pair = others[0], improvement(entry, name, others[0][1]["name"])
    head = f"{name} is best with" if entry["best"] else f"no group is clearly the best: {name} has"
    sentence = f"On {env}, {head} a final return of {best.sentence()}, followed by {other['name']} with "
    sentence += f"{number(second.value)}."
    if entry["stages"]:
        pairs, most = entry["stages"]["pairs"], entry["stages"]["most"]
        states = (f"{one['x']} and {one['y']}: {pair_text(one, most)}" for one in pairs[:MOST_VERDICTS])
        return f"{sentence} In stages of seeds, {'; '.join(states)}."
    if pair is None or pair.low is None:
        return sentence
    sentence += f" {improvement_text(pair, name, other['name'], best.seeds, second.seeds)}"
    if not entry["best"] and min(best.seeds, second.seeds) < FEWEST_FOR_BEST:
        sentence += f" At least {FEWEST_FOR_BEST} seeds of both can decide"
        more = ",".join(map(str, range(FEWEST_FOR_BEST)))
        sentence += f": labrl -m +resume={experiment.path} seed={more}" if experiment else "."
    return sentence


def _warnings(
    statistics: Mapping[str, Any], groups: Sequence[Group], experiment: Experiment | None
) -> Iterator[str]:
    """Yield all warnings, with the environment and the groups that they concern."""
    yield from experiment.warnings if experiment else ()
    yield from statistics["warnings"]
    everyone = "every trial of the search" if "search" in statistics else "every group"
    for entry in statistics["envs"]:
        where = f"{entry['env']}, " if len(statistics["envs"]) > 1 else ""
        yield from (f"{where}{warning}" for warning in entry["warnings"])
        if keys := ", ".join(entry["not_compared"]):
            yield f"{where}in addition to the keys set on the command line, the groups differ in {keys}"
        said = [(warning, group["name"]) for group in entry["groups"] for warning in group["warnings"]]
        for warning, pairs in group_by_key(said, lambda pair: pair[0]).items():
            who = everyone if len(pairs) == len(entry["groups"]) else join_names([name for _, name in pairs])
            yield warning if len(groups) == 1 else f"{where}{who}: {warning}"


def _trials(
    statistics: Mapping[str, Any], groups: Sequence[Group], folder: Path, experiment: Experiment | None
) -> Iterator[dict[str, Any]]:
    """Yield every trial with its result over its sessions, and the link to its own report.

    Runs are identified by their folders, because trials of different experiments can have the same name.
    """
    found: dict[Path, dict[str, Any]] = {}
    entries = [entry for env in statistics["envs"] for entry in env["groups"]]
    for entry, group in zip(entries, (one for own in by_env(groups).values() for one in own), strict=True):
        sessions = iter(entry["sessions"])
        for run in group.runs:
            played = [next(sessions) for _ in run.sessions]
            finals, bests = (
                [one[key] for one in played if one[key] is not None]
                for key in ("final_return", "best_return")
            )
            page = run.path / "report.html"
            found[run.path.resolve()] = {
                "run": run.name,
                "link": relative(page, folder) if page.exists() else "",
                "group": group.name,
                "status": run.status,
                "seed": run.seed,
                "final": final.value if (final := group_return(finals)) else None,
                "best": max(bests, default=None),
                "frames": max((one["frames"] for one in played), default=None),
                "error": "",
            }
    # The trials of an experiment, including those without a run, and then runs that are not trials.
    trials = experiment.info.get("trials", []) if experiment else []
    blank = {"run": UNKNOWN, "link": "", "group": "", **dict.fromkeys(("seed", "final", "best", "frames"))}
    for place, trial in enumerate(trials):
        known = found.pop((experiment.path / str(trial.get("folder"))).resolve(), {}) if experiment else {}
        status = str(trial.get("status", ""))
        if known and status in ("", "running"):
            status = known["status"]
        facts = {"number": trial.get("number", place), "error": str(trial.get("error") or "")}
        yield {**blank, **known, **facts, "status": status}
    yield from ({**known, "number": place} for place, known in enumerate(found.values(), len(trials)))


def _code(run: Run) -> str:
    version, git = run.provenance.get("packages", {}).get("labrl", UNKNOWN), run.provenance.get("git") or {}
    commit, dirty = (git.get("labrl") or {}).get("commit"), (git.get("labrl") or {}).get("dirty")
    parts = [f"labrl {version}", *([f"commit {commit}"] if commit else [])]
    parts += ["with uncommitted changes"] if dirty else []
    return ", ".join([*parts, *(f"{name} {own}" for name, own in run.own_code.items())])
