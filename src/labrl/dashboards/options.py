"""Configuration keys of `wandb`: whether and how a run is sent to Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from labrl.types import NonNegativeFloat


def _short(longest: int, forbidden: str = "") -> AfterValidator:
    """Return a validator for names that W&B accepts, because it would reject other names in the middle of a
    run."""

    def check(text: str) -> str:
        if not 1 <= len(text) <= longest or any(sign in text for sign in forbidden):
            without = f" and none of {' '.join(forbidden)}" if forbidden else ""
            raise ValueError(f"must have 1 to {longest} characters{without}")
        return text

    return AfterValidator(check)


Name = Annotated[str, _short(128)]
Project = Annotated[str, _short(128, forbidden="/\\#?%:")]
Tag = Annotated[str, _short(64)]


@dataclass(kw_only=True)
class WandbConfig:
    """Settings of Weights & Biases, where each session is one run and the sessions of a trial form a
    group."""

    mode: Literal["auto", "online", "offline", "disabled"]
    """auto: the mode in WANDB_MODE or in W&B's own settings; if neither sets one, online if there is a login
    and disabled if not."""
    project: Project
    """Project of the runs, created if needed; 1 to 128 characters without slashes, # ? % or :"""
    entity: str | None
    """User or team that owns the project; null: the default of the login."""
    name: Name | None
    """Name of the runs, followed by the session's index if a trial has several sessions; null: name of the
    run folder."""
    group: Name | None
    """Group of the sessions of a trial; null: name of the experiment, if any, followed by the name of the run
    folder."""
    tags: list[Tag]
    """Tags of the runs, each of 1 to 64 characters."""
    artifacts: list[Literal["best", "report", "videos", "media"]]
    """Files to upload besides the numbers. `best`: the best model of each session; `videos`: the videos of
    each session, as files; `report`: the trial's report; `media`: the videos, to be played on the page of the
    W&B run."""
    wait: NonNegativeFloat
    """Seconds that a trial waits for uploads at its end, >= 0."""
