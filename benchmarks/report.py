"""Reports of the benchmarks as Markdown, JSON and a chart, with the machine on which they were measured."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from benchmarks.record import commit_of
from labrl.run.provenance import describe_code, describe_machine

PACKAGES = ("labrl", "torch", "stable-baselines3", "gymnasium", "ale-py", "numpy")

RESAMPLES = 5000
"""Number of resamples of a bootstrap interval."""

RESULTS, TABLE, CHART = "results.json", "table.md", "chart"
"""Names of the files in the folder of results; the chart is a PNG and a PDF file."""


@dataclass
class Row:
    """A quantity, measured once per round."""

    title: str
    values: list[float]
    unit: str

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.values)

    def markdown(self) -> str:
        """Return a line of a table with the median, the lowest and the highest value."""
        low, high = min(self.values), max(self.values)
        return f"| {self.title} | {_short(self.median)} | {_short(low)} to {_short(high)} | {self.unit} |"


@dataclass
class Ratio:
    """A ratio of two quantities, with its 95 % bootstrap interval."""

    title: str
    value: float
    low: float
    high: float

    @classmethod
    def paired(cls, title: str, over: Sequence[float], under: Sequence[float]) -> Ratio:
        """Return the median of the ratios within each round, which slow rounds do not affect."""
        ratios = np.array(over) / np.array(under)  # [rounds]
        return cls(title, float(np.median(ratios)), *_interval(np.median(_resampled(ratios, 0), axis=1)))

    @classmethod
    def of_medians(cls, title: str, over: Sequence[float], under: Sequence[float]) -> Ratio:
        """Return the ratio of the medians of two unpaired samples, such as runs with different seeds."""
        drawn = [
            np.median(_resampled(np.array(side), seed), axis=1) for seed, side in enumerate((over, under))
        ]
        with np.errstate(invalid="ignore"):  # both medians are infinite if neither side reached the goal
            return cls(title, float(np.median(over) / np.median(under)), *_interval(drawn[0] / drawn[1]))

    def __str__(self) -> str:
        return f"{_short(self.value)} ({_short(self.low)} to {_short(self.high)})"


@dataclass
class Report:
    """The result of a case."""

    case: str
    title: str
    rows: list[Row]
    ratios: list[Ratio] = field(default_factory=list)
    compared: tuple[Row, Row, Ratio] | None = None
    """labrl, Stable-Baselines3 with its fastest setting, and labrl's relative speed."""
    shares: list[Ratio] = field(default_factory=list)
    """labrl's speed as a fraction of the eager and of the arithmetic ceiling."""

    def markdown(self) -> str:
        """Return a table of the rows, followed by the ratios."""
        lines = [f"### {self.title}", "", "| | median | range | |", "|---|---:|---:|---|"]
        lines += [row.markdown() for row in self.rows]
        ratios = [*([self.compared[2]] if self.compared else []), *self.shares, *self.ratios]
        if ratios:
            lines += ["", *(f"- {ratio.title}: **{ratio}**" for ratio in ratios)]
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """Return all measured numbers for JSON; None replaces infinite ones."""
        return _finite(asdict(self))


class Results:
    """A folder with the newest report of each case and the machine on which it was measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / RESULTS
        self._cases: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}

    def add(self, report: Report, setting: dict[str, Any], rounds: int) -> None:
        """Store a report, and update table and chart with all reports of the same kind of machine."""
        self._cases[report.case] = {**report.plain(), "rounds": rounds, "setting": setting}
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / RESULTS).write_text(json.dumps(self._cases, indent=1, allow_nan=False) + "\n")
        compared = [
            case
            for case in self._cases.values()
            if case["compared"] and case["setting"]["machine"] == setting["machine"]
        ]
        if compared:
            (self._folder / TABLE).write_text(_table(compared, setting))
            _draw(compared, setting, self._folder)


def describe_setting() -> dict[str, Any]:
    """Return the machine, its instructions, and the versions of Python and of the packages."""
    machine = {key: value for key, value in describe_machine().items() if key != "name"}
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    code = describe_code().get("labrl")
    blas = [str(one.get("architecture")) for one in threadpool_info() if one["user_api"] == "blas"]
    # Such a variable selects the matrix products of another processor, which can take 1.5 times as long.
    variables = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
    return {
        "machine": machine,
        "instructions": _instructions(),
        "versions": versions,
        "blas": ", ".join(blas) or None,
        "commit": commit_of(code[0]) if code else "",
        "variables": variables,
    }


def setting_line(setting: dict[str, Any]) -> str:
    """Return a line that describes the setting of a table."""
    packages = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    blas = f"; NumPy's products for {setting['blas']}" if setting.get("blas") else ""
    chosen = "".join(f", {name}={value}" for name, value in setting.get("variables", {}).items())
    return (
        f"{processor(setting)}; {packages}{blas}{chosen}; medians of interleaved rounds, with 95 % "
        "bootstrap intervals."
    )


def processor(setting: dict[str, Any]) -> str:
    """Return the processor, its instructions and the number of cores of a setting."""
    machine = setting["machine"]
    cores = machine.get("cores_usable", machine.get("cores"))
    return f"{machine.get('processor', 'unknown processor')} ({setting['instructions']}), {cores} cores"


def _table(cases: list[dict[str, Any]], setting: dict[str, Any]) -> str:
    lines = [
        "| | labrl | Stable-Baselines3 | times as fast | of the eager ceiling | of the arithmetic ceiling |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        ours, theirs, ratio = case["compared"]
        medians = [
            "not reached" if None in row["values"] else _short(statistics.median(row["values"]))
            for row in (ours, theirs)
        ]
        shares = [share["value"] for share in case["shares"]] or [None, None]
        lines.append(
            f"| {case['title']}, {ours['unit']} | {' | '.join(medians)} | {_with_interval(ratio)} "
            f"| {' | '.join('' if share is None else _short(share) for share in shares)} |"
        )
    return "\n".join([*lines, "", setting_line(setting), ""])


def _with_interval(ratio: dict[str, Any]) -> str:
    value, low, high = (_known(ratio[name]) for name in ("value", "low", "high"))
    return f"{_short(value)} ({_short(low)} to {_short(high)})"


def _draw(cases: list[dict[str, Any]], setting: dict[str, Any], folder: Path) -> None:
    """Draw labrl's speed relative to Stable-Baselines3 as bars with intervals."""
    from matplotlib.figure import Figure

    drawn = [case for case in cases if None not in case["compared"][2].values()][::-1]
    values = np.array([[case["compared"][2][name] for name in ("value", "low", "high")] for case in drawn])
    figure = Figure(figsize=(8, 1.3 + 0.38 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    if drawn:
        value, low, high = values.T
        errors = np.abs([value - low, high - value])
        bars = axes.barh([case["title"] for case in drawn], value, color="#3b6fb6")
        axes.errorbar(value, range(len(drawn)), xerr=errors, fmt="none", ecolor="#333333", capsize=2)
        axes.bar_label(bars, [f"{one:.2g}" for one in value], label_type="center", color="white")
    axes.axvline(1, color="black", linewidth=1)
    figure.suptitle("Times as fast as Stable-Baselines3 (= 1): median and 95 % interval", fontsize=11)
    axes.set_title(processor(setting), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    for ending in ("png", "pdf"):
        figure.savefig(folder / f"{CHART}.{ending}", dpi=150)


def _instructions() -> str:
    """Return the widest vector instructions of the processor that PyTorch uses."""
    import torch

    widest = torch.backends.cpu.get_cpu_capability()
    return f"{widest}, bf16" if torch.cpu._is_avx512_bf16_supported() else f"{widest}, no bf16"


def _resampled(values: np.ndarray, seed: int) -> np.ndarray:
    """Draw from `values` with replacement. [RESAMPLES, len(values)]"""
    return np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))


def _interval(statistics_: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(statistics_, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def _finite(plain: Any) -> Any:
    """Replace infinite numbers and NaN, which JSON does not have, by None."""
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "not reached"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
