"""Assign the cores and GPUs of a machine to the trials of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labrl.session.devices import NUM_CPUS, available_cpus, check_resources, visible_gpus


@dataclass(frozen=True)
class Need:
    """Cores and GPUs that a trial needs."""

    cores: int
    """Number of cores, >= 1."""
    gpus: float | None
    """Number of GPUs, which may be a fraction; None: one GPU, which the trial may share with others."""

    @classmethod
    def of(cls, meta: Mapping[str, Any], num_trials: int, cores: int | None) -> Need:
        """Return the need of a trial.

        Without `meta.num_cpus`, a trial needs a core for each session, or more if there are few trials, but
        no more than the machine has. meta: the trial's `meta`, not yet checked; num_trials: number of trials
        of the experiment; cores: cores of the machine, None if another machine runs the trial.
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
    """Cores and GPUs that are assigned to a running trial."""

    cores: int
    gpus: tuple[str, ...] | None = None
    """GPUs in the form of CUDA_VISIBLE_DEVICES; None on a machine without GPUs."""
    part: float = 0.0
    """Fraction of each GPU in `gpus` that is assigned to the trial."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that limit a process to the assigned cores and GPUs. They must be set before
        the process imports PyTorch."""
        visible = {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        return {NUM_CPUS: str(self.cores), **visible}


class Machine:
    """The free cores and GPUs of a machine."""

    def __init__(self, cores: int | None = None, gpus: list[str] | None = None) -> None:
        """cores: number of cores, None for all available; gpus: names of GPUs, None for all visible."""
        self.cores = available_cpus() if cores is None else cores
        self._free_cores = self.cores
        visible = visible_gpus() if gpus is None else gpus
        self._free = dict.fromkeys(visible, 1.0)
        self._trials = dict.fromkeys(visible, 0)

    def check(self, need: Need) -> None:
        """Raise InputError if the machine can never meet `need`."""
        check_resources(need.cores, need.gpus, self.cores, len(self._free))

    def take(self, need: Need) -> Share | None:
        """Assign and return slots for `need`, or return None if not enough are free."""
        # The least busy GPUs that have room for the need.
        part = 0.0 if need.gpus is None else min(need.gpus, 1.0)
        count = 1 if need.gpus is None else math.ceil(need.gpus)
        by_load = sorted(self._free, key=lambda gpu: (-self._free[gpu], self._trials[gpu]))
        gpus = tuple([gpu for gpu in by_load if self._free[gpu] >= part - 1e-9][:count])
        if need.cores > self._free_cores or (need.gpus is not None and len(gpus) < count):
            return None
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


def _number(value: Any) -> float | None:
    """Return `value` if it is a number >= 0, else None, because the trial itself will refuse a wrong
    value."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if good else None
