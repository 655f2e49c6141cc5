"""Measure the cost of logging, evaluating and checkpointing: `meta=fast_atari` beside a run without them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.alone import Measured, alone, answer, take_turns
from benchmarks.labrl_side import train
from benchmarks.report import Report, Row

FRAMES = 40_960


def run(repeats: int, quick: bool) -> Report:
    """Seconds with and without, taking turns, and the share that the run itself says callbacks took."""
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
    shares = [100 * m["callbacks"] / m["wall"] for m in results["with"]]
    extra = [100 * (a / b - 1) for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    return Report(
        "overhead",
        f"Cost of logging, evaluating and checkpointing (Pong, {frames:,} frames)",
        [
            Row("meta=fast_atari", seconds["with"], "s"),
            Row("neither rows nor checkpoints before the end", seconds["without"], "s"),
            Row("share of the time spent in callbacks", shares, "%"),
            Row("more time than without", extra, "%"),
        ],
    )


def measure(quiet: bool, frames: int, seed: int) -> Measured:
    """Seconds of the whole training loop. quiet: nothing is due before the end."""
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
