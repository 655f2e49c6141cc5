"""How the cores and GPUs of one machine are shared out among the trials of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labrl.trial.devices import NUM_CPUS, available_cpus, check_resources, visible_gpus


@dataclass(frozen=True)
class Need:
    """What one trial asks for."""

    cores: int
    """Cores that it keeps busy, >= 1."""
    gpus: float | None
    """GPUs, a fraction of one allowed; None: one that it shares with whoever is there."""

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
    """What one trial gets for as long as it runs."""

    cores: int
    gpus: tuple[str, ...] | None = None
    """As CUDA_VISIBLE_DEVICES names them; None on a machine without any."""
    part: float = 0.0
    """Of each of these GPUs."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which a process keeps to the share, set before it loads torch."""
        visible = {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        return {NUM_CPUS: str(self.cores), **visible}


class Machine:
    """Cores and GPUs, and who has them."""

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
        """A share that meets `need`, or None as long as there is none free."""
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
        """The trial that had `share` has ended."""
        self._free_cores += share.cores
        for gpu in share.gpus or ():
            self._free[gpu] += share.part
            self._trials[gpu] -= 1

    def _gpus(self, wanted: float | None) -> tuple[str, ...] | None:
        """The least busy GPUs that have `wanted` left; None where there are not enough."""
        part = 0.0 if wanted is None else min(wanted, 1.0)
        count = 1 if wanted is None else math.ceil(wanted)
        by_load = sorted(self._free, key=lambda gpu: (-self._free[gpu], self._trials[gpu]))
        free = [gpu for gpu in by_load if self._free[gpu] >= part - 1e-9]
        if wanted is None:
            return tuple(free[:1])
        return tuple(free[:count]) if len(free) >= count else None


def _number(value: Any) -> float | None:
    """`value` where it is a positive number or zero; the trial itself refuses what is not."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return float(value) if good else None
