"""Measure the gain of torch.compile (`meta.compile`) for acting and gradients, of a small network and
Atari's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.alone import Measured, alone, take_turns
from benchmarks.report import Ratio, Report, Row

SECONDS = 4.0
"""Seconds of each measurement, after compilation."""

NETWORKS = {"cartpole": ["fp32"], "pong": ["fp32", "bf16"]}
"""Problems whose networks are measured, and in which precision."""

PARTS = {"act": "acting for all environments", "gradient": "forward and backward over a minibatch"}


def run(repeats: int, quick: bool) -> Report:
    """Each with and without, taking turns, one thread. quick: so short that the numbers mean nothing."""
    seconds = 0.05 if quick else SECONDS
    measures: dict[str, Callable[[int], Measured]] = {}
    titles: dict[str, tuple[str, str]] = {}
    for problem, precisions in NETWORKS.items():
        for precision in precisions:
            for part, told in PARTS.items():
                title = f"{problem}, {precision}: {told}"
                titles[title] = (f"{title}, as it is", f"{title}, compiled")
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
    return Report("compile", "torch.compile, times as fast as without", rows, gains)


def _measured(
    problem: str, part: str, precision: str, compiled: bool, seconds: float, round_: int
) -> Measured:
    overrides = {"problem": problem, "part": part, "precision": precision, "compiled": compiled}
    return alone("benchmarks.ceiling", **overrides, seconds=seconds, threads=1)
