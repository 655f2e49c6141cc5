"""An example callback, which is called at regular frames and reads the session."""

from __future__ import annotations

from pathlib import Path

from labrl.session.callbacks.callback import Callback, SessionView


class EpisodeLog(Callback):
    """Write the number of finished episodes to a file in the session's folder."""

    def __init__(self, frequency: int, file: str = "episodes.txt") -> None:
        self.frequencies, self._file = (frequency,), file

    def step(self, session: SessionView) -> None:
        """Write a line, after the first vector step across each multiple of the frequency and at the end."""
        with open(Path(session.folder.path) / self._file, "a") as file:
            file.write(f"{session.clock.frame} {session.clock.episode}\n")
