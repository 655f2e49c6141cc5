"""Measured numbers as CSV beside the page, because the run itself may lie elsewhere or be deleted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.published import Cell, Result
from labrl.analysis.intervals import Estimate
from labrl.analysis.runs import Run
from labrl.storage.atomic import write_atomic

COMPARED = frozenset({"better", "equal", "worse"})
"""The verdicts about a cell that was run to its end."""

_ESTIMATES = ("score", "final")


def read(file: Path) -> dict[str, dict[str, str]]:
    """The rows by their `name`; none where there is no such file yet. Columns are texts, '' for none."""
    if not file.exists():
        return {}
    return {row["name"]: row for row in csv.DictReader(file.read_text().splitlines())}


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows`, each with a `name`, in their order."""
    file.parent.mkdir(exist_ok=True)
    rows = list(rows)
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([{key: "" if value is None else value for key, value in row.items()} for row in rows])
    write_atomic(file, text.getvalue())


def source(run: Run, name: str, folder: Path) -> dict[str, str]:
    """Columns that say where numbers come from; keeps its configuration, `folder`/configs/`name`.yaml."""
    configs = folder / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    write_atomic(configs / f"{name}.yaml", OmegaConf.to_yaml(OmegaConf.create(run.config)))
    return {"commit": commit(run)}


def commit(run: Run) -> str:
    """Return the commit of labrl, with a plus where files were changed; '' where unknown."""
    code = run.provenance.get("git", {}).get("labrl") or {}
    return f"{code.get('commit') or ''}{'+' if code.get('dirty') else ''}"


def as_row(result: Result) -> dict[str, Any]:
    """Return the row from which `from_row` makes the same result."""
    row: dict[str, Any] = {"name": result.cell.name, "verdict": result.verdict, "sessions": result.sessions}
    for name in _ESTIMATES:
        value, low, high = getattr(result, name) or (None, None, None)
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row


def from_row(cell: Cell, row: Mapping[str, str]) -> Result:
    """The result of `cell` that was written as `row`."""
    score, final = (_estimate(row, name) for name in _ESTIMATES)
    return Result(cell, row["verdict"], score, final, int(row["sessions"]))


def newer(known: Result | None, found: Result) -> Result:
    """`found`; what is `known` where there is no run, or one not at its end as the known one was."""
    if known is None or found.verdict in COMPARED:
        return found
    return known if known.verdict in COMPARED or found.verdict == "not run" else found


def _estimate(row: Mapping[str, str], name: str) -> Estimate | None:
    value, low, high = (
        float(text) if text else None for text in (row[name], row[f"{name}_low"], row[f"{name}_high"])
    )
    return None if value is None else Estimate(value, low, high)
