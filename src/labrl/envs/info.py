"""Numbers that environments return in `info`, reduced to one number per episode (`env.info_keys`).

Infos have Gymnasium's formats. The info of a single environment is a dict, which may contain dicts. The info
of several environments is a dict of arrays, [num_envs], in which `_name` marks those that returned `name`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.types import Reduction

_log = logging.getLogger(__name__)

_Numbers = NDArray[np.float64]

_REDUCE: dict[Reduction, Callable[[_Numbers, _Numbers], _Numbers]] = {
    "last": lambda old, new: new,
    "sum": lambda old, new: old + new,
    "mean": lambda old, new: old + new,  # divided by the number of steps at the end
    "min": np.minimum,
    "max": np.maximum,
    "auto": lambda old, new: new,
}


class EpisodeNumbers:
    """The numbers of the unfinished episodes, one for each environment and key.

    Steps without a number are left out. A warning is logged, once for each key, if no step of an episode has
    a value, or if a value is not a finite number, except for the reduction `auto`.
    """

    def __init__(self, keys: Mapping[str, Reduction], num_envs: int, called: str, warns: bool = True) -> None:
        """called: name of the environment in warnings; warns: whether to log warnings."""
        self._keys, self._called, self._num_envs = dict(keys), called, num_envs
        self._told = {name for name, how in keys.items() if how == "auto" or not warns}
        self.begin()

    def begin(self) -> None:
        """Start a new episode in every environment."""
        self._values = {name: np.full(self._num_envs, np.nan) for name in self._keys}
        self._counts = {name: np.zeros(self._num_envs, np.int64) for name in self._keys}

    def add(self, info: Mapping[str, Any], own: NDArray[np.bool_] | None = None) -> None:
        """Add a step. info: info of all environments; own: environments for which it counts, [num_envs]."""
        for name, how in self._keys.items() if info else ():
            entry = f"is_{name}" if how == "auto" and name not in info else name
            new, fault = _column(info, entry, self._num_envs)
            if fault:
                self._warn(name, f"{fault}, not a finite number, so such steps are left out")
            given = ~np.isnan(new) if own is None else own & ~np.isnan(new)
            values, counts = self._values[name], self._counts[name]
            first, later = given & (counts == 0), given & (counts > 0)
            values[later] = _REDUCE[how](values[later], new[later])
            values[first] = new[first]
            counts += given

    def end(self, env: int, length: int) -> dict[str, float]:
        """Return the numbers of an environment's finished episode, and start its next episode.

        length: number of steps of the episode, 0 to give no warning. A number is nan if no step had one, and
        left out if its reduction is `auto`.
        """
        found = {}
        for name, how in self._keys.items():
            value, count = float(self._values[name][env]), int(self._counts[name][env])
            if not count and length and name not in self._told:
                self._warn(name, f"is missing in all {length:,} steps of an episode")
            if count or how != "auto":
                found[name] = value / count if how == "mean" and count else value
            self._values[name][env], self._counts[name][env] = np.nan, 0
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return, for each key with its reduction, the numbers and the counts of steps, [num_envs] each."""
        return {
            f"{how} {name}": {"values": self._values[name].copy(), "counts": self._counts[name].copy()}
            for name, how in self._keys.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load saved numbers. A key that was added after the state was saved keeps its replayed numbers."""
        for name, how in self._keys.items():
            if (saved := state.get(f"{how} {name}")) is not None:
                self._values[name], self._counts[name] = np.array(saved["values"]), np.array(saved["counts"])

    def _warn(self, name: str, what: str) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s: info[%r] %s (env.info_keys)", self._called, name, what)


def numbers_of(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the numbers in one environment's info by name, in a form that can be sent to another process.

    A value that is not a number is returned as text.
    """
    found: dict[str, Any] = {}
    for name in names:
        value, _ = _entry(info, name)
        if value is not None:
            try:
                found[name] = number_of(value)
            except ValueError:
                found[name] = str(value)
    return found


def number_of(value: Any) -> float:
    """Return a number, flag or array of one element as a float. Raises ValueError for anything else."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value.item() if isinstance(value, np.ndarray) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"is {shorten(value)}") from None


def shorten(value: Any) -> str:
    """Return the representation of a value, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _column(info: Mapping[str, Any], name: str, num_envs: int) -> tuple[_Numbers, str]:
    """Return one number per environment, nan where it is missing, and what is wrong with a value, if any."""
    values, mask = _entry(info, name)
    column, fault = np.full(num_envs, np.nan), ""
    for env, value in enumerate(() if values is None else values[:num_envs]):
        if value is not None and (mask is None or mask[env]):
            try:
                number = number_of(value)
            except ValueError as error:
                fault, number = str(error), np.nan
            if np.isinf(number):
                fault, number = f"is {number}", np.nan
            column[env] = number
    return column, fault


def _entry(info: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return the entry with a dotted name, and Gymnasium's mask of the entry; None for either if missing."""
    if name in info:
        return info[name], info.get(f"_{name}")
    head, _, rest = name.partition(".")
    inner = info.get(head)
    return _entry(inner, rest) if rest and isinstance(inner, Mapping) else (None, None)
