"""labrl, Stable-Baselines3 and the ceiling on one problem, taking turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from benchmarks import ceiling
from benchmarks.alone import Measured, alone, take_turns
from benchmarks.problems import PROBLEMS
from benchmarks.report import Report, Row
from labrl.lab.devices import available_cpus
from labrl.networks.compute import Compute

PARTS = {
    "env": "environment steps alone",
    "act": "policy forward alone",
    "gradient": "forward and backward alone (samples/s)",
}


def run(case: str, repeats: int, quick: bool) -> Report:
    """Measure one problem. quick: so short that the numbers mean nothing."""
    problem = PROBLEMS[case]
    if quick:
        problem = replace(problem, rows=1, rollouts=1, frames_per_row=problem.rollout)
    seconds = 0.2 if quick else 2.0
    fastest = {part: _fastest(case, part, seconds) for part in PARTS}
    sb3_threads = sorted({1, min(2, available_cpus())})
    measures: dict[str, Callable[[int], Measured]] = {
        "labrl": lambda i: alone(
            "benchmarks.labrl_side",
            problem=case,
            rows=problem.rows,
            frames_per_row=problem.frames_per_row,
            seed=i,
        )
    }
    for threads in sb3_threads:
        measures[f"sb3 {threads}"] = partial(_sb3, case, threads, problem.rollouts)
    for part, variant in fastest.items():
        measures[part] = partial(_part, case, part, seconds, variant)
    results = take_turns(measures, repeats, problem.title)

    labrl = [m["fps"] for m in results["labrl"]]
    sb3 = {threads: [m["fps"] for m in results[f"sb3 {threads}"]] for threads in sb3_threads}
    best = max(sb3, key=lambda threads: statistics.median(sb3[threads]))
    parts = {part: [m["seconds"] for m in results[part]] for part in PARTS}
    limits = [ceiling.composition(problem, *times) for times in zip(*parts.values(), strict=True)]
    rows = [Row("**labrl**", labrl, "frames/s")]
    for threads, fps in sb3.items():
        title = f"Stable-Baselines3, DummyVecEnv, {_counted(threads, 'torch thread')}"
        rows.append(Row(title, fps, "frames/s"))
    rows.append(Row("ceiling: the parts below one after the other", limits, "frames/s"))
    for part, title in PARTS.items():
        rows.append(Row(f"{title}, {_named(fastest[part])}", [1 / s for s in parts[part]], "1/s"))
    ratios = {
        "labrl / Stable-Baselines3 at its best": _ratio(labrl, sb3[best]),
        "labrl / ceiling": _ratio(labrl, limits),
    }
    return Report(case, problem.title, rows, ratios)


def _sb3(case: str, threads: int, rollouts: int, round_: int) -> Measured:
    return alone("benchmarks.sb3_side", problem=case, threads=threads, rollouts=rollouts, seed=round_)


def _part(case: str, part: str, seconds: float, variant: ceiling.Variant, round_: int) -> Measured:
    return alone("benchmarks.ceiling", problem=case, part=part, seconds=seconds, **variant)


def _fastest(case: str, part: str, seconds: float) -> ceiling.Variant:
    """The variant of a part that takes least time; the rounds then measure that one."""
    has_bf16 = Compute.choose("cpu", "auto", 1).precision == torch.bfloat16
    precisions = ["fp32", "bf16"] if has_bf16 else ["fp32"]
    times = [
        (_part(case, part, seconds, variant, 0)["seconds"], i, variant)
        for i, variant in enumerate(ceiling.variants(part, precisions, available_cpus()))
    ]
    return min(times)[2]


def _named(variant: ceiling.Variant) -> str:
    if "workers" not in variant:
        return _counted(variant["threads"], "thread")
    workers, threads = _counted(variant["workers"], "worker"), _counted(variant["threads"], "thread")
    return f"{workers} of {threads}, {variant['precision']}"


def _counted(count: int | str, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _ratio(numerators: list[float], denominators: list[float]) -> float:
    """Median over the rounds of the ratio within a round, which a slow round leaves as it is."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))
