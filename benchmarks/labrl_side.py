"""Time labrl as users run it: a whole trial with logging, evaluation, checkpoints and TensorBoard."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import labrl
from benchmarks.alone import Measured, answer
from benchmarks.problems import problem_of
from labrl.run.tables import TEXT_COLUMNS

QUIET = ("meta.report=false", "meta.videos=false", "meta.tensorboard=false", "meta.progress=false")
"""Overrides for a trial that writes only rows and checkpoints."""


def train(overrides: list[str], sessions: int = 1) -> tuple[Path, list[dict[str, float]]]:
    """Run a trial. Return the folder of its first session and the rows of its training table.

    Raises RuntimeError if the trial fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="labrl-bench-")) / "run"
    result = labrl.train(
        [*overrides, f"meta.max_session={sessions}", "wandb=disabled", f"hydra.run.dir={folder}"]
    )
    if result.exit_code != 0:
        raise RuntimeError(f"labrl ended with {result.exit_code}: {result.sessions}")
    session = folder / "session_0"
    return session, read_rows(session)


def read_rows(session: Path) -> list[dict[str, float]]:
    """Return the rows of the training table of a session, without its columns of text."""
    with (session / "train.csv").open() as file:
        return [
            {name: float(cell or "nan") for name, cell in row.items() if name not in TEXT_COLUMNS}
            for row in csv.DictReader(file)
        ]


def measure(problem: str, num_envs: int, rows: int, frames_per_row: int, seed: int) -> Measured:
    """Measure the frames per second over `rows` rows of the training table, after the warm-up."""
    chosen = problem_of(problem, num_envs)
    before = -(-chosen.warm_up // frames_per_row)  # rows of the warm-up
    _, table = train(
        [
            *chosen.overrides(),
            f"seed={seed}",
            f"env.max_frame={(before + rows) * frames_per_row}",
            f"meta.log_frequency={frames_per_row}",
            f"meta.eval_frequency={frames_per_row}",
        ]
    )
    first, last = table[before - 1], table[-1]
    return {"fps": (last["frame"] - first["frame"]) / (last["wall"] - first["wall"])}


if __name__ == "__main__":
    answer(measure)
