"""Simple noise scale of gradients (McCandlish et al., 2018, arXiv:1812.06162)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

EVERY = 16
"""Number of gradients from one measurement to the next. A measurement costs a pass over half a minibatch."""
RATE = 0.05
"""Weight of a new measurement in the running means, which cover about 20 measurements."""


class NoiseScale:
    """Estimates the noise scale tr(S) / |G|^2, approximately the largest useful minibatch size in samples.

    S is the covariance of the samples' gradients and G is their mean. Unbiased estimates of tr(S) and |G|^2
    come from the gradients over half of a minibatch and over the complete minibatch (appendix A.1). They are
    averaged over updates before they are divided. The halves consist of consecutive rows, so correlation
    between rows makes the estimate smaller.
    """

    def __init__(self) -> None:
        self._gradients = 0
        self._signal = self._noise = math.nan

    @property
    def value(self) -> float:
        """Noise scale in samples; nan before the first measurement, or if noise hides the gradient."""
        return self._noise / self._signal if self._signal > 0 else math.nan

    def due(self, size: int) -> bool:
        """Return whether to measure with the next minibatch of `size` rows. Call it before every gradient."""
        self._gradients += 1
        return self._gradients % EVERY == 1 and size >= 2

    def add(self, small: int, small_squared: float, large: int, large_squared: float) -> None:
        """Add a measurement: the squared norms of gradients over `small` and over `large` samples."""
        signal = (large * large_squared - small * small_squared) / (large - small)
        noise = (small_squared - large_squared) / (1 / small - 1 / large)
        first = math.isnan(self._signal)
        self._signal = signal if first else self._signal + RATE * (signal - self._signal)
        self._noise = noise if first else self._noise + RATE * (noise - self._noise)

    def state_dict(self) -> dict[str, Any]:
        """Return the running means."""
        return {"gradients": self._gradients, "signal": self._signal, "noise": self._noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved means."""
        self._gradients = int(state["gradients"])
        self._signal, self._noise = float(state["signal"]), float(state["noise"])


class NoiseScales:
    """Noise scales of all learning networks of an agent, in the order in which they were created."""

    def __init__(self) -> None:
        self._scales: list[NoiseScale] = []

    def new(self) -> NoiseScale:
        """Create the noise scale of another network."""
        self._scales.append(NoiseScale())
        return self._scales[-1]

    def metrics(self) -> dict[str, float]:
        """Return noise scales by name: `noise_scale`, and `noise_scale_2` etc. if several networks learn."""
        return {
            f"noise_scale_{number}" if number > 1 else "noise_scale": scale.value
            for number, scale in enumerate(self._scales, 1)
        }

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of each noise scale."""
        return [scale.state_dict() for scale in self._scales]

    def load_state_dict(self, state: list[Mapping[str, Any]]) -> None:
        """Restore saved states. The list is empty if noise was not measured when the states were saved."""
        for scale, saved in zip(self._scales, state, strict=False):
            scale.load_state_dict(saved)
