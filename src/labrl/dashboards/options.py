"""Configuration keys of `wandb`: whether and how a run is sent to Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from labrl.types import NonNegativeFloat


def _short(longest: int, forbidden: str = "") -> AfterValidator:
    """Return a validator of names that W&B accepts. W&B would refuse other names in the middle of a run."""

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
    """Weights & Biases, with one run for each session, in one group for each trial."""

    tracker: Literal["wandb", "trackio"]
    """Where runs are sent: Weights & Biases, or Trackio, which keeps them on this machine."""
    mode: Literal["auto", "online", "offline", "disabled"]
    """auto: as in WANDB_MODE or W&B's own settings, otherwise online if there is a login, and off if not."""
    project: Project
    """Project of the runs, created if needed; 1 to 128 characters without slashes, # ? % or :"""
    entity: str | None
    """User or team that owns the project; null: the one of the login."""
    name: Name | None
    """Name of the runs, followed by the session's number if there are several; null: name of the run
    folder."""
    group: Name | None
    """Group of the sessions of a trial; null: name of the run folder, after that of its experiment."""
    tags: list[Tag]
    """Tags of the runs, each of 1 to 64 characters."""
    artifacts: list[Literal["best", "report", "videos", "media"]]
    """What to upload besides the numbers: each session's best model and videos as files, the trial's report;
    `media`: the videos so that the page of the run plays them."""
    wait: NonNegativeFloat
    """Seconds for which the end of a trial waits for uploads, >= 0."""
