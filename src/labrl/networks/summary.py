"""Text summaries of networks: layers and numbers of parameters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def count(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def summary(modules: Mapping[str, nn.Module]) -> str:
    """Return a table for each network, with its layers and the name, shape and size of each parameter."""
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
