"""Assign the cores and GPUs of one machine to the trials of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labrl.trial.devices import NUM_CPUS, available_cpus, check_resources, visible_gpus


@dataclass(frozen=True)
class Need:
    """Slots that one trial requests."""

    cores: int
    """Cores that it keeps busy, >= 1."""
    gpus: float | None
    """GPUs, also a fraction of one; None: one that it may share with other trials."""

    @classmethod
    def of(cls, meta: Mapping[str, Any], num_trials: int, cores: int | None) -> Need:
        """meta: the trial's `meta`, not checked yet; num_trials: of the experiment; cores: of the machine,
        None where another one runs the trial.

        Without `meta.num_cpus` a trial takes a core for each session, and more where trials are few, but no
        more than there are.
        """
        granted = _number(meta.get("num_cpus"))
        gpus = _number(meta.get("num_gpus"))
        if granted:
            return cls(math.ceil(granted), gpus)
        sessions = max(1, int(_number(meta.get("max_session")) or 1))
        if cores is None:
            return cls(sessions, gpus)
        return cls(min(cores, max(sessions, cores // max(num_trials, 1))), gpus)


@dataclass(frozen=True)
class Share:
    """Slots that one trial holds while it runs."""

    cores: int
    gpus: tuple[str, ...] | None = None
    """GPUs as in CUDA_VISIBLE_DEVICES; None on a machine without any."""
    part: float = 0.0
    """Fraction of each of these GPUs."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that keep a process within its slots, set before it loads torch."""
        visible = {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        return {NUM_CPUS: str(self.cores), **visible}


class Machine:
    """Cores and GPUs of a machine, and their holders."""

    def __init__(self, cores: int | None = None, gpus: list[str] | None = None) -> None:
        """cores: None for all that this process may use; gpus: None for all that torch sees."""
        self.cores = available_cpus() if cores is None else cores
        self._free_cores = self.cores
        visible = visible_gpus() if gpus is None else gpus
        self._free = dict.fromkeys(visible, 1.0)
        self._trials = dict.fromkeys(visible, 0)

    def check(self, need: Need) -> None:
        """Raise InputError where `need` can never be met."""
        check_resources(need.cores, need.gpus, self.cores, len(self._free))

    def take(self, need: Need) -> Share | None:
        """Return slots that meet `need`, or None while there are none free."""
        gpus = self._gpus(need.gpus)
        if need.cores > self._free_cores or gpus is None:
            return None
        part = 0.0 if need.gpus is None else min(need.gpus, 1.0)
        share = Share(need.cores, gpus if self._free else None, part)
        self._free_cores -= share.cores
        for gpu in gpus:
            self._free[gpu] -= share.part
            self._trials[gpu] += 1
        return share

    def give_back(self, share: Share) -> None:
        """Free the slots of a trial that has ended."""
        self._free_cores += share.cores
        for gpu in share.gpus or ():
            self._free[gpu] += share.part
            self._trials[gpu] -= 1

    def _gpus(self, wanted: float | None) -> tuple[str, ...] | None:
        """Return the least busy GPUs with `wanted` free; None if there are not enough."""
        part = 0.0 if wanted is None else min(wanted, 1.0)
        count = 1 if wanted is None else math.ceil(wanted)
        by_load = sorted(self._free, key=lambda gpu: (-self._free[gpu], self._trials[gpu]))
        free = [gpu for gpu in by_load if self._free[gpu] >= part - 1e-9]
        if wanted is None:
            return tuple(free[:1])
        return tuple(free[:count]) if len(free) >= count else None


def _number(value: Any) -> float | None:
    """Return `value` if it is a number of at least zero; the trial itself refuses others."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if good else None
