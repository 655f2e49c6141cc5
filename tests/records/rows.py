"""Rows and weights of a short run of each agent, which equal those of the same run interrupted and resumed.

Their bits depend on the processor and on PyTorch, so there is a record for each kind of them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compositions import remember
from exact_cases import differences as unequal_places
from exact_cases import folder_override, rows, small, state
from exact_matrix import AGENTS, Case, applies, extended, labrl
from threadpoolctl import threadpool_info

BUDGETS = {"cartpole": 800, "pendulum": 800, "pong": 160}
"""Frames of the run in each task: enough for several rows and for updates of every agent."""

IMAGES = ("ppo", "dqn")
"""Agents that also run on images."""


def kind() -> str:
    """Return what the bits of this machine depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    vendors = [line for line in lines if "vendor_id" in line]
    blas = {str(one.get("architecture")) for one in threadpool_info() if one["user_api"] == "blas"}
    sizes = [f"{name}={value}" for name, value in os.environ.items() if name == "OPENBLAS_L2_SIZE"]
    parts = [platform.machine(), *(line.split()[-1] for line in vendors[:1]), *sorted(blas), *sizes]
    versions = [f"torch {torch.__version__}", f"numpy {np.__version__}"]
    return ", ".join([*parts, torch.backends.cpu.get_cpu_capability(), *versions])


HERE = kind()


def take(before: Any) -> dict[str, Any]:
    """Run all cases, each once uninterrupted and once resumed."""
    remember()
    cases = {
        f"{agent} {task}": [*small(agent, task, narrow=False), f"env.max_frame={BUDGETS[task]}"]
        for agent in AGENTS
        for task in tasks(agent)
    }
    return {name: taken(name, overrides) for name, overrides in cases.items()}


def tasks(agent: str) -> list[str]:
    """Return the tasks for an agent: CartPole if it supports it, otherwise Pendulum."""
    vector = "cartpole" if applies(small(agent, "cartpole")) else "pendulum"
    return [vector, "pong"] if agent in IMAGES else [vector]


def taken(name: str, overrides: list[str]) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labrl-records-") as folder:
        whole, resumed = Path(folder, "whole"), Path(folder, "resumed")
        labrl(*overrides, folder_override(whole))
        extended(Case(overrides, whole, resumed, np.random.default_rng(0), kills=1))
        places = unequal_places(whole, resumed)
        session = whole / "session_0"
        tables = {table: rows(session / f"{table}.csv") for table in ("train", "eval")}
        entry = {
            "overrides": " ".join(overrides),
            "resumed": "differs" if places else "equal",
            "weights": digest_of_weights(state(session)["agent"]),
            "return": tables["eval"][-1]["return_mean"],
        }
        for table, lines in tables.items():
            entry[f"{table} columns"] = ", ".join(lines[0])
            entry[f"{table} rows"] = {line["frame"]: digest(repr(list(line.values()))) for line in lines}
    print(f"{name}: {entry['return']} ({time.monotonic() - began:.0f} s)", *places[:5], flush=True)
    return entry


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()[:8]


def digest_of_weights(agent: Any) -> str:
    """Return a digest of all weights of an agent, whatever their names and order."""
    return digest(" ".join(sorted(digest(tensor.numpy().tobytes()) for tensor in weights(agent))))


def weights(node: Any) -> list[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        return [node.contiguous()]
    if isinstance(node, dict):
        return [one for name, part in node.items() if "optimizer" not in str(name) for one in weights(part)]
    return [one for part in node for one in weights(part)] if isinstance(node, list | tuple) else []


def differences(old: Any, new: Any) -> list[str]:
    found = [f"{name}: only {'before' if name in old else 'now'}" for name in sorted(old.keys() ^ new.keys())]
    for name in (name for name in old if name in new):
        one, other = old[name], new[name]
        if other["resumed"] != "equal":
            found.append(f"{name}: the resumed run differs from the uninterrupted one")
        for part in (part for part in one if one[part] != other[part] and part != "resumed"):
            if isinstance(one[part], dict):
                both = {**one[part], **other[part]}
                frames = [frame for frame in both if one[part].get(frame) != other[part].get(frame)]
                where = f"from frame {frames[0]} on ({len(frames)} of {len(one[part])})"
                found.append(f"{name}: {part} differ {where}")
            else:
                found.append(f"{name}: {part} was {one[part]}, is {other[part]}")
    return found
