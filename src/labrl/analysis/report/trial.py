"""The report of one trial."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labrl.analysis.charts import Chart, Line, View
from labrl.analysis.colours import agent_style
from labrl.analysis.figures import Sheet
from labrl.analysis.formats import UNKNOWN, duration, interval_by, moment, number, typed
from labrl.analysis.groups import told
from labrl.analysis.report.page import KeyFigure, Report, Toggle
from labrl.analysis.returns import NAMES, GroupReturn
from labrl.analysis.runs import Run, SessionRun
from labrl.analysis.series import AXES, TimeAxes, evaluates, known
from labrl.analysis.statistics import MEASURES, final_return, statistic_of
from labrl.storage.run_folder import RunFolder

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

TIMING = {"frame", "env_frames", "episode", "opt_step", "wall", "episodes"}
"""Columns that time the others."""

SPREAD = {"return_std", "return_min", "return_max"}
"""Columns that belong to the return."""

STRONGEST_SHADE = 48
"""Ink or paper in the colour of the first and the last seed, percent."""

CHANGE = 0.03
"""Share of a curve's whole range by which its last tenth must differ from the tenth before to be news."""

MOST_VIDEOS = 8

IMPORTANT = ("labrl", "torch", "gymnasium", "ale-py", "numpy", "hydra-core")
"""Packages whose versions come first."""


def trial_report(run: Run, statistics: Mapping[str, Any]) -> tuple[Report, list[Sheet]]:
    """Return the report of one run, and its plots. statistics: those of `trial_statistics`."""
    curves = TrialCurves(run)
    seeds = len(run.sessions)
    reasons = {entry["session"]: entry["reason"] for entry in statistics["left_out"]}
    stops = {entry["index"]: entry["stop"] for entry in statistics["sessions"]}
    notes = {s.index: s.result.get("error") or stops[s.index] or reasons.get(s.index) for s in run.sessions}
    again = run.provenance.get("overrides")
    if fork := run.info.get("fork"):
        again = [f"+fork={fork['folder']}", f"at={fork['frame']}", *fork["edits"]]
    elif again is not None:  # of two words for one key the last one counts
        again = list(dict.fromkeys(map(str, reversed(again))))[::-1]
    content = {
        "run": run,
        "statistics": statistics,
        "curves": curves,
        "videos": _videos(run),
        "notes": {index: str(note or "") for index, note in notes.items()},
        "measures": MEASURES,
        "aggregate_names": NAMES,
        "again": None if again is None else shlex.join(["labrl", *map(str, again)]),
        "changed": _changed(run),
        "origin": _origin(run),
        "packages": _dict(run.provenance.get("packages")),
        "resumes": [_resume(_dict(entry)) for entry in run.info.get("resumes") or []],
    }
    version = _dict(run.provenance.get("packages")).get("labrl", "")
    report = Report(
        template="trial",
        title=f"{run.agent} on {run.env}",
        subtitle=f"{moment(run.created)} · {seeds} session{'' if seeds == 1 else 's'} · {run.name}",
        status=run.status,
        verdict=" ".join(_verdict(run, statistics)),
        figures=list(_figures(statistics)),
        warnings=list(statistics["warnings"]),
        footer=f"labrl {version} · {run.path}",
        content=content,
    )
    return report, list(curves.sheets())


class TrialCurves:
    """The curves of a trial: the middle of its sessions, every seed, and how learning went."""

    def __init__(self, run: Run) -> None:
        self._run, self._style, self._axes = run, agent_style(run.agent), TimeAxes([run])
        sessions = run.sessions
        last = max(len(sessions) - 1, 1)
        # from ink to paper, so that neighbours can be told apart
        self._shades = [round(STRONGEST_SHADE * (2 * place / last - 1)) for place in range(len(sessions))]
        if len(sessions) == 1:
            self._shades = [0]
        self._middle = f"{NAMES[statistic_of(len(sessions))]} of {len(sessions)}"
        self.toggles = [Toggle("middle", self._middle, self._style)] if len(sessions) > 1 else []
        self.toggles += [
            Toggle(_key(session), f"session {session.index}", self._style, shade)
            for session, shade in zip(sessions, self._shades, strict=True)
        ]
        window = run.config.get("meta", {}).get("episode_window")
        unit = f"mean of the last {window} training episodes" if window else ""
        self.returns = [self._return_chart("Return", unit, False)]
        if evaluates(run):
            unit = f"{run.config['meta']['rigorous_eval']} episodes in environments of their own"
            self.returns.append(self._return_chart("Return of evaluations", unit, True))
        columns = {name: None for session in sessions for name in sorted(session.train)}
        values = {
            name: np.concatenate([known(session.train, name) for session in sessions]) for name in columns
        }
        shown = [name for name in values if len(values[name]) and name not in TIMING | SPREAD]
        main = [name for name in TITLES if name in shown]
        main += [name for name in shown if name.startswith("loss") and name not in TITLES]
        others = [n for n in sorted(shown) if n not in main and any(_varies(s.train, n) for s in sessions)]
        self._panels = [self._chart(name) for name in main]
        self.small = [chart for name, chart in zip(main, self._panels, strict=True) if name != "return_mean"]
        self.small += map(self._chart, others)

    def sheets(self) -> Iterator[Sheet]:
        """The plots: the returns over frames and wall time, and for each session how its learning went."""
        for name, chart in zip(("return", "evaluation"), self.returns, strict=False):
            for axis in AXES:
                yield Sheet(f"{name}_{axis}", [chart], axis, f"{self._run.agent} on {self._run.env}")
        for session in self._run.sessions:
            title = f"session {session.index}"
            yield Sheet(f"session_{session.index}", self._panels, "frame", title, only=_key(session))

    def _return_chart(self, title: str, unit: str, evaluation: bool) -> Chart:
        views = [self._axes.returns(session, evaluation) for session in self._run.sessions]
        lines = self._seeds(views)
        if len(views) > 1 and (middles := self._axes.middles(views)):
            lines.append(Line("middle", self._middle, self._style, middles))
        return Chart(title, self._axes.axes, lines, unit, tall=True)

    def _chart(self, column: str) -> Chart:
        spread = "return_std" if column == "return_mean" else ""
        views = [self._axes.column(session.train, column, spread) for session in self._run.sessions]
        title = TITLES.get(column, column.replace("_", " ").capitalize())
        return Chart(title, self._axes.axes, self._seeds(views))

    def _seeds(self, views: Sequence[Mapping[str, View]]) -> list[Line]:
        seeds = zip(self._run.sessions, self._shades, views, strict=True)
        return [
            Line(_key(session), f"session {session.index}", self._style, own, "seed", shade=shade)
            for session, shade, own in seeds
            if any(np.isfinite(view.y).any() for view in own.values())
        ]


def _key(session: SessionRun) -> str:
    return f"session-{session.index}"


def _varies(table: Mapping[str, Any], name: str) -> bool:
    values = known(table, name)
    return bool(len(values) and values.min() < values.max())


def group_figure(entry: Mapping[str, Any]) -> GroupReturn | None:
    """Return the final return of a group's statistics, as it is shown everywhere; None without one."""
    found = final_return(entry)
    return None if found is None else GroupReturn(*found, entry["counted"])


def _verdict(run: Run, statistics: Mapping[str, Any]) -> Iterator[str]:
    """Return the result of the run, its reference, and whether it was still learning."""
    failed = sum(session.status == "failed" for session in run.sessions)
    if failed:
        yield f"{failed} of {len(run.sessions)} sessions failed." if len(run.sessions) > 1 else "It failed."
    early = [entry for entry in statistics["sessions"] if entry["stop"]]
    if early and len(statistics["sessions"]) == 1:
        yield f"It ended early, at frame {early[0]['frames']:,}: {early[0]['stop']}."
    elif early:
        yield f"{len(early)} of {len(run.sessions)} sessions ended early, as their notes say."
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
    """Return whether the return still rose, or fell, in the last tenth of the frames."""
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


def _videos(run: Run) -> dict[Path, str]:
    """Return the videos in the folders of a run's sessions with their captions, the best first."""

    def rank(path: Path) -> tuple[int, str]:
        order = ("best", "last", "latest")
        return next((i for i, word in enumerate(order) if path.stem.startswith(word)), len(order)), path.name

    found = [
        (path, (f"session {session.index}, " if len(run.sessions) > 1 else "") + path.stem.replace("_", " "))
        for session in run.sessions
        for path in sorted((session.path / "videos").glob("*.mp4"), key=rank)
    ]
    return dict(found[:MOST_VIDEOS])


def _changed(run: Run) -> list[list[str]] | None:
    """Return what differs from the defaults when the run ended; None where that was not recorded."""
    try:
        entries = json.loads(RunFolder(run.path).changed.read_text(encoding="utf-8"))
        return [[entry["key"], told(entry.get("value")), told(entry.get("default"))] for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _beginning(facts: Mapping[str, Any]) -> str:
    """Return what a run began with of another one, and what not, in a line."""
    if not facts:
        return ""
    sources = {f"session {one['session']}, frame {one['frame']:,}" for one in facts["sessions"].values()}
    told = f"{len(facts['taken'])} weights of {facts['run']} ({'; '.join(sorted(sources))})"
    anew = facts["begun_anew"]
    return told + (f", begun anew: {', '.join(anew)}" if anew else "")


def _origin(run: Run) -> dict[str, str]:
    """Return code, machine and packages of a run by name; empty where a fact is not known."""
    facts = run.provenance
    machine, packages = _dict(facts.get("machine")), _dict(facts.get("packages"))
    memory, cores = machine.get("memory"), machine.get("cores")
    processor = [str(machine.get("processor") or "")]
    processor += [f"{machine.get('cores_usable', cores)} of {cores} cores"] if cores else []
    return {
        "run folder": str(run.path),
        "begun": moment(run.created),
        "last change": moment(run.info.get("updated", "")),
        "seed": told(facts.get("seed", run.seed)),
        **{f"code of {name.replace('_', ' ')}": _code(git) for name, git in _dict(facts.get("git")).items()},
        "Python": str(_dict(facts.get("python")).get("version", "")),
        "packages": ", ".join(f"{name} {packages[name]}" for name in IMPORTANT if name in packages),
        "machine": ", ".join(str(machine[key]) for key in ("name", "system") if machine.get(key)),
        "processor": ", ".join(part for part in processor if part),
        "memory": f"{memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else "",
        "graphics": ", ".join(map(str, machine.get("gpus") or [])),
        "repeats": str(run.info.get("rerun_of", "")),
        "forked from": _forked(_dict(run.info.get("fork"))),
        "begins with": _beginning(run.start_from),
    }


def _forked(fork: Mapping[str, Any]) -> str:
    edits = shlex.join(map(str, fork.get("edits", [])))
    where = f"{fork['folder']} at frame {fork['frame']:,}" if fork else ""
    return f"{where}, with {edits}" if edits else where


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
