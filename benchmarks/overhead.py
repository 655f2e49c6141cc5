"""Measure the cost of logging, evaluation and checkpoints: `meta=fast_atari` beside a run without them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.labrl_side import train
from benchmarks.report import Report, Row

FRAMES = 40_960


def run(repeats: int, quick: bool) -> Report:
    """Measure the seconds with and without them in turns, and the fraction of time spent in callbacks."""
    frames = 4096 if quick else FRAMES
    results = take_turns(
        {
            "with": lambda i: alone("benchmarks.overhead", quiet=False, frames=frames, seed=i),
            "without": lambda i: alone("benchmarks.overhead", quiet=True, frames=frames, seed=i),
        },
        repeats,
        "Overhead",
    )
    seconds = {name: [m["wall"] for m in measured] for name, measured in results.items()}
    fractions = [100 * m["callbacks"] / m["wall"] for m in results["with"]]
    extra = [100 * (a / b - 1) for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    return Report(
        "overhead",
        f"Cost of logging, evaluation and checkpoints (Pong, {frames:,} frames)",
        [
            Row("meta=fast_atari", seconds["with"], "s"),
            Row("no rows or checkpoints before the end", seconds["without"], "s"),
            Row("fraction of time spent in callbacks", fractions, "%"),
            Row("additional time", extra, "%"),
        ],
    )


def measure(quiet: bool, frames: int, seed: int) -> Measured:
    """Measure the seconds of the training loop. quiet: write no row and no checkpoint before the end."""
    note = Path(tempfile.mkdtemp(prefix="labrl-bench-")) / "probe.json"
    overrides = ["meta=fast_atari", "env=pong", f"env.max_frame={frames}", f"seed={seed}", "meta.device=cpu"]
    overrides += ["+callbacks.probe._target_=benchmarks.probe.Probe", f"+callbacks.probe.path={note}"]
    if quiet:
        overrides += [f"meta.log_frequency={frames}", f"meta.eval_frequency={frames}"]
        overrides += ["meta.tensorboard=false", "meta.progress=false"]
    train(overrides)
    noted = json.loads(note.read_text())
    return {"wall": noted["wall"], "callbacks": noted["phases"]["callbacks"]}


if __name__ == "__main__":
    answer(measure)
