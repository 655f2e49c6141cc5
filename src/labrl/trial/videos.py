"""Videos of a trial's recorded episodes, made when its sessions have ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from labrl.errors import LabrlError
from labrl.storage.run_folder import RunFolder
from labrl.trial.result import SessionResult

NAMES = ("best", "last")
LONGEST = 1800
"""Pictures of one video: two minutes of an Atari game at the usual frame skip."""


def render(run: RunFolder, sessions: Sequence[SessionResult]) -> list[Path]:
    """Write `videos/best.mp4` and `videos/last.mp4` of the session with the best score.

    Those that are newer than their episodes stay. Where there can be none, one line says why. Returns
    the files that were written.
    """
    from labrl.storage.episodes import read_episode
    from labrl.trial.replay import to_video
    from labrl.trial.summary import say

    if not sessions:
        return []
    best = max(sessions, key=lambda one: -math.inf if one.best_return is None else one.best_return)
    folder = run.session(best.index)
    written: list[Path] = []
    for name in NAMES:
        source, target = folder.episodes / f"{name}.npz", folder.videos / f"{name}.mp4"
        if not source.exists() or (target.exists() and _newer(target, source)):
            continue
        try:
            to_video(read_episode(source), target, LONGEST)
        except (LabrlError, OSError) as error:
            say(f"no videos: {error}")
            return written
        except Exception as error:  # a user's environment may fail in any way, and the trial is done
            say(f"no videos: {type(error).__name__}: {error}")
            return written
        written.append(target)
    return written


def _newer(one: Path, other: Path) -> bool:
    return one.stat().st_mtime >= other.stat().st_mtime
