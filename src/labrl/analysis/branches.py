"""Runs that were forked from one run at one frame: branches with a common past, compared in pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from labrl.analysis.groups import Group
from labrl.analysis.intervals import aggregates
from labrl.analysis.runs import Run


def branches(groups: Sequence[Group], statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the groups that are branches of one run, and the differences between them.

    statistics: of each group. Returns `folder` and `frame` of the fork, `groups`, the names of the branches,
    the run itself among them where it is there, and `pairs`: for each two the mean over the sessions of the
    difference `x` - `y` of final returns, `value`, with its 95 % interval `low` to `high` and the number `n`
    of sessions. Sessions of one number have one past, so that their difference is free of its luck. None
    where no two groups are branches of one run.
    """
    forks = Counter(fork for group in groups for run in group.runs if (fork := _fork_of(run)))
    if not forks:
        return None
    (folder, frame), _ = forks.most_common(1)[0]
    found = {
        entry["name"]: _finals(entry)
        for group, entry in zip(groups, statistics, strict=True)
        if all(_fork_of(run) == (folder, frame) or str(run.path) == folder for run in group.runs)
    }
    if len(found) < 2:
        return None
    pairs = [pair for x, y in combinations(found, 2) if (pair := _pair(x, y, found[x], found[y]))]
    return {"folder": folder, "frame": frame, "groups": list(found), "pairs": pairs}


def _fork_of(run: Run) -> tuple[str, int] | None:
    """Return folder and frame that a run was forked from, None where it was not."""
    fork = run.info.get("fork")
    return (str(fork.get("folder")), int(fork.get("frame", 0))) if isinstance(fork, dict) else None


def _finals(entry: Mapping[str, Any]) -> dict[int, float]:
    return {one["index"]: one["final_return"] for one in entry["sessions"] if one["counted"]}


def _pair(x: str, y: str, of_x: Mapping[int, float], of_y: Mapping[int, float]) -> dict[str, Any] | None:
    gaps = [of_x[index] - of_y[index] for index in sorted(of_x.keys() & of_y.keys())]
    if not gaps:
        return None
    return {"x": x, "y": y, **aggregates(np.array(gaps))["mean"]._asdict(), "n": len(gaps)}
