"""What a session and a trial come to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from labrl.session.episodes import Source

SessionStatus = Literal["finished", "pruned", "failed", "interrupted"]


@dataclass(kw_only=True)
class SessionResult:
    """The outcome of one session; written to `result.json` of its folder."""

    index: int
    """Number of the session in its trial."""
    seed: int
    """Seed of the session's streams, derived from the trial's seed and the index."""
    status: SessionStatus
    frame: int = 0
    """Frames played."""
    opt_step: int = 0
    """Optimizer updates made."""
    wall: float = 0.0
    """Seconds of training."""
    episodes: int = 0
    """Finished whole episodes."""
    return_mean: float | None = None
    """Mean raw return of the last `return_episodes` training episodes; None without any."""
    return_std: float | None = None
    """Population standard deviation of the same episodes; None for fewer than two."""
    return_episodes: int = 0
    """How many training episodes `return_mean` is over, at most `meta.episode_window`."""
    best_return: float | None = None
    """The highest score of an evaluation checkpoint."""
    best_source: Source | None = None
    """Whose episodes that score is of: evaluation episodes with `meta.rigorous_eval`, otherwise the last
    training episodes. None without a score."""
    networks: dict[str, int] = field(default_factory=dict)
    """Learned parameters of each network of the agent."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of training by what they were spent on: act, env, learn, callbacks."""
    error: str | None = None
    """What ended a failed session, in one line."""

    @property
    def fps(self) -> float:
        """Frames for each second of training."""
        return self.frame / self.wall if self.wall > 0 else math.nan


@dataclass(kw_only=True)
class TrialResult:
    """The outcome of one trial: `labrl.train` returns it."""

    folder: Path
    """The run folder, with everything that the trial wrote."""
    seed: int
    sessions: list[SessionResult] = field(default_factory=list)
    exit_code: int = 0
    """0: all finished; 1: one failed, or a repetition came out otherwise; 130 or 143: interrupted."""
    report: Path | None = None
    """`report.html` of the run folder; None where none was made."""
    comparison: str | None = None
    """Of a repetition: in a line, whether every metric row was equal, and where not."""

    @property
    def stopped_at_start(self) -> bool:
        """Whether a signal ended it before its first frame."""
        return self.exit_code in (130, 143) and not any(session.frame for session in self.sessions)

    @property
    def return_mean(self) -> float | None:
        """Mean over the sessions that did not fail of their final return; None without any."""
        returns = self.returns
        return sum(returns) / len(returns) if returns else None

    @property
    def returns(self) -> list[float]:
        """Final return of each session that has one and did not fail."""
        sound = [session for session in self.sessions if session.status != "failed"]
        return [session.return_mean for session in sound if session.return_mean is not None]
