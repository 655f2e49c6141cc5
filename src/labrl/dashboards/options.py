"""The keys of `wandb`: whether and how a run is shown on Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from labrl.types import NonNegativeFloat


def _short(longest: int, forbidden: str = "") -> AfterValidator:
    """Return the type of a name that W&B accepts; W&B would refuse others in the middle of a run."""

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
    """Project of the runs, created if needed; 1 to 128 characters without slashes, # ? % or :"""
    entity: str | None
    """User or team that owns the project; null: that of the login."""
    name: Name | None
    """Name of the runs, followed by the session's number where there are several; null: that of the run
    folder."""
    group: Name | None
    """Group of the sessions of a trial; null: the run folder, below that of its experiment."""
    tags: list[Tag]
    """Tags of the runs, each of 1 to 64 characters."""
    artifacts: list[Literal["best", "report", "videos"]]
    """Uploads besides the numbers: each session's best model and videos, the trial's report."""
    wait: NonNegativeFloat
    """Seconds that the end of a trial waits for uploads, >= 0."""
