"""Keep measured numbers and curves beside the page, because the runs may be elsewhere or deleted.

`sessions.csv` has a row for each session of each cell of the page, `curves.csv` the returns of these sessions
over frames, and `configs/<cell>.yaml` the configuration of each cell.
"""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from labrl.analysis.measures import time_to
from labrl.run.atomic import write_atomic
from labrl.run.run import Run

NUMBERS, CURVES, CONFIGS = "sessions.csv", "curves.csv", "configs"
"""Names of the files and of the folder."""

COLUMNS = (
    *(
        "name",
        "environment",
        "agent",
        "session",
        "seed",
        "status",
        "frames",
        "budget",
        "return",
        "best",
        "reached",
        "minutes",
    ),
    *("score", "final", "verdict", "set", "commit", "machine"),
)
"""Columns of NUMBERS. `reached`: the frame at which each goal of the chapter was reached, or a dash;
`minutes`: those of the session."""

POINT = ("name", "session", "frame", "return", "commit")
"""Columns of CURVES."""

POINTS = 50
"""Largest number of points of the curve of a session."""

NOT_RECORDED = "not recorded"

Row = Mapping[str, Any]


class Records:
    """The numbers and curves in a folder, by the name of their cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers: dict[str, list[dict[str, str]]] = _read(folder / NUMBERS, COLUMNS)
        self.curves: dict[str, list[dict[str, str]]] = _read(folder / CURVES, POINT)

    def keep(self, name: str, rows: Iterable[Row], run: Run, evaluated: bool = False) -> None:
        """Replace what is known of the cell `name` by `rows`, one for each session of `run`, and its curves.

        evaluated: whether the curves show the returns of evaluation episodes, not those of training.
        """
        origin = {"name": name, "commit": commit(run), "machine": _machine(run)}
        self.numbers[name] = [_as_text({**row, **origin}) for row in rows]
        known = {"name": name, "commit": origin["commit"]}
        self.curves[name] = [_as_text({**known, **point}) for point in _points(run, evaluated)]
        (self.folder / CONFIGS).mkdir(parents=True, exist_ok=True)
        config = OmegaConf.to_yaml(OmegaConf.create(run.config))
        write_atomic(self.config_file(name), self.heading(name, run.config) + config)

    def write(self, names: Sequence[str]) -> None:
        """Write the files; the cells are in the order of `names`, which contains all of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / NUMBERS, COLUMNS, self.numbers, names)
        _write(self.folder / CURVES, POINT, self.curves, names)

    def curve(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return frames and returns of each session of a cell; [] if they were not kept."""
        sessions: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in self.curves.get(name, ()):
            sessions[row["session"]].append((float(row["frame"]), float(row["return"])))
        return [(points[:, 0], points[:, 1]) for points in map(np.array, sessions.values())]

    def config_file(self, name: str) -> Path:
        """Return the path of the configuration of a cell."""
        return self.folder / CONFIGS / f"{name}.yaml"

    def heading(self, name: str, config: Mapping[str, Any]) -> str:
        """Return the comment with which the configuration of a cell begins: the command that runs it again,
        the runs whose data it needs, and its origin."""
        rows, offline = self.numbers[name], config["agent"].get("offline") or {}
        lines = [f"labrl +rerun={os.path.relpath(self.config_file(name))}"]
        if data := offline.get("folder"):
            file = os.path.relpath(self.config_file(Path(data).name))
            lines.append(f"after labrl +rerun={file} hydra.run.dir={data}")
        code = commit_text(rows[0]["commit"])
        lines.append(f"sessions: {len(rows)}, seed: {config['seed']}, commit: {code}")
        return "".join(f"# {line}\n" for line in lines).replace("`", "")

    def origin(self, name: str) -> dict[str, str]:
        """Return commit, configuration and machine of a cell for a table, or what is not known of them."""
        row = self.numbers[name][0]
        file = self.config_file(name)
        return {
            "commit": commit_text(row["commit"]),
            "configuration": f"[YAML]({file.relative_to(self.folder.parent)})"
            if file.exists()
            else NOT_RECORDED,
            "machine": row["machine"] or NOT_RECORDED,
        }


def session_rows(run: Run, evaluated: bool = False, goals: Sequence[float] = ()) -> list[dict[str, Any]]:
    """Return what NUMBERS has of each session that has a row: frames, the last and the highest return, and
    the frame of the first row with a return of each of the `goals`.
    """
    rows = []
    for session in run.sessions:
        table = session.eval if evaluated else session.train
        if not len(table.get("return_mean", ())):
            continue
        rows.append(
            {
                "session": session.index,
                "seed": session.seed,
                "status": session.status,
                "frames": int(table["frame"][-1]),
                "budget": int(run.config["env"]["max_frame"]),
                "return": round(float(table["return_mean"][-1]), 2),
                "best": round(float(np.nanmax(table["return_mean"])), 2),
                "reached": " ".join(
                    "–" if frame is None else str(int(frame))
                    for frame in (time_to(table["frame"], table["return_mean"], goal) for goal in goals)
                ),
                "minutes": round(float(table["wall"][-1]) / 60),
            }
        )
    return rows


def commit(run: Run) -> str:
    """Return the commit of labrl with a plus for changed files, or '' if it is unknown.

    For a run that was resumed with other code, return the commits of the start and of the last resume.
    """
    codes = [facts.get("git") or {} for facts in (run.first_provenance, run.provenance)]
    return " ".join(dict.fromkeys(filter(None, (commit_of(code.get("labrl") or {}) for code in codes))))


def commit_of(repository: Mapping[str, Any]) -> str:
    """Return the commit of a repository's facts with a plus for changed files, or '' if it is unknown."""
    return f"{repository.get('commit') or ''}{'+' if repository.get('dirty') else ''}"


def commit_text(commits: str) -> str:
    """Return what `commit` returned, shortened, for a table, or that it is not known."""
    texts = [f"`{one[:8]}`{' with changes' if one.endswith('+') else ''}" for one in commits.split()]
    return ", then ".join(texts) or NOT_RECORDED


def _machine(run: Run) -> str:
    """Return the processor, the number of cores and the GPUs of a run, or '' if they are unknown."""
    machine = run.provenance.get("machine") or {}
    cores = machine.get("cores_usable") or machine.get("cores")
    parts = [machine.get("processor"), f"{cores} cores" if cores else None, *(machine.get("gpus") or ())]
    return ", ".join(str(part) for part in parts if part)


def _points(run: Run, evaluated: bool) -> Iterable[dict[str, Any]]:
    """Return at most POINTS finite points of each session's curve, among them its last."""
    for session in run.sessions:
        table = session.eval if evaluated else session.train
        returns = np.asarray(table.get("return_mean", ()), dtype=float)
        known = np.flatnonzero(np.isfinite(returns))
        for place in known[:: -len(known) // POINTS or -1][::-1]:
            frame = int(table["frame"][place])
            yield {"session": session.index, "frame": frame, "return": f"{returns[place]:.5g}"}


def _as_text(row: Row) -> dict[str, str]:
    return {key: "" if value is None else str(value) for key, value in row.items()}


def _read(file: Path, columns: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a file by their `name`, all columns as text; {} if the file does not exist.

    A column that an older file lacks is empty.
    """
    found: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(file.read_text().splitlines()) if file.exists() else ():
        found.setdefault(row["name"], []).append(dict.fromkeys(columns, "") | row)
    return found


def _write(
    file: Path, columns: Sequence[str], rows: Mapping[str, Iterable[Row]], names: Sequence[str]
) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for name in names for row in rows.get(name, ()))
    write_atomic(file, text.getvalue())
