"""The report of one trial."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from labrl.analysis.charts import Chart, Line
from labrl.analysis.colours import agent_style
from labrl.analysis.figures import Sheet
from labrl.analysis.formats import INTERVAL, UNKNOWN, duration, interval, interval_by, moment, number, typed
from labrl.analysis.groups import told
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
    Videos,
)
from labrl.analysis.returns import MEANING, NAMES, GroupReturn
from labrl.analysis.rows import Column
from labrl.analysis.runs import Run, SessionRun
from labrl.analysis.series import (
    AXES,
    Curve,
    TimeAxes,
    column_curve,
    evaluates,
    return_curve,
    training_returns,
)
from labrl.analysis.statistics import final_return, statistic_of

TITLES = {
    "return_mean": "Return of training",
    "length_mean": "Episode length",
    "loss": "Loss",
    "loss_policy": "Policy loss",
    "loss_value": "Value loss",
    "entropy": "Entropy",
    "kl": "KL divergence",
    "explained_variance": "Explained variance",
    "exploration": "Exploration",
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "weight_norm": "Weights' norm",
    "q_mean": "Mean Q value",
    "value_mean": "Mean value",
    "fps": "Frames/s",
}
"""Columns by the order in which they are shown, with their names."""

CLOCK = {"frame", "env_frames", "episode", "opt_step", "wall", "episodes"}
"""Columns that time the others."""

SPREAD = {"return_std", "return_min", "return_max"}
"""Columns that belong to the return."""

STRONGEST_SHADE = 48
"""Ink or paper in the colour of the first and the last seed, percent."""

CHANGE = 0.03
"""Share of a curve's whole range by which its last tenth must differ from the tenth before to be news."""

MEASURE_NAMES = {
    "final_return": "final return",
    "best_return": "best return",
    "area_under_curve": "average return (area under the curve)",
    "slm_final": "mean of the last 100 rows",
    "strength": "strength",
    "max_strength": "highest strength",
    "final_strength": "final strength",
    "sample_efficiency": "sample efficiency (per frame)",
    "training_efficiency": "training efficiency (per update)",
    "stability": "stability",
    "frames_to_threshold": "frames to the threshold",
    "seconds_to_threshold": "seconds to the threshold",
    "human_normalized": "human-normalized score",
    "fps": "frames/s",
}
"""Measures with their names in a report."""

CHANGED = "changed.json"
"""In a run folder: what of its configuration is not the default of its agent and environment."""

MOST_VIDEOS = 8

IMPORTANT = ("labrl", "torch", "gymnasium", "ale-py", "numpy", "hydra-core")
"""Packages whose versions come first."""


def trial_report(run: Run, statistics: Mapping[str, Any]) -> tuple[Report, list[Sheet]]:
    """What one run came to, and its plots. statistics: those of `trial_statistics`."""
    curves = TrialCurves(run)
    sections = [
        curves.section(),
        _video_section(run),
        _seeds_section(run, statistics),
        _statistics_section(statistics),
        _configuration_section(run),
        _origin_section(run),
    ]
    seeds = len(run.sessions)
    report = Report(
        title=f"{run.agent} on {run.env}",
        subtitle=f"{moment(run.created)} · {seeds} session{'' if seeds == 1 else 's'} · {run.name}",
        status=run.status,
        verdict=" ".join(_verdict(run, statistics)),
        figures=list(_figures(statistics)),
        warnings=list(statistics["warnings"]),
        sections=[section for section in sections if section is not None],
        facts={"labrl": run.provenance.get("packages", {}).get("labrl", ""), "": str(run.path)},
    )
    return report, list(curves.sheets())


class TrialCurves:
    """The curves of a trial: the middle of its sessions, every seed, and how learning went."""

    def __init__(self, run: Run) -> None:
        self._run, self._style, self._axes = run, agent_style(run.agent), TimeAxes([run])
        self._middle = f"{NAMES[statistic_of(len(run.sessions))]} of {len(run.sessions)}"
        window = run.config.get("meta", {}).get("episode_window")
        unit = f"mean of the last {window} training episodes" if window else ""
        self.returns = [self._return_chart("Return", unit, False)]
        if evaluates(run):
            unit = f"{run.config['meta']['rigorous_eval']} episodes in environments of their own"
            self.returns.append(self._return_chart("Return of evaluations", unit, True))
        tables = [session.train for session in run.sessions]
        known = [name for name in TITLES if any(_has_values(table, name) for table in tables)]
        names = sorted({name for table in tables for name in table} - set(TITLES) - CLOCK - SPREAD)
        others = [name for name in names if any(_has_values(table, name, varied=True) for table in tables)]
        losses = [
            name for name in names if name.startswith("loss") and any(_has_values(t, name) for t in tables)
        ]
        self.columns = {name: self._chart(name) for name in dict.fromkeys([*known, *losses, *others])}
        self._in_figures = [*known, *losses]

    def section(self) -> Section:
        """Return, evaluations, and every other column that has something to show."""
        toggles = [Toggle("middle", self._middle, self._style)] if len(self._run.sessions) > 1 else []
        toggles += [
            Toggle(_key(session), f"session {session.index}", self._style, self._shade(place))
            for place, session in enumerate(self._run.sessions)
        ]
        small = [chart for name, chart in self.columns.items() if name != "return_mean"]
        return Section(
            "curves",
            "Curves",
            [
                Controls({"frame": "frames", "wall": "wall time"}, toggles),
                *(Charts([chart]) for chart in self.returns),
                Charts(small, small=True),
                Note("Drag over a chart to zoom, double-click to see all; a click on a name hides it."),
            ],
        )

    def sheets(self) -> Iterator[Sheet]:
        """The plots: the returns over frames and wall time, and for each session how its learning went."""
        for name, chart in zip(("return", "evaluation"), self.returns, strict=False):
            for axis in AXES:
                yield Sheet(f"{name}_{axis}", [chart], axis, f"{self._run.agent} on {self._run.env}")
        charts = [self.columns[name] for name in self._in_figures]
        for session in self._run.sessions:
            title = f"session {session.index}"
            yield Sheet(f"session_{session.index}", charts, "frame", title, only=_key(session))

    def _return_chart(self, title: str, unit: str, evaluation: bool) -> Chart:
        curves = [{axis: return_curve(s, axis, evaluation) for axis in AXES} for s in self._run.sessions]
        lines = self._seeds(curves)
        if len(curves) > 1 and (views := self._axes.middles(curves)):
            lines.append(Line("middle", self._middle, self._style, views))
        return Chart(title, self._axes.axes, lines, unit, tall=True)

    def _chart(self, column: str) -> Chart:
        def curve(session: SessionRun, axis: str) -> Curve:
            of_return = column == "return_mean"
            return training_returns(session, axis) if of_return else column_curve(session, column, axis)

        curves = [{axis: curve(session, axis) for axis in AXES} for session in self._run.sessions]
        title = TITLES.get(column, column.replace("_", " ").capitalize())
        return Chart(title, self._axes.axes, self._seeds(curves))

    def _seeds(self, curves: Sequence[dict[str, Curve]]) -> list[Line]:
        return [
            Line(
                _key(session),
                f"session {session.index}",
                self._style,
                self._axes.views(own),
                "seed",
                shade=self._shade(place),
            )
            for place, (session, own) in enumerate(zip(self._run.sessions, curves, strict=True))
            if any(np.isfinite(curve.y).any() for curve in own.values())
        ]

    def _shade(self, place: int) -> int:
        """From ink to paper, so that neighbours can be told apart."""
        last = len(self._run.sessions) - 1
        return round(STRONGEST_SHADE * (2 * place / last - 1)) if last else 0


def _key(session: SessionRun) -> str:
    return f"session-{session.index}"


def _has_values(table: Mapping[str, Column], name: str, varied: bool = False) -> bool:
    values = table.get(name, np.empty(0))
    known = values[np.isfinite(values)]
    return bool(len(known) and (not varied or known.min() < known.max()))


def group_figure(entry: Mapping[str, Any]) -> GroupReturn | None:
    """The final return of a group's statistics, as it is shown everywhere; None without one."""
    found = final_return(entry)
    return None if found is None else GroupReturn(*found, entry["counted"])


def _verdict(run: Run, statistics: Mapping[str, Any]) -> Iterator[str]:
    """What the run reached, against what, and whether it was still learning."""
    failed = sum(session.status == "failed" for session in run.sessions)
    if failed:
        yield f"{failed} of {len(run.sessions)} sessions failed." if len(run.sessions) > 1 else "It failed."
    if run.status == "running":
        yield f"Still going on{_progress(run, statistics)}; so far:"
    elif run.status in ("interrupted", "killed"):
        yield f"It was {run.status}{_progress(run, statistics)} and can be resumed."
    final = group_figure(statistics)
    if final is None:
        yield "No episode has ended, so there is no return."
        return
    yield f"A final return of {final.sentence()}."
    yield from _against(statistics, final.value)
    yield from _trend(statistics["curve"], run.status)


def _progress(run: Run, statistics: Mapping[str, Any]) -> str:
    frames = [session["frames"] for session in statistics["sessions"]]
    if not frames or not run.max_frame or not np.isfinite(run.max_frame):
        return ""
    share = min(float(np.mean(frames)) / run.max_frame, 1.0)
    return f" at {100 * share:.0f} % of its {run.max_frame:,.0f} frames"


def _against(statistics: Mapping[str, Any], value: float) -> Iterator[str]:
    baseline, threshold = statistics["baseline"], statistics["threshold"]
    if baseline:
        better = "" if value > baseline["mean"] else ": no better than chance"
        yield f"The random policy's is {number(baseline['mean'])}{better}."
    human = statistics["estimates"].get("human_normalized")
    if human:
        yield f"Human-normalized: {number(human[statistic_of(statistics['counted'])]['value'], 3)}."
    if threshold:
        counted = [session for session in statistics["sessions"] if session["counted"]]
        reached = [s["frames_to_threshold"] for s in counted if s["frames_to_threshold"] is not None]
        what = {"gymnasium": "The return that counts as solved", "human": "A human's return"}
        said = f"{what.get(threshold['source'], 'The threshold')}, {number(threshold['value'])},"
        share = f"by {len(reached)} of {len(counted)} seeds, " if len(counted) > 1 else ""
        after = f"was reached {share}after {number(float(np.mean(reached)))} frames" if reached else ""
        yield f"{said} {after or 'was not reached'}."


def _trend(curve: Mapping[str, Sequence[Any]], status: str) -> Iterator[str]:
    """Whether the return still rose, or fell, in the last tenth of the frames."""
    frame = np.array(curve["frame"], dtype=np.float64)
    mean = np.array(curve["mean"], dtype=np.float64)
    frame, mean = frame[known := np.isfinite(mean)], mean[known]
    if len(mean) < 10:
        return
    part = frame / frame[-1]
    last, before = mean[part > 0.9], mean[(part > 0.8) & (part <= 0.9)]
    if not len(before):
        return
    change, whole = last.mean() - before.mean(), mean.max() - mean.min()
    if whole and change > CHANGE * whole and status != "running":
        yield "The return was still rising at the end: more frames may help."
    elif whole and change < -CHANGE * whole:
        yield "The return was falling at the end."


def _figures(statistics: Mapping[str, Any]) -> Iterator[KeyFigure]:
    sessions = statistics["sessions"]
    means = {name: facts["mean"] for name, facts in statistics["measures"].items()}
    if (final := group_figure(statistics)) is not None:
        detail = interval_by(final.low, final.high) or "one seed: no interval"
        yield KeyFigure(f"Final return ({final.statistic})", number(final.value), detail)
    best = [session["best_return"] for session in sessions if session["best_return"] is not None]
    if best:
        kind = statistics["scores_of"]
        yield KeyFigure("Best return", number(max(best)), f"best checkpoint of all, {kind} episodes")
    if means["human_normalized"] is not None:
        yield KeyFigure("Human-normalized", number(means["human_normalized"], 3), "0 random, 1 human")
    for value, label, detail in (
        (means["area_under_curve"], "Average return", "over all frames"),
        (means["strength"], "Strength", "return above random"),
        (means["stability"], "Stability", "1: it never fell"),
        (statistics["consistency"], "Consistency", "1: all seeds equal"),
    ):
        if value is not None:
            yield KeyFigure(label, number(value), detail)
    frames = max((session["frames"] for session in sessions), default=0)
    emulated = max((session["env_frames"] or 0 for session in sessions), default=0)
    detail = f"{number(emulated)} emulator frames" if emulated > frames else "of a session"
    yield KeyFigure("Frames", number(frames), detail)
    speed = f"{number(means['fps'], 3)} frames/s" if means["fps"] is not None else ""
    walls = [session["wall"] for session in sessions if session["wall"] is not None]
    yield KeyFigure("Training time", duration(max(walls, default=None)), speed)


def _seeds_section(run: Run, statistics: Mapping[str, Any]) -> Section:
    reasons = {entry["session"]: entry["reason"] for entry in statistics["left_out"]}
    errors = {session.index: session.result.get("error") for session in run.sessions}
    columns = ["session", "seed", "status", "frames", "episodes", "final return", "best return"]
    columns += ["average return", "stability", "frames/s", "time"]
    noted = any(reasons.values()) or any(errors.values())
    sessions = statistics["sessions"]
    rows = [
        [
            Cell(entry["index"], str(entry["index"])),
            Cell(entry["seed"], UNKNOWN if entry["seed"] is None else str(entry["seed"])),
            entry["status"],
            Cell(entry["frames"], f"{entry['frames']:,}"),
            Cell(entry["episodes"], UNKNOWN if entry["episodes"] is None else f"{entry['episodes']:,}"),
            entry["final_return"],
            Cell(
                entry["best_return"],
                detail="" if entry["best_frame"] is None else f"at {number(entry['best_frame'])}",
            ),
            entry["area_under_curve"],
            entry["stability"],
            Cell(entry["fps"], number(entry["fps"], 3)),
            Cell(entry["wall"], duration(entry["wall"])),
            *([str(errors[entry["index"]] or reasons.get(entry["index"]) or "")] if noted else []),
        ]
        for entry in sessions
    ]
    marked = [i for i, entry in enumerate(sessions) if entry["status"] == "failed"]
    dim = [i for i, entry in enumerate(sessions) if not entry["counted"]]
    table = Table([*columns, "note"] if noted else columns, rows, marked=marked, dim=dim)
    return Section("seeds", "Seeds", [table])


def _statistics_section(statistics: Mapping[str, Any]) -> Section:
    """Every measure that is defined, over the seeds; and the estimates with intervals."""
    estimates = [
        [f"{MEASURE_NAMES[measure]}, {label}", e["value"], interval(e["low"], e["high"]) or UNKNOWN]
        for measure, found in statistics["estimates"].items()
        for name, label in NAMES.items()
        for e in [found[name]]
    ]
    rows: list[Sequence[Any]] = [
        [MEASURE_NAMES[measure], values["mean"], values["std"], Cell(values["n"], str(values["n"]))]
        for measure, values in statistics["measures"].items()
        if values["n"]
    ]
    if statistics["consistency"] is not None:
        rows.append(["consistency", statistics["consistency"], None, Cell(statistics["counted"])])
    blocks: list[Block] = []
    if estimates:
        blocks.append(Table(["estimate", "value", INTERVAL], estimates))
    if rows:
        blocks.append(Table(["measure", "mean of seeds", "deviation", "seeds"], rows))
    baseline = statistics["baseline"]
    if baseline:
        of = f", {baseline['episodes']} episodes" if baseline["episodes"] else ""
        blocks.append(
            Note(
                f"Strength is the return above the random policy's {number(baseline['mean'])} "
                f"({baseline['source']}{of}). A measure that is not defined is left out."
            )
        )
    kind = statistics["scores_of"]
    blocks.append(Note(f"All scores are of {kind} episodes, whole games with their raw rewards; {MEANING}."))
    return Section("statistics", "Statistics", blocks)


def _video_section(run: Run) -> Section | None:
    """The videos in the folders of a run's sessions, the best first; None without any."""

    def rank(path: Path) -> tuple[int, str]:
        order = ("best", "last", "latest")
        first = next((i for i, word in enumerate(order) if path.stem.startswith(word)), len(order))
        return first, path.name

    found = {
        path: (f"session {session.index}, " if len(run.sessions) > 1 else "") + path.stem.replace("_", " ")
        for session in run.sessions
        for path in sorted((Path(session.path) / "videos").glob("*.mp4"), key=rank)
    }
    chosen = dict(list(found.items())[:MOST_VIDEOS])
    return Section("episodes", "Episodes", [Videos(chosen)]) if chosen else None


def _changed(run: Run) -> list[list[str]] | None:
    """What differs from the defaults as they were when the run ended; None where that was not recorded."""
    try:
        entries = json.loads((Path(run.path) / CHANGED).read_text(encoding="utf-8"))
        return [[entry["key"], told(entry.get("value")), told(entry.get("default"))] for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _configuration_section(run: Run) -> Section:
    """How to run it again, what differs from the defaults, and the whole configuration."""
    blocks: list[Block] = []
    command = run.provenance.get("overrides")
    if command is not None:
        # of two words for one key the last one counts
        words = list(dict.fromkeys(map(str, reversed(command))))[::-1]
        blocks.append(Command(shlex.join(["labrl", *words]), "To run it again:"))
    found, defaults = _changed(run), f"the defaults of {run.agent} on {run.env}"
    if found is None:
        blocks.append(Note("Which of these values differ from the defaults was not recorded for this run."))
    elif found:
        blocks.append(Table(["key", "value", "default"], found, caption=f"Differs from {defaults}"))
    else:
        blocks.append(Note(f"Every value is one of {defaults}."))
    if run.config:
        whole = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        blocks.append(Command(whole, "the whole configuration", folded=True))
    return Section("configuration", "Configuration", blocks)


def _origin_section(run: Run) -> Section:
    """Code, machine, packages and command of a run, and its resumes."""
    facts = run.provenance
    machine, packages = _dict(facts.get("machine")), _dict(facts.get("packages"))
    memory, cores = machine.get("memory"), machine.get("cores")
    processor = [str(machine.get("processor") or "")]
    processor += [f"{machine.get('cores_usable', cores)} of {cores} cores"] if cores else []
    rows = [
        ["run folder", str(run.path)],
        ["begun", moment(run.created)],
        ["last change", moment(run.info.get("updated", ""))],
        ["seed", told(facts.get("seed", run.seed))],
        *([f"code of {name.replace('_', ' ')}", _code(git)] for name, git in _dict(facts.get("git")).items()),
        ["Python", str(_dict(facts.get("python")).get("version", ""))],
        ["packages", ", ".join(f"{name} {packages[name]}" for name in IMPORTANT if name in packages)],
        ["machine", ", ".join(str(machine[key]) for key in ("name", "system") if machine.get(key))],
        ["processor", ", ".join(part for part in processor if part)],
        ["memory", f"{memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else ""],
        ["graphics", ", ".join(map(str, machine.get("gpus") or []))],
        ["repeats", str(run.info.get("rerun_of", ""))],
    ]
    blocks: list[Block] = [Table(["", ""], [row for row in rows if row[1]])]
    if command := typed(run.command):
        blocks.append(Command(command, "What was typed:"))
    if packages:
        versions = [[str(name), str(version)] for name, version in packages.items()]
        blocks.append(Table(["package", "version"], versions, f"{len(versions)} packages", folded=True))
    if resumes := run.info.get("resumes"):
        columns = ["resumed", "from frame", "what was changed", "what differed", "command"]
        blocks.append(Table(columns, [_resume(_dict(entry)) for entry in resumes], caption="Resumed"))
    return Section("origin", "Origin", blocks)


def _code(git: Any) -> str:
    facts = _dict(git)
    changes = f", with uncommitted changes ({facts.get('diff', 'not kept')})" if facts.get("dirty") else ""
    return f"commit {facts.get('commit') or UNKNOWN}{changes}"


def _resume(facts: Mapping[str, Any]) -> list[str]:
    frames = _dict(facts.get("frames"))
    alone = len(frames) == 1
    where = [f"{frame:,}" if alone else f"session {index}: {frame:,}" for index, frame in frames.items()]
    changes = [
        f"{change.get('key')}: {told(change.get('then'))} → {told(change.get('now'))}"
        for change in map(_dict, facts.get("changed") or [])
    ]
    changes += ["forced"] if facts.get("forced") else []
    differed = "; ".join(map(str, facts.get("differs") or []))
    command = typed(facts.get("command"))
    return [moment(facts.get("time")), ", ".join(where), "; ".join(changes), differed, command]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
