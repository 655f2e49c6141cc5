"""An example callback that adds a column to the rows of training."""

from __future__ import annotations

import math
from typing import Any

from labrl.session.callbacks.callback import Callback, SessionView


class RewardedSteps(Callback):
    """Add the column `rewarded_steps`: the share of steps with a positive reward since the last row."""

    def __init__(self) -> None:
        self.rewarded = self.steps = 0

    def step(self, session: SessionView) -> None:
        """Count the rewards of the last vector step."""
        step = session.last_step()
        if step is not None:  # as before the first step of an agent that learns from recorded data
            self.rewarded += int((step.reward > 0).sum())
            self.steps += len(step.reward)

    def metrics(self) -> dict[str, float]:
        """Return the share, and start to count again."""
        share = self.rewarded / self.steps if self.steps else math.nan
        self.rewarded = self.steps = 0
        return {"rewarded_steps": share}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts since the last row."""
        return {"rewarded": self.rewarded, "steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        """Continue from a saved state."""
        self.rewarded, self.steps = state["rewarded"], state["steps"]
