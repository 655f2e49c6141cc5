"""A callback of one's own: it hangs on the session's clock and reads the session."""

from __future__ import annotations

from pathlib import Path

from labrl.session.callbacks.callback import Callback, SessionView


class EpisodeLog(Callback):
    """Writes how many episodes were played to a file in the session's folder."""

    def __init__(self, frequency: int, file: str = "episodes.txt") -> None:
        self.frequencies, self._file = (frequency,), file

    def step(self, session: SessionView) -> None:
        """Called after the first vector step across each multiple of the frequency, and at the end."""
        with open(Path(session.folder.path) / self._file, "a") as file:
            file.write(f"{session.clock.frame} {session.clock.episode}\n")
