"""Recorded episodes of a run, as videos."""

from __future__ import annotations

from pathlib import Path

from labrl.analysis.report.sections import Section, Video, Videos
from labrl.analysis.runs import Run

MOST = 8
"""Videos in one report."""


def video_section(run: Run) -> Section | None:
    """The videos in the folders of a run's sessions, the best first; None without any."""
    found = [
        Video(path, _told(path, len(run.sessions) > 1, session.index))
        for session in run.sessions
        for path in sorted((Path(session.path) / "videos").glob("*.mp4"), key=_rank)
    ]
    return Section("episodes", "Episodes", [Videos(found[:MOST])]) if found else None


def _rank(path: Path) -> tuple[int, str]:
    """`best` before `latest` before all others."""
    order = ("best", "last", "latest")
    return next((i for i, word in enumerate(order) if path.stem.startswith(word)), len(order)), path.name


def _told(path: Path, several: bool, index: int) -> str:
    name = path.stem.replace("_", " ")
    return f"session {index}, {name}" if several else name
