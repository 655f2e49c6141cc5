"""Profile a window of training with torch's profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labrl.session.callbacks.callback import Callback, SessionView

if TYPE_CHECKING:
    from labrl.session.options import ProfileConfig

ROWS = 50
"""Number of rows in the table, which lists the calls with the longest self time."""


class Profile(Callback):
    """Profile a window of training with torch's profiler, and write two files to the folder `profile`.

    `trace.json` opens in Perfetto or in a browser's tracing page; `table.txt` lists the most expensive calls.
    Profiling slows training down in the window, but does not change the result.
    """

    def __init__(self, config: ProfileConfig) -> None:
        self._start, self._end = config.start, config.start + config.frames
        self._profiler: Any = None

    def start(self, session: SessionView) -> None:
        """Start profiling if the window starts at this frame."""
        self.step(session)

    def step(self, session: SessionView) -> None:
        """Start or end profiling if either is due, and determine the frame of the next call."""
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
        """Write the profile, even if the session ends within the window."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        folder = session.folder.profile
        with session.folder.errors.tolerated(folder):
            folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(folder / "trace.json"))
            table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)
            (folder / "table.txt").write_text(table + "\n", encoding="utf-8")
