"""Profile of some frames, call by call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from labrl.session.callbacks.callback import Callback, SessionView

if TYPE_CHECKING:
    from labrl.session.options import ProfileConfig

_log = logging.getLogger(__name__)

ROWS = 50
"""Rows of the table: the calls that took most time by themselves."""


class Profile(Callback):
    """Profiles a window of training with torch's profiler and writes two files to the session's `profile`.

    `trace.json` opens in a browser's tracing page or in Perfetto; `table.txt` has the costliest calls.
    The window is slower than the rest of the run, but what is learned is the same.
    """

    def __init__(self, config: ProfileConfig) -> None:
        self._start, self._end = config.start, config.start + config.frames
        self._profiler: Any = None

    def start(self, session: SessionView) -> None:
        """Begin, if the window does so at this frame."""
        self.step(session)

    def step(self, session: SessionView) -> None:
        """Begin or end the window, and wait for the other of the two."""
        frame = session.clock.frame
        if self._profiler is None and self._start <= frame < self._end:
            from torch.profiler import ProfilerActivity, profile, supported_activities

            wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
            self._profiler = profile(activities=sorted(wanted, key=str), record_shapes=False)
            self._profiler.start()
        elif frame >= self._end:
            self.finish(session)
        awaited = self._start if frame < self._start else self._end
        self.frequencies = (awaited,) if frame < awaited else ()

    def finish(self, session: SessionView) -> None:
        """Write what was seen of the window, also where the session ends within it."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        folder = session.folder.profile
        try:
            folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(folder / "trace.json"))
            table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)
            (folder / "table.txt").write_text(table + "\n", encoding="utf-8")
        except OSError as error:
            _log.warning("the profile cannot be written to %s: %s", folder, error)
