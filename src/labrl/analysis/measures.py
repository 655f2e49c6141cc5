"""Measures of the rows of one session, or of the sessions of one trial, as pure functions of arrays.

`returns` and `strengths` have one value for each checkpoint, in order of the frames. The result is None if
the measure is not defined. Callers leave out rows without a return.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Column = NDArray[np.float64]

SLM_WINDOW = 100
"""Number of checkpoint rows over which SLM Lab averages its published score."""


def strength(returns: ArrayLike, baseline: float) -> Column:
    """Return s_i = R_i - B, the advantage over the random policy, whose mean return is `baseline`. [N]"""
    return np.asarray(returns, dtype=np.float64) - baseline


def efficiency(strengths: ArrayLike, ticks: ArrayLike) -> float | None:
    """Return Σ (s_i / t_i) / Σ s_i, which is larger if strength is reached earlier. Unit: 1 / tick.

    ticks: t_i, frames for the sample efficiency, updates for the training efficiency. Checkpoints before the
    first tick (t_i = 0) are in neither sum. None unless Σ s_i > 0.
    """
    s, t = np.asarray(strengths, dtype=np.float64), np.asarray(ticks, dtype=np.float64)
    begun = t > 0
    total = s[begun].sum()
    return float((s[begun] / t[begun]).sum() / total) if total > 0 else None


def stability(strengths: ArrayLike) -> float | None:
    """Return 1 - |Σ_{i<N} min(s_{i+1} - s_i, 0)| / Σ_{i<N} s_i, which is 1 if the strength never fell.

    None for fewer than two checkpoints, or if Σ_{i<N} s_i is not positive.
    """
    s = np.asarray(strengths, dtype=np.float64)
    total = s[:-1].sum()
    return float(1 - abs(np.minimum(np.diff(s), 0).sum()) / total) if total > 0 else None


def consistency(strengths: ArrayLike) -> float | None:
    """Return 1 - 2 Σ_i std_j(s_ij) / Σ_i mean_j(s_ij) over sessions j, which is 1 if all sessions are equal.

    strengths: [sessions, checkpoints], at the same frames. The standard deviation is that of a sample, with
    divisor n - 1. None for a single session, or if Σ_i mean_j(s_ij) is not positive.
    """
    s = np.asarray(strengths, dtype=np.float64)
    if len(s) < 2 or s.shape[1] == 0:
        return None
    total = s.mean(axis=0).sum()
    return float(1 - 2 * s.std(axis=0, ddof=1).sum() / total) if total > 0 else None


def slm_final(returns: ArrayLike) -> float | None:
    """Return the mean over the last 100 checkpoint rows, or over all rows if there are fewer: SLM Lab's
    `total_reward_ma`."""
    r = np.asarray(returns, dtype=np.float64)
    return float(r[-SLM_WINDOW:].mean()) if len(r) else None


def area_under_curve(frames: ArrayLike, returns: ArrayLike) -> float | None:
    """Return the average return between the first and the last row, weighted by frames (trapezoidal rule).

    This is ∫ R dt / (t_N - t_0), in the unit of a return; with a single row, it is the return of that row.
    None without rows.
    """
    t, r = np.asarray(frames, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    if len(t) < 2:
        return float(r[0]) if len(t) else None
    return float(np.trapezoid(r, t) / (t[-1] - t[0]))


def time_to(ticks: ArrayLike, returns: ArrayLike, threshold: float) -> float | None:
    """Return the tick of the first row whose return is at least `threshold`; None if there is none.

    ticks: frames, or seconds.
    """
    reached = np.flatnonzero(np.asarray(returns, dtype=np.float64) >= threshold)
    return float(np.asarray(ticks)[reached[0]]) if len(reached) else None


def human_normalized(score: float, random: float, human: float) -> float:
    """Return (score - random) / (human - random): 0 for a random policy, 1 for the reference human score."""
    return (score - random) / (human - random)
