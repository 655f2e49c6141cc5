"""The keys of `wandb`: whether and how a run is shown on Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from labrl.config.types import NonNegativeFloat


def _short(longest: int, forbidden: str = "") -> AfterValidator:
    """What W&B takes for a name; refused here, because W&B would refuse it in the middle of a run."""

    def check(text: str) -> str:
        if not 1 <= len(text) <= longest or any(sign in text for sign in forbidden):
            without = f", none of {' '.join(forbidden)}" if forbidden else ""
            raise ValueError(f"must be 1 to {longest} characters{without}")
        return text

    return AfterValidator(check)


Name = Annotated[str, _short(128)]
Project = Annotated[str, _short(128, forbidden="/\\#?%:")]
Tag = Annotated[str, _short(64)]


@dataclass(kw_only=True)
class WandbConfig:
    """Weights & Biases: one run for each session, in one group for each trial."""

    mode: Literal["auto", "online", "offline", "disabled"]
    """auto: as WANDB_MODE or W&B's settings say, else online where there is a login, else off."""
    project: Project
    """Where the runs appear; made if need be; 1 to 128 characters without slashes, # ? % or :"""
    entity: str | None
    """User or team that owns the project; null: the login's own."""
    name: Name | None
    """Of the runs, followed by the session's number where there are several; null: that of the run folder."""
    group: Name | None
    """What the sessions of a trial are grouped under; null: the run folder, below that of its experiment."""
    tags: list[Tag]
    """Words to find the runs by, each of 1 to 64 characters."""
    artifacts: list[Literal["best", "report", "videos"]]
    """What is uploaded besides the numbers: each session's best model and videos, the trial's report."""
    wait: NonNegativeFloat
    """Seconds that the end of a trial waits for uploads, >= 0."""
