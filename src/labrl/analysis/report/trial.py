"""The report of one trial."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labrl.analysis.charts import Chart, Line, View
from labrl.analysis.colors import agent_style
from labrl.analysis.diagnosis import diagnose_run
from labrl.analysis.figures import Sheet
from labrl.analysis.formats import moment, number
from labrl.analysis.groups import value_text
from labrl.analysis.returns import NAMES
from labrl.analysis.series import AXES, TimeAxes
from labrl.analysis.statistics import MEASURES, final_return, info_columns, statistic_of
from labrl.processes.secrets import redact
from labrl.run.run import Run
from labrl.run.tables import known
from labrl.types import INFO

TITLES = {
    "return_mean": "Training return",
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
    "weight_norm": "Weight norm",
    "q_mean": "Mean Q value",
    "value_mean": "Mean value",
    "fps": "Frames/s",
}
"""Columns in the order in which they are shown, with their titles."""

TIMING = {"frame", "env_frames", "episode", "opt_step", "wall", "episodes"}
"""Columns that serve as axes or counters for the other columns."""

SPREAD = {"return_std", "return_min", "return_max"}
"""Columns that describe the spread of the return, and have no chart of their own."""

STRONGEST_SHADE = 48
"""Percentage of ink in the color of the first session, and of paper in the color of the last session."""

CHANGE = 0.03
"""Minimum difference between the last tenth of a curve and the tenth before for mentioning a trend, as a
fraction of the curve's range."""

MOST_VIDEOS = 8


def trial_report(run: Run, statistics: Mapping[str, Any]) -> tuple[dict[str, Any], list[Sheet]]:
    """Return the content of the page of one run, and its plots. statistics: result of `trial_statistics`."""
    curves, seeds = TrialCurves(run), len(run.sessions)
    reasons = {entry["session"]: entry["reason"] for entry in statistics["left_out"]}
    stops = {entry["index"]: entry["stop"] for entry in statistics["sessions"]}
    notes = {s.index: s.result.get("error") or stops[s.index] or reasons.get(s.index) for s in run.sessions}
    content = {
        "title": f"{run.agent} on {run.env}",
        "subtitle": f"{moment(run.created)} · {seeds} session{'' if seeds == 1 else 's'} · {run.name}",
        "status": run.status,
        "verdict": " ".join(_verdict(run, statistics)),
        "warnings": list(statistics["warnings"]),
        "footer": str(run.path),
        "run": run,
        "statistics": statistics,
        "final": final_return(statistics),
        "curves": curves,
        "diagnosis": diagnose_run(run),
        "videos": _videos(run),
        "notes": {index: str(note or "") for index, note in notes.items()},
        "measures": {**MEASURES, **{name: name for name in info_columns(statistics)}},
        "aggregate_names": NAMES,
        "infos": info_columns(statistics),
        "again": command_again(run),
        "changed": _changed(run),
        "origin": redact(_origin(run)),
    }
    return content, list(curves.sheets())


def command_again(run: Run) -> str | None:
    """Return the command that repeats the training of a run; None if it was not recorded."""
    again = run.provenance.get("overrides")
    if fork := run.info.get("fork"):
        again = [f"+fork={fork['folder']}", f"at={fork['frame']}", *fork["edits"]]
    elif again is not None:  # the last of several overrides for one key counts
        again = list(dict.fromkeys(map(str, reversed(again))))[::-1]
        if "seed" in run.config and not any(override.startswith("seed=") for override in again):
            again.append(f"seed={run.config['seed']}")
        if folder := run.provenance.get("config_dir"):
            again = ["--config-dir", folder, *again]
    return None if again is None else shlex.join(["labrl", *map(str, again)])


def session_rows(statistics: Mapping[str, Any]) -> list[list[str]]:
    """Return a table of the sessions: the headings, then a row for each session. statistics: result of
    `trial_statistics`."""
    infos = info_columns(statistics)
    texts, numbers = ("index", "seed", "status"), ("frames", "final_return", *infos, "best_return", "fps")
    rows = [
        [*(str(one[name]) for name in texts), *(number(one.get(name)) for name in numbers)]
        for one in statistics["sessions"]
    ]
    return [["session", *texts[1:], "frames", "final return", *infos, "best return", "frames/s"], *rows]


class TrialCurves:
    """The curves of a trial: the IQM or mean of its sessions, each session, and the learning metrics."""

    def __init__(self, run: Run) -> None:
        self._run, self._axes = run, TimeAxes([run])
        style, sessions = agent_style(run.agent), run.sessions
        last = max(len(sessions) - 1, 1)
        # From ink to paper, so that neighbors are distinguishable.
        shades = [round(STRONGEST_SHADE * (2 * place / last - 1)) for place in range(len(sessions))]
        self._seeds = [
            Line(f"session-{one.index}", f"session {one.index}", style, {}, "seed", shade=shade)
            for one, shade in zip(sessions, shades if len(sessions) > 1 else [0], strict=False)
        ]
        middle = Line("middle", f"{NAMES[statistic_of(len(sessions))]} of {len(sessions)}", style, {})
        self.legend = [*([middle] if len(sessions) > 1 else []), *self._seeds]
        window = run.config.get("meta", {}).get("episode_window")
        unit = f"mean of the last {window} training episodes" if window else ""
        self.returns = [self._return_chart("Return", unit, False)]
        if run.evaluates:
            unit = f"episodes in {run.config['meta']['rigorous_eval']} separate environments"
            self.returns.append(self._return_chart("Evaluation return", unit, True))
        values = {
            name: [known(one.train, name) for one in sessions] for one in sessions for name in one.train
        }
        there = {name for name, tables in values.items() if any(map(len, tables))} - TIMING - SPREAD
        losses = sorted(name for name in there if name.startswith("loss") and name not in TITLES)
        infos = sorted(name for name in there if name.startswith(INFO))
        first = [name for name in TITLES if name in there]
        main = {name: self._chart(name) for name in [*first, *infos, *losses]}
        varying = [
            name for name in sorted(there) if any(len(one) and one.min() < one.max() for one in values[name])
        ]
        self._panels = list(main.values())
        self.small = [chart for name, chart in main.items() if name != "return_mean"]
        self.small += [self._chart(name, evaluation=True) for name in infos if run.evaluates]
        self.small += [self._chart(name) for name in varying if name not in main]

    def sheets(self) -> Iterator[Sheet]:
        """Yield the plots: the returns over frames and wall time, and the learning metrics of each
        session."""
        for name, chart in zip(("return", "evaluation"), self.returns, strict=False):
            for axis in AXES:
                yield Sheet(f"{name}_{axis}", [chart], axis, f"{self._run.agent} on {self._run.env}")
        for seed in self._seeds:
            yield Sheet(seed.name.replace(" ", "_"), self._panels, "frame", seed.name, only=seed.key)

    def _return_chart(self, title: str, unit: str, evaluation: bool) -> Chart:
        views = [self._axes.scores("return_mean", session, evaluation) for session in self._run.sessions]
        if self._run.evaluates and not evaluation:  # eval.csv contains the returns of other episodes
            views = [self._axes.column(session.train, "return_mean") for session in self._run.sessions]
        lines = self._lines(views)
        if len(views) > 1 and (middles := self._axes.middles(views)):
            lines.append(replace(self.legend[0], views=middles))
        return Chart(title, self._axes.axes, lines, unit, tall=True)

    def _chart(self, column: str, evaluation: bool = False) -> Chart:
        spread = "return_std" if column == "return_mean" else ""
        tables = [session.eval if evaluation else session.train for session in self._run.sessions]
        views = [self._axes.column(table, column, spread) for table in tables]
        title = TITLES.get(column, column.replace("_", " ").capitalize())
        if column.startswith(INFO):
            title = f"{column} (evaluation)" if evaluation else column
        return Chart(title, self._axes.axes, self._lines(views))

    def _lines(self, views: Sequence[Mapping[str, View]]) -> list[Line]:
        """Return a line for each session, except for sessions without a finite value. views: the views of
        each session."""
        return [
            replace(line, views=own)
            for line, own in zip(self._seeds, views, strict=True)
            if any(np.isfinite(view.y).any() for view in own.values())
        ]


def _verdict(run: Run, statistics: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the result of the run, its reference returns, and whether it was still learning."""
    sessions = statistics["sessions"]
    failed = sum(session.status == "failed" for session in run.sessions)
    if failed:
        several = len(run.sessions) > 1
        yield f"{failed} of {len(run.sessions)} sessions failed." if several else "The session failed."
    early = [entry for entry in sessions if entry["stop"]]
    if early and len(sessions) == 1:
        yield f"The session ended early, at frame {early[0]['frames']:,}: {early[0]['stop']}."
    elif early:
        yield f"{len(early)} of {len(run.sessions)} sessions ended early (see their notes)."
    progress = ""
    if sessions and run.max_frame and np.isfinite(run.max_frame):
        share = min(float(np.mean([entry["frames"] for entry in sessions])) / run.max_frame, 1.0)
        progress = f" at {100 * share:.0f} % of its {run.max_frame:,.0f} frames"
    if run.status == "running":
        yield f"The run is still running{progress}. So far:"
    elif run.status in ("interrupted", "killed"):
        yield f"The run was {run.status}{progress} and can be resumed."
    final = final_return(statistics)
    if final is None:
        yield "No episode has finished, so there is no return."
        return
    yield f"Final return: {final.sentence()}."
    for name in info_columns(statistics):
        if found := final_return(statistics, name):
            yield f"{name}: {found.sentence()}."
    yield from _against(statistics, final.value)
    yield from _trend(statistics["curve"], run.status)


def _against(statistics: Mapping[str, Any], value: float) -> Iterator[str]:
    baseline, threshold = statistics["baseline"], statistics["threshold"]
    if baseline:
        better = "" if value > baseline["mean"] else ", so the result is no better than chance"
        yield f"The random policy has a return of {number(baseline['mean'])}{better}."
    human = statistics["estimates"].get("human_normalized")
    if human:
        score = human[statistic_of(statistics["counted"])]["value"]
        yield f"The human-normalized score is {number(score, 3)}."
    if threshold:
        counted = [session for session in statistics["sessions"] if session["counted"]]
        reached = [s["frames_to_threshold"] for s in counted if s["frames_to_threshold"] is not None]
        what = {"gymnasium": "The return that counts as solved", "human": "The return of a human"}
        said = f"{what[threshold['source']]}, {number(threshold['value'])},"
        share = f"by {len(reached)} of {len(counted)} seeds, " if len(counted) > 1 else ""
        after = f"was reached {share}after {number(float(np.mean(reached)))} frames" if reached else ""
        yield f"{said} {after or 'was not reached'}."


def _trend(curve: Mapping[str, Sequence[Any]], status: str) -> Iterator[str]:
    """Yield a sentence if the return was still rising, or was falling, in the last tenth of the frames."""
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


def _videos(run: Run) -> dict[Path, str]:
    """Return the videos of a run's sessions with their captions; `best` precedes `last` and `latest`."""
    found = {
        path: (f"session {session.index}, " if len(run.sessions) > 1 else "") + path.stem.replace("_", " ")
        for session in run.sessions
        for path in sorted(session.videos.glob("*.mp4"))
    }
    return dict(list(found.items())[:MOST_VIDEOS])


def _changed(run: Run) -> list[list[str]] | None:
    """Return the key, value and default of each setting that differed from its default at the end of the run;
    None if the differences were not recorded."""
    try:
        entries = json.loads(run.changed_json.read_text(encoding="utf-8"))
        return [
            [entry["key"], value_text(entry.get("value")), value_text(entry.get("default"))]
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _origin(run: Run) -> dict[str, Any]:
    """Return what is recorded about the origin of a run: its code, machine, packages, command and resumes."""
    known = {key: value for key, value in run.provenance.items() if key not in ("config", "choices")}
    facts = {key: run.info[key] for key in ("fork", "rerun_of", "resumes") if run.info.get(key)}
    return {"run folder": str(run.path), **known, **facts}
