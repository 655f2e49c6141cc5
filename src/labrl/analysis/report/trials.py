"""The trials of an experiment one by one, and what differs between its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from labrl.analysis.groups import Group, by_env, told, varied
from labrl.analysis.report.formats import UNKNOWN, moment, typed
from labrl.analysis.report.render import relative
from labrl.analysis.report.sections import Block, Cell, Command, Note, Section, Table
from labrl.analysis.runs import Run


def trials_section(
    groups: Sequence[Group],
    trials: Sequence[Mapping[str, Any]],
    statistics: Mapping[str, Any],
    folder: Path,
) -> Section:
    """Every trial with what it reached, and a link to its own report.

    trials: those of `experiment.json`, if there is one; folder: where the report will lie.
    """
    runs = [run for group in groups for run in group.runs]
    by_path = {run.path.resolve(): run for run in runs}
    names = {run.path.resolve(): group.name for group in groups for run in group.runs}
    finals = _finals(groups, statistics)
    rows: list[list[Cell | float | str | None]] = []
    seen: set[Path] = set()
    for trial in trials:
        path = (folder / str(trial.get("folder"))).resolve()
        seen.add(path)
        label = Cell(float(trial.get("number", len(rows))), str(trial.get("number", len(rows))))
        status = str(trial.get("status", ""))
        rows.append(
            [
                label,
                *_trial_row(by_path.get(path), names.get(path, ""), finals, folder, status),
                str(trial.get("error") or ""),
            ]
        )
    for path, run in by_path.items():
        if path not in seen:
            label = Cell(float(len(rows)), str(len(rows)))
            rows.append([label, *_trial_row(run, names[path], finals, folder, run.status), ""])
    failed = frozenset(i for i, row in enumerate(rows) if row[3] in ("failed",))
    dim = frozenset(i for i, row in enumerate(rows) if row[3] in ("pruned", "waiting"))
    columns = ["trial", "run", "group", "status", "seed", "final return", "best", "frames", "error"]
    return Section("trials", "Trials", [Table(columns, rows, marked=failed, dim=dim)])


def _trial_row(
    run: Run | None, group: str, finals: Mapping[Path, Mapping[str, Any]], folder: Path, status: str
) -> list[Cell | float | str | None]:
    if run is None:
        return [UNKNOWN, group, status, None, None, None, None]
    facts = finals.get(run.path, {})
    link = relative(run.path / "report.html", folder) if (run.path / "report.html").exists() else ""
    status = run.status if status in ("", "running") else status
    seed = Cell(None, UNKNOWN) if run.seed is None else Cell(run.seed, str(run.seed))
    frames = facts.get("frames")
    return [Cell(run.name, link=link), group, status, seed, facts.get("final"), facts.get("best"), frames]


def _finals(groups: Sequence[Group], statistics: Mapping[str, Any]) -> dict[Path, dict[str, Any]]:
    """By folder of the run: its final and best return and its frames, means over its sessions.

    Names do not tell runs apart: each experiment has a first trial.
    """
    sessions: dict[Path, list[Mapping[str, Any]]] = {}
    for entry, own in zip(statistics["envs"], by_env(groups).values(), strict=True):
        for facts, group in zip(entry["groups"], own, strict=True):
            paths = [run.path for run in group.runs for _ in run.sessions]
            for path, session in zip(paths, facts["sessions"], strict=True):
                sessions.setdefault(path, []).append(session)
    return {
        run: {
            "final": _mean([session["final_return"] for session in own]),
            "best": max((s["best_return"] for s in own if s["best_return"] is not None), default=None),
            "frames": max(session["frames"] for session in own),
        }
        for run, own in sessions.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def groups_section(
    groups: Sequence[Group], command: str, resumes: Sequence[Mapping[str, Any]] = ()
) -> Section:
    """What was typed, at first and at each resume, and what differs between the groups."""
    firsts = [group.runs[0] for group in groups]
    blocks: list[Block] = []
    if command:
        blocks.append(Command(command, "What was typed:"))
    if resumes:
        rows = [[moment(entry.get("time")), typed(entry.get("command"))] for entry in resumes]
        blocks.append(Table(["resumed", "command"], rows, caption="Resumed"))
    different = varied(firsts)
    if different:
        keys = list(different)[:20]
        rows = [[group.name, *(told(different[key][i]) for key in keys)] for i, group in enumerate(groups)]
        blocks.append(Table(["group", *keys], rows, caption="What differs between the groups"))
    versions = sorted({_code(run) for group in groups for run in group.runs})
    if len(versions) == 1:
        blocks.append(Note(f"All runs are of one code: {versions[0]}."))
    else:
        blocks.append(Note(f"The runs are of {len(versions)} versions of the code: {'; '.join(versions)}."))
    whole = yaml.safe_dump(firsts[0].config, sort_keys=False, allow_unicode=True)
    blocks.append(Command(whole, f"the whole configuration of {groups[0].name}", folded=True))
    return Section("configuration", "Configuration", blocks)


def _code(run: Run) -> str:
    git = (run.provenance.get("git") or {}).get("labrl") or {}
    version = run.provenance.get("packages", {}).get("labrl", UNKNOWN)
    commit = str(git.get("commit") or "")[:10]
    changed = " with changes" if git.get("dirty") else ""
    return f"labrl {version}" + (f", commit {commit}{changed}" if commit else "")
