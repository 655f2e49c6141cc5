"""labrl, Stable-Baselines3 and the ceiling on one problem, taking turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import ceiling
from benchmarks.alone import Measured, alone, take_turns
from benchmarks.problems import PROBLEMS
from benchmarks.report import Report, Row
from labrl.learning.compute import Compute
from labrl.trial.devices import available_cpus

PARTS = {
    "env": "environment steps alone",
    "act": "policy forward alone",
    "gradient": "forward and backward alone (samples/s)",
    "bootstrap": "forward of a minibatch alone (samples/s)",
}


def run(case: str, repeats: int, quick: bool) -> Report:
    """Measure one problem. quick: so short that the numbers mean nothing."""
    problem = PROBLEMS[case]
    parts = {
        part: title for part, title in PARTS.items() if part != "bootstrap" or problem.bootstraps_per_sample
    }
    seconds = 0.2 if quick else 2.0
    rows, sb3_frames = (1, problem.sb3_frames // 10) if quick else (problem.rows, problem.sb3_frames)
    fastest = {part: _fastest(case, part, seconds) for part in parts}
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

    labrl = {count: [m["fps"] for m in results[f"labrl {count}"]] for count in env_counts}
    sb3 = {threads: [m["fps"] for m in results[f"sb3 {threads}"]] for threads in sb3_threads}
    best = max(sb3, key=lambda threads: statistics.median(sb3[threads]))
    times = [[m["seconds"] for m in results[part]] for part in parts]
    limits = [ceiling.composition(problem, *of_round) for of_round in zip(*times, strict=True)]
    table = [
        Row(f"**labrl**, {_counted(count, 'environment')}", fps, "frames/s") for count, fps in labrl.items()
    ]
    for threads, fps in sb3.items():
        title = f"Stable-Baselines3, DummyVecEnv, {_counted(threads, 'torch thread')}"
        table.append(Row(title, fps, "frames/s"))
    table.append(Row("ceiling: the parts below one after the other", limits, "frames/s"))
    for (part, title), spent in zip(parts.items(), times, strict=True):
        table.append(Row(f"{title}, {_named(fastest[part])}", [1 / s for s in spent], "1/s"))
    same = labrl[problem.num_envs]
    ratios = {
        "labrl / Stable-Baselines3 at its best": _ratio(same, sb3[best]),
        "labrl / ceiling": _ratio(same, limits),
    }
    return Report(case, problem.title, table, ratios)


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
