"""End a session before its budget is spent, when its evaluations meet a condition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labrl.session.callbacks.callback import Callback, SessionView

if TYPE_CHECKING:
    from labrl.config.schema import MetaConfig
    from labrl.session.callbacks.evaluate import Evaluate, Evaluated


@dataclass(frozen=True)
class Stop:
    """A limit that ended a session before its budget was spent."""

    key: str
    """Configuration key of the limit."""
    limit: float
    value: float
    """Value that reached the limit."""
    why: str
    """Reason for the stop, in a sentence."""

    def holds(self, meta: MetaConfig) -> bool:
        """Return whether the limits in `meta` would also end the session."""
        limit = {"meta.stop_at_return": meta.stop_at_return, "meta.patience": meta.patience}.get(self.key)
        return limit is not None and self.value >= limit

    @classmethod
    def recorded(cls, result: Mapping[str, Any]) -> Stop | None:
        """Return the stop recorded in a session's `result.json`; None if no limit ended the session."""
        said = result.get("stop")
        return cls(**said) if said else None


class StopEarly(Callback):
    """Stop at `meta.stop_at_return`, or after `meta.patience` evaluations without a new best return.

    Evaluations are counted even if there are no limits, so that limits can be changed when a run is resumed.
    Evaluations without a finished episode do not count.
    """

    frequencies = ()

    def __init__(self, meta: MetaConfig, evaluate: Evaluate) -> None:
        """evaluate: the callback whose evaluations count."""
        self._limit, self._patience = meta.stop_at_return, meta.patience
        self._score: float | None = None
        self._since_best = 0
        evaluate.followers.append(self._take)

    def start(self, session: SessionView) -> None:
        """Stop at once if a resumed session has already reached a limit."""
        self._look()

    def state_dict(self) -> dict[str, Any]:
        """Return the last evaluation's return, and the number of evaluations since the best one."""
        return {"score": self._score, "since_best": self._since_best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._score, self._since_best = state["score"], state["since_best"]

    def _take(self, session: SessionView, evaluated: Evaluated) -> None:
        if math.isnan(evaluated.score):
            return
        self._score = evaluated.score
        self._since_best = 0 if evaluated.best else self._since_best + 1
        self._look()

    def _look(self) -> None:
        score, limit, since, patience = self._score, self._limit, self._since_best, self._patience
        self.stopped_by = None
        if limit is not None and score is not None and score >= limit:
            why = f"a return of {score:,.6g} has reached meta.stop_at_return={limit:g}"
            self.stopped_by = Stop("meta.stop_at_return", limit, score, why)
        elif patience is not None and since >= patience:
            why = f"no new best return in {since} evaluation{'s' * (since > 1)} (meta.patience={patience})"
            self.stopped_by = Stop("meta.patience", patience, since, why)
