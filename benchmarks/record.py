"""Keep measured numbers as CSV files beside the page, because the runs may be elsewhere or deleted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from benchmarks.published import VERDICTS, Cell, Result, compare
from labrl.analysis.intervals import Estimate, aggregates
from labrl.run.atomic import write_atomic
from labrl.run.run import Run


def read(file: Path) -> dict[str, dict[str, str]]:
    """Return the rows of a file by their `name`, all columns as text; {} if the file does not exist."""
    if not file.exists():
        return {}
    return {row["name"]: row for row in csv.DictReader(file.read_text().splitlines())}


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows`, each of which has a `name`, in the given order."""
    file.parent.mkdir(exist_ok=True)
    rows = list(rows)
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([{key: "" if value is None else value for key, value in row.items()} for row in rows])
    write_atomic(file, text.getvalue())


def source(run: Run, name: str, folder: Path) -> dict[str, str]:
    """Return the columns `commit` and `machine`, which are empty if they are unknown.

    Also saves the configuration of the run as `folder`/configs/`name`.yaml.
    """
    configs = folder / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    write_atomic(configs / f"{name}.yaml", OmegaConf.to_yaml(OmegaConf.create(run.config)))
    machine = run.provenance.get("machine") or {}
    cores = machine.get("cores_usable") or machine.get("cores")
    parts = [machine.get("processor"), f"{cores} cores" if cores else None, *(machine.get("gpus") or ())]
    return {"commit": commit(run), "machine": ", ".join(str(part) for part in parts if part)}


def commit(run: Run) -> str:
    """Return the commit of labrl with a plus for changed files, or '' if it is unknown.

    For a run that was resumed with other code, return the commits of the start and of the last resume.
    """
    found = []
    for facts in (run.first_provenance, run.provenance):
        code = (facts.get("git") or {}).get("labrl") or {}
        found.append(f"{code.get('commit') or ''}{'+' if code.get('dirty') else ''}")
    return " ".join(dict.fromkeys(filter(None, found)))


def origin(row: Mapping[str, Any], folder: Path) -> str:
    """Return the commit of a row, shortened, for a table, or what is not known of its origin."""
    commits = str(row.get("commit") or "").split()
    if not commits:
        return "not recorded"
    texts = [f"`{one[:8]}`{' with changes' if one.endswith('+') else ''}" for one in commits]
    complete = (folder / "configs" / f"{row['name']}.yaml").exists()
    return ", then ".join(texts) + ("" if complete else ", configuration not recorded")


def as_row(result: Result) -> dict[str, Any]:
    """Return a result as a row, from which `from_row` restores it."""
    value, low, high = result.score or (None, None, None)
    return {
        "name": result.cell.name,
        "verdict": result.verdict,
        "sessions": result.sessions,
        "score": value,
        "score_low": low,
        "score_high": high,
        "scores": " ".join(map(str, result.scores)),
        "final": result.final,
    }


def from_row(cell: Cell, row: Mapping[str, str]) -> Result:
    """Return the result of `cell` that `as_row` wrote as `row`.

    Its interval and verdict are computed again if it has the score of each session.
    """
    scores = tuple(map(float, row.get("scores", "").split()))
    value, low, high = (
        float(row[f"score{end}"]) if row[f"score{end}"] else None for end in ("", "_low", "_high")
    )
    score = None if value is None else Estimate(value, low, high)
    if scores:
        score = aggregates(np.array(scores))["mean"]
    verdict = compare(cell, score) if score and row["verdict"] in VERDICTS else row["verdict"]
    final = float(row["final"]) if row["final"] else None
    return Result(cell, verdict, score, final, int(row["sessions"]), scores)


def newer(known: Result | None, found: Result) -> Result:
    """Return `found`, or the `known` result if `found` has no run, or if only `known` has a finished run."""
    if known is None or found.verdict in VERDICTS:
        return found
    return known if known.verdict in VERDICTS or found.verdict == "not run" else found
