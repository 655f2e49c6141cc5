"""Networks as text: what is in them, and how much of it is learned."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def count(module: nn.Module) -> int:
    """Numbers that are learned."""
    return sum(parameter.numel() for parameter in module.parameters())


def summary(modules: Mapping[str, nn.Module]) -> str:
    """A table for each network: parameters by name and shape, with their number, and its layers."""
    parts = []
    for title, module in modules.items():
        rows = [
            (name, " x ".join(map(str, parameter.shape)) or "1", f"{parameter.numel():,}")
            for name, parameter in module.named_parameters()
        ]
        rows.append(("", "parameters", f"{count(module):,}"))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        parts.append("\n".join([f"{title}: {module}", "", *lines]))
    return "\n\n".join(parts) + "\n"
