"""Compare labrl's scores with those that SLM Lab publishes for each cell (environment, agent, frames)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import session_rows
from labrl.analysis.intervals import Estimate, aggregates
from labrl.analysis.statistics import group_statistics
from labrl.run.run import Run

ENVS = {
    "CartPole-v1": "cartpole",
    "Acrobot-v1": "acrobot",
    "Pendulum-v1": "pendulum",
    "LunarLander-v3": "lunar_lander",
    "LunarLanderContinuous-v3": "lunar_lander_continuous",
}
"""The labrl environment of each published id; `experiment=slm_lab/<name>` has its settings."""

AGENTS = {"ddqn_per": ("agent=double_dqn", "agent/memory=prioritized")}
"""Overrides for agents that have another name in labrl."""

SESSIONS = 4
"""Number of sessions of which a published score is the mean."""

MARGIN = 0.05
"""Difference of scores that counts as equal, as a fraction of the published score above the random policy."""

VERDICTS = ("better", "equal", "undecided", "worse")
"""Results of a comparison with a published score."""


@dataclass(frozen=True)
class Cell:
    """A published score: the mean over 4 sessions of the mean of their last 100 checkpoint rows."""

    env_id: str
    agent: str
    """Name of the agent in SLM Lab."""
    score: float
    frames: int
    num_envs: int
    log_frequency: int
    """Number of frames between two checkpoint rows."""
    random: float
    """Mean return of a uniformly random policy, measured in 500 episodes (Acrobot: 300)."""

    @property
    def env(self) -> str:
        """Name of the environment in labrl."""
        return ENVS[self.env_id]

    @property
    def name(self) -> str:
        """Name of the cell and of its run folder."""
        return f"{self.env}_{self.agent}"

    @property
    def overrides(self) -> list[str]:
        """Overrides that train the cell."""
        return [f"experiment=slm_lab/{self.env}", *AGENTS.get(self.agent, (f"agent={self.agent}",))]


@dataclass(frozen=True)
class Result:
    """labrl's result for a cell."""

    cell: Cell
    verdict: str
    """One of VERDICTS; `unfinished`, `other setting` or `not run` without a comparison."""
    score: Estimate | None = None
    """labrl's score, computed as the published one, with the interval of the mean."""
    final: float | None = None
    """Interquartile mean of the final returns."""
    sessions: int = 0
    """Number of finished sessions."""


def number(value: float | None) -> str:
    """Format a number with fewer decimals the larger it is: none from 1000 on, and three below 1."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.lstrip("-")


def cells() -> list[Cell]:
    """Return all published scores, in the order of the source."""
    text = Path(__file__).with_name("slm_lab.csv").read_text(encoding="utf-8")
    return [
        Cell(
            env_id=row["env"],
            agent=row["agent"],
            score=float(row["score"]),
            frames=int(row["frames"]),
            num_envs=int(row["num_envs"]),
            log_frequency=int(row["log_frequency"]),
            random=float(row["random"]),
        )
        for row in csv.DictReader(text.splitlines())
    ]


def judged(cell: Cell, run: Run | None) -> Result:
    """Compare labrl's run of a cell with the published score; run: None if the cell has not been run."""
    if run is None:
        return Result(cell, "not run")
    statistics = group_statistics([run])
    counted = [entry for entry in statistics["sessions"] if entry["counted"]]
    finished = sum(entry["status"] == "finished" for entry in counted)
    scores = np.array([entry["slm_final"] for entry in counted if entry["slm_final"] is not None])
    if not len(scores):
        return Result(cell, "unfinished")
    score, final = aggregates(scores)["mean"], statistics["estimates"]["final_return"]["iqm"]["value"]
    if _setting(run) != (cell.env, cell.num_envs, cell.frames, cell.log_frequency):
        verdict = "other setting"
    elif finished < SESSIONS:
        verdict = "unfinished"
    else:
        verdict = compare(cell, score)
    return Result(cell, verdict, score, final, finished)


def as_rows(result: Result, run: Run) -> list[dict[str, Any]]:
    """Return a row for each session of the run of a result, from which `from_rows` restores the result."""
    entries = {entry["index"]: entry for entry in group_statistics([run])["sessions"]}
    rows = []
    for row in session_rows(run):
        entry = entries[row["session"]]
        about = {"environment": result.cell.env_id, "agent": result.cell.agent, "verdict": result.verdict}
        rows.append({**about, **row, "score": entry["slm_final"], "final": entry["final_return"]})
    return rows


def from_rows(cell: Cell, rows: Sequence[Mapping[str, str]]) -> Result:
    """Return the result of `cell` recorded as `rows`, whose interval and verdict are computed again."""
    scores, finals = (np.array([float(row[key]) for row in rows if row[key]]) for key in ("score", "final"))
    score, verdict = aggregates(scores)["mean"], rows[0]["verdict"]
    final = float(aggregates(finals)["iqm"].value) if len(finals) else None
    finished = sum(row["status"] == "finished" for row in rows)
    return Result(cell, compare(cell, score) if verdict in VERDICTS else verdict, score, final, finished)


def newer(known: Result | None, found: Result) -> Result:
    """Return `found`, or the `known` result if `found` has no run, or if only `known` has a finished run."""
    if known is None or found.verdict in VERDICTS:
        return found
    return known if known.verdict in VERDICTS or found.verdict == "not run" else found


def compare(cell: Cell, score: Estimate) -> str:
    """Return the verdict of an equivalence test: two one-sided tests of MARGIN, and of a difference.

    Scores are equal if the whole interval of labrl's score is within the margin around the published one;
    otherwise better or worse if the published one is outside the interval, else undecided. The published
    score counts as exact, because its spread is not known.
    """
    margin = MARGIN * abs(cell.score - cell.random)
    if score.low is None or score.high is None:
        return "undecided"
    if cell.score - margin <= score.low and score.high <= cell.score + margin:
        return "equal"
    if score.low <= cell.score <= score.high:
        return "undecided"
    return "better" if score.value > cell.score else "worse"


def as_markdown(results: Sequence[Result], origins: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of all cells as Markdown; cells in which labrl is worse are bold.

    origins: commit, configuration and machine of each cell by its name, as `Records.origin` returns them.
    """
    lines = [
        "| environment | frames | agent | published | labrl | final return (IQM) | verdict "
        "| commit | configuration | machine |",
        "|---|---:|---|---:|---:|---:|---|---|---|---|",
    ]
    for result in results:
        cell = result.cell
        progress = f" ({result.sessions} of {SESSIONS})" if result.verdict == "unfinished" else ""
        cells = [
            cell.env_id,
            f"{cell.frames:,}",
            cell.agent.replace("_", "\\_"),
            number(cell.score),
            _formatted(result.score),
            number(result.final),
            result.verdict + progress,
        ]
        if result.verdict == "worse":
            cells = [f"**{text}**" for text in cells]
        cells += origins[cell.name].values() if result.score else ("–", "–", "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def extremes(results: Sequence[Result]) -> str:
    """Return a table with two cells of each environment: labrl furthest ahead of the published score, and
    furthest behind it, relative to the distance of that score from the random policy.
    """
    ahead = {}
    for result in results:
        if result.score and result.verdict in VERDICTS:
            distance = abs(result.cell.score - result.cell.random)
            ahead[result.cell.name] = (result.score.value - result.cell.score) / distance
    lines = [
        "| environment | agent | frames | published | labrl | ahead (+), behind (−) | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for env_id in ENVS:
        found = [one for one in results if one.cell.env_id == env_id and one.cell.name in ahead]
        found.sort(key=lambda one: ahead[one.cell.name], reverse=True)
        for result in dict.fromkeys([*found[:1], *found[-1:]]):
            cell = result.cell
            agent, *parts = AGENTS.get(cell.agent, (f"agent={cell.agent}",))
            names = [f"`{agent.removeprefix('agent=')}`", *(part.rpartition("=")[2] for part in parts)]
            gap = f"{100 * ahead[cell.name]:+.1f} %".replace("-", "−")
            cells = [env_id, ", ".join(names), f"{cell.frames:,}", number(cell.score)]
            lines.append(f"| {' | '.join([*cells, _formatted(result.score), gap, result.verdict])} |")
    return "\n".join(lines) + "\n"


def summary(results: Iterable[Result]) -> str:
    """Return the numbers of cells with each verdict as a line of text."""
    verdicts = [result.verdict for result in results]
    return ", ".join(
        f"{verdicts.count(verdict)} {verdict}"
        for verdict in dict.fromkeys([*VERDICTS, *verdicts])
        if verdict in verdicts
    )


def _setting(run: Run) -> tuple[Any, ...]:
    """Return the settings of a run that must equal those of its cell for a comparison."""
    env, meta = run.config.get("env", {}), run.config.get("meta", {})
    return env.get("name"), env.get("num_envs"), env.get("max_frame"), meta.get("log_frequency")


def _formatted(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    if estimate.low is None:
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"
