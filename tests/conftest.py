"""What every test is spared: Weights & Biases by the login of whoever runs it, and videos."""

from __future__ import annotations

import os

import pytest

os.environ["WANDB_MODE"] = "disabled"


@pytest.fixture(autouse=True)
def _no_videos(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials end without videos, a second each, but in tests that are about them (`uses_videos`)."""
    if "uses_videos" not in request.keywords:
        monkeypatch.setattr("labrl.lab.videos.render", lambda run, sessions: [])
