"""Measure labrl, Stable-Baselines3 and the ceilings of a problem in turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks import ceiling
from benchmarks.alone import Measured, alone, take_turns
from benchmarks.problems import PROBLEMS
from benchmarks.report import Ratio, Report, Row
from labrl.learning.compute import Compute
from labrl.session.devices import available_cpus

PARTS = {
    "env": "environment steps alone",
    "act": "policy forward alone",
    "gradient": "forward and backward alone (samples/s)",
    "bootstrap": "forward of a minibatch alone (samples/s)",
    "matrices": "products of large matrices alone",
}


def run(case: str, repeats: int, quick: bool) -> Report:
    """Measure a problem. quick: measure for a moment only; the numbers mean nothing then."""
    problem = PROBLEMS[case]
    parts = {
        part: title for part, title in PARTS.items() if part != "bootstrap" or problem.bootstraps_per_sample
    }
    seconds = 0.2 if quick else 2.0
    rows, sb3_frames = (1, problem.sb3_frames // 10) if quick else (problem.rows, problem.sb3_frames)
    fastest = {part: _fastest(case, part, seconds, quick) for part in parts}
    operations = alone("benchmarks.ceiling", problem=case, part="operations", seconds=seconds, threads=1)
    sb3_threads = sorted({1, min(2, available_cpus())})
    env_counts = [problem.num_envs, *problem.also_num_envs]
    measures: dict[str, Callable[[int], Measured]] = {}
    for num_envs in env_counts:
        measures[f"labrl {num_envs}"] = partial(_labrl, case, num_envs, rows)
    for threads in sb3_threads:
        measures[f"sb3 {threads}"] = partial(_sb3, case, threads, sb3_frames)
    for part, variant in fastest.items():
        measures[part] = partial(_part, case, part, seconds, variant)
    results = take_turns(measures, repeats, problem.title)

    labrl = [
        Row(
            f"**labrl**, {_counted(count, 'environment')}",
            [m["fps"] for m in results[f"labrl {count}"]],
            "frames/s",
        )
        for count in env_counts
    ]
    sb3 = [
        Row(
            f"Stable-Baselines3, DummyVecEnv, {_counted(threads, 'torch thread')}",
            [m["fps"] for m in results[f"sb3 {threads}"]],
            "frames/s",
        )
        for threads in sb3_threads
    ]
    best = max(sb3, key=lambda row: row.median)
    times = {part: [m["seconds"] for m in results[part]] for part in parts}
    summed = [times[part] for part in parts if part != "matrices"]
    eager = [ceiling.composition(problem, *of_round) for of_round in zip(*summed, strict=True)]
    counted = [ceiling.arithmetic(problem, **operations, speed=1 / spent) for spent in times["matrices"]]
    table = [
        *labrl,
        *sb3,
        Row("eager ceiling: the parts below in sequence", eager, "frames/s"),
        Row("arithmetic ceiling: all operations at the speed of large matrices", counted, "frames/s"),
    ]
    for part, title in parts.items():
        scale, unit = (1e-9, "GFLOP/s") if part == "matrices" else (1, "1/s")
        table.append(Row(f"{title}, {_named(fastest[part])}", [scale / s for s in times[part]], unit))
    same = labrl[0].values
    return Report(
        case,
        problem.title,
        table,
        compared=(labrl[0], best, Ratio.paired("labrl / fastest Stable-Baselines3", same, best.values)),
        shares=[
            Ratio.paired("labrl / eager ceiling", same, eager),
            Ratio.paired("labrl / arithmetic ceiling", same, counted),
        ],
    )


def _labrl(case: str, num_envs: int, rows: int, round_: int) -> Measured:
    frames = PROBLEMS[case].frames_per_row
    return alone(
        "benchmarks.labrl_side",
        problem=case,
        num_envs=num_envs,
        rows=rows,
        frames_per_row=frames,
        seed=round_,
    )


def _sb3(case: str, threads: int, frames: int, round_: int) -> Measured:
    return alone("benchmarks.sb3_side", problem=case, threads=threads, frames=frames, seed=round_)


def _part(case: str, part: str, seconds: float, variant: ceiling.Variant, round_: int) -> Measured:
    return alone("benchmarks.ceiling", problem=case, part=part, seconds=seconds, **variant)


def _fastest(case: str, part: str, seconds: float, quick: bool) -> ceiling.Variant:
    """Return the variant of a part that takes the least time, which all rounds then measure."""
    has_bf16 = Compute.choose("cpu", "auto", 1).precision == torch.bfloat16
    precisions = ["fp32", "bf16"] if has_bf16 else ["fp32"]
    variants = ceiling.variants(part, precisions, available_cpus())
    if quick:
        return variants[0]
    times = [
        (_part(case, part, seconds, variant, 0)["seconds"], i, variant) for i, variant in enumerate(variants)
    ]
    return min(times)[2]


def _named(variant: ceiling.Variant) -> str:
    if "workers" not in variant:
        return _counted(variant["threads"], "thread")
    workers, threads = _counted(variant["workers"], "worker"), _counted(variant["threads"], "thread")
    return f"{workers} of {threads}, {variant['precision']}"


def _counted(count: int | str, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
