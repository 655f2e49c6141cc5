"""The simple noise scale of gradients (McCandlish et al., 2018, arXiv:1812.06162)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

EVERY = 16
"""Gradients between two measurements: each costs another pass over half a minibatch."""
RATE = 0.05
"""Weight of a measurement in the running means: they reach some 20 back."""


class NoiseScale:
    """tr(S) / |G|^2, about the minibatch beyond which larger ones hardly help; in samples.

    S is the covariance of the samples' gradients and G their mean. Both are estimated without bias from the
    gradients of half a minibatch and of the whole (appendix A.1), and averaged over updates before they are
    divided. A half is taken as the rows lie, so rows that depend on each other make it look smaller.
    """

    def __init__(self) -> None:
        self._gradients = 0
        self._signal = self._noise = math.nan

    @property
    def value(self) -> float:
        """Noise scale in samples; nan before there is one, and where noise hides the gradient."""
        return self._noise / self._signal if self._signal > 0 else math.nan

    def due(self, size: int) -> bool:
        """Return whether that of half a minibatch of `size` rows is wanted, before each gradient."""
        self._gradients += 1
        return self._gradients % EVERY == 1 and size >= 2

    def add(self, small: int, small_squared: float, large: int, large_squared: float) -> None:
        """Take in the squared norms of gradients over so many samples."""
        signal = (large * large_squared - small * small_squared) / (large - small)
        noise = (small_squared - large_squared) / (1 / small - 1 / large)
        first = math.isnan(self._signal)
        self._signal = signal if first else self._signal + RATE * (signal - self._signal)
        self._noise = noise if first else self._noise + RATE * (noise - self._noise)

    def state_dict(self) -> dict[str, Any]:
        """The running means."""
        return {"gradients": self._gradients, "signal": self._signal, "noise": self._noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved means."""
        self._gradients = int(state["gradients"])
        self._signal, self._noise = float(state["signal"]), float(state["noise"])


class NoiseScales:
    """Those of all networks of an agent that learn, in the order in which they were made."""

    def __init__(self) -> None:
        self._scales: list[NoiseScale] = []

    def new(self) -> NoiseScale:
        """Return the noise scale of a further network."""
        self._scales.append(NoiseScale())
        return self._scales[-1]

    def metrics(self) -> dict[str, float]:
        """`noise_scale`, and `noise_scale_2` and so on where several networks learn."""
        return {
            f"noise_scale_{number}" if number > 1 else "noise_scale": scale.value
            for number, scale in enumerate(self._scales, 1)
        }

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of each."""
        return [scale.state_dict() for scale in self._scales]

    def load_state_dict(self, state: list[Mapping[str, Any]]) -> None:
        """Go on with what was saved; nothing, where it was not measured then."""
        for scale, saved in zip(self._scales, state, strict=False):
            scale.load_state_dict(saved)
