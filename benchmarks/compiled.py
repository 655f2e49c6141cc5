"""Measure the gain of torch.compile (`meta.compile`) for acting and gradients on CartPole and Pong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.alone import Measured, alone, take_turns
from benchmarks.report import Ratio, Report, Row

SECONDS = 4.0
"""Seconds of each measurement, after compilation."""

NETWORKS = {"cartpole": ["fp32"], "pong": ["fp32", "bf16"]}
"""Problems whose networks are measured, with the precisions."""

PARTS = {"act": "acting for all environments", "gradient": "forward and backward over a minibatch"}


def run(repeats: int, quick: bool) -> Report:
    """Measure each network with and without torch.compile in turns, on one thread.

    quick: measure for a moment only; the numbers mean nothing then.
    """
    seconds = 0.05 if quick else SECONDS
    measures: dict[str, Callable[[int], Measured]] = {}
    titles: dict[str, tuple[str, str]] = {}
    for problem, precisions in NETWORKS.items():
        for precision in precisions:
            for part, description in PARTS.items():
                title = f"{problem}, {precision}: {description}"
                titles[title] = (f"{title}, not compiled", f"{title}, compiled")
                for compiled, name in enumerate(titles[title]):
                    measures[name] = partial(
                        _measured, f"ppo-{problem}", part, precision, bool(compiled), seconds
                    )
    results = take_turns(measures, repeats, "torch.compile")
    rates = {name: [1 / one["seconds"] for one in measured] for name, measured in results.items()}
    rows = [Row(name, values, "samples/s") for name, values in rates.items()]
    gains = [
        Ratio.paired(title, rates[compiled], rates[plain]) for title, (plain, compiled) in titles.items()
    ]
    return Report("compile", "torch.compile, speed relative to uncompiled networks", rows, gains)


def _measured(
    problem: str, part: str, precision: str, compiled: bool, seconds: float, round_: int
) -> Measured:
    overrides = {"problem": problem, "part": part, "precision": precision, "compiled": compiled}
    return alone("benchmarks.ceiling", **overrides, seconds=seconds, threads=1)
