"""Keep measured numbers as CSV files beside the page, because the runs may be elsewhere or deleted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.published import Cell, Result
from labrl.analysis.intervals import Estimate
from labrl.run.atomic import write_atomic
from labrl.run.run import Run

COMPARED = frozenset({"better", "equal", "worse"})
"""Verdicts about cells whose run has finished."""

_ESTIMATES = ("score", "final")


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
    """Return columns that name the origin of numbers.

    Also saves the configuration of the run as `folder`/configs/`name`.yaml.
    """
    configs = folder / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    write_atomic(configs / f"{name}.yaml", OmegaConf.to_yaml(OmegaConf.create(run.config)))
    return {"commit": commit(run)}


def commit(run: Run) -> str:
    """Return the commit of labrl with a plus for changed files, or '' if it is unknown."""
    code = run.provenance.get("git", {}).get("labrl") or {}
    return f"{code.get('commit') or ''}{'+' if code.get('dirty') else ''}"


def as_row(result: Result) -> dict[str, Any]:
    """Return a result as a row, from which `from_row` restores it."""
    row: dict[str, Any] = {"name": result.cell.name, "verdict": result.verdict, "sessions": result.sessions}
    for name in _ESTIMATES:
        value, low, high = getattr(result, name) or (None, None, None)
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row


def from_row(cell: Cell, row: Mapping[str, str]) -> Result:
    """Return the result of `cell` that `as_row` wrote as `row`."""
    score, final = (_estimate(row, name) for name in _ESTIMATES)
    return Result(cell, row["verdict"], score, final, int(row["sessions"]))


def newer(known: Result | None, found: Result) -> Result:
    """Return `found`, or the `known` result if `found` has no run, or if only `known` has a finished run."""
    if known is None or found.verdict in COMPARED:
        return found
    return known if known.verdict in COMPARED or found.verdict == "not run" else found


def _estimate(row: Mapping[str, str], name: str) -> Estimate | None:
    value, low, high = (
        float(text) if text else None for text in (row[name], row[f"{name}_low"], row[f"{name}_high"])
    )
    return None if value is None else Estimate(value, low, high)
