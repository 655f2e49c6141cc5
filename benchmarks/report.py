"""Results as a Markdown table and as JSON, with the machine named."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from labrl.storage.provenance import describe_machine

PACKAGES = ("labrl", "torch", "stable-baselines3", "gymnasium", "ale-py", "numpy")


@dataclass
class Row:
    """One quantity, measured once a round."""

    title: str
    values: list[float]
    unit: str

    def markdown(self) -> str:
        """Median, and lowest to highest."""
        low, high = min(self.values), max(self.values)
        return (
            f"| {self.title} | {_short(statistics.median(self.values))} "
            f"| {_short(low)} to {_short(high)} | {self.unit} |"
        )


@dataclass
class Report:
    """One case."""

    case: str
    title: str
    rows: list[Row]
    ratios: dict[str, float] = field(default_factory=dict)

    def markdown(self) -> str:
        """A table, and the ratios under it."""
        lines = [f"### {self.title}", "", "| | median | range | |", "|---|---:|---:|---|"]
        lines += [row.markdown() for row in self.rows]
        if self.ratios:
            lines.append("")
            lines += [f"- {title}: **{ratio:.3g}**" for title, ratio in self.ratios.items()]
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """Everything that was measured, for JSON; None for what was never reached."""
        plain = asdict(self)
        for row in plain["rows"]:
            row["values"] = [value if math.isfinite(value) else None for value in row["values"]]
        return plain


def describe_setting() -> dict[str, Any]:
    """Machine, Python and the versions that matter."""
    machine = {key: value for key, value in describe_machine().items() if key != "name"}
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"machine": machine, "instructions": _instructions(), "versions": versions}


def setting_line(setting: dict[str, Any], repeats: int) -> str:
    """One sentence that a table can stand under."""
    machine, versions = setting["machine"], setting["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine.get('processor', 'unknown processor')} ({setting['instructions']}), "
        f"{machine.get('cores_usable', machine.get('cores'))} cores; {packages}; "
        f"medians of {repeats} interleaved rounds."
    )


def _instructions() -> str:
    """The widest arithmetic that torch found on the processor."""
    import torch

    widest = torch.backends.cpu.get_cpu_capability()
    return f"{widest}, bf16" if torch.cpu._is_avx512_bf16_supported() else f"{widest}, no bf16"


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "not reached"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
