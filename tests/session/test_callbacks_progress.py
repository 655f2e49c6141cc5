"""Tests of the progress display: the panel on a terminal, lines without one, and progress.json."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from callback_cases import ToySession
from rich.console import Console

from labrl.run.run import Run
from labrl.session.callbacks.display import Display, SessionProgress, spark_line
from labrl.session.callbacks.log import LogTraining
from labrl.session.callbacks.progress import Progress, TrialPanel


def at(
    frame: int, rows: int = 0, index: int = 0, status: str = "running", fps: float | None = 100
) -> SessionProgress:
    return SessionProgress(
        index, frame, 10_000, 12, 21.5, fps, 3.0, rows, status, {"env": 0.25, "learn": 0.75}
    )


class Terminal:
    """A console that writes into a string, with a clock that the test sets."""

    def __init__(self, terminal: bool, width: int = 120, height: int = 25) -> None:
        self.text = io.StringIO()
        self.console = Console(
            file=self.text, force_terminal=terminal, width=width, height=height, color_system=None
        )
        self.now = 0.0

    def display(self, num_sessions: int = 1) -> Display:
        return Display(num_sessions, self.console, now=lambda: self.now)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


def test_without_terminal_a_line_per_row_and_after_ten_seconds() -> None:
    terminal = Terminal(False)
    display = terminal.display()
    for second, rows in [(0, 0), (1, 0), (9, 0), (10, 0), (12, 1), (12.5, 2), (13, 2), (22, 2), (23, 2)]:
        terminal.now = second
        display.show([at(int(second * 100) + 1, rows)])
    display.show([at(10_000, 2, status="finished")])
    terminal.now = 99  # the panel is drawn again after the report was made
    display.show([at(10_000, 2, status="finished")])
    assert [line.split(" of ")[0] for line in terminal.lines] == [
        *("frame 1", "frame 1,001", "frame 1,201", "frame 1,301", "frame 2,301"),
        "frame 10,000",
    ]
    assert terminal.lines[1] == "frame 1,001 of 10,000 (10.0%), return 21.5, 100 frames/s, 1 min 30 s left"
    assert terminal.lines[-1].endswith("finished")


def test_panel_shows_frames_return_speed_and_time_left() -> None:
    terminal = Terminal(True)
    display = terminal.display(2)
    display.show([at(2500, fps=5), at(10_000, index=1, status="failed")])
    display.close()
    text = terminal.text.getvalue()
    for fact in ("2,500 / 10,000", "21.5", "25 min 0 s", "failed", "learn 75%", "time left"):
        assert fact in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor stays hidden"


@pytest.mark.parametrize(
    ("facts", "known"),
    [
        ({"frame": 8, "wall": 5.0}, False),
        ({"frame": 5_000, "wall": 1.0, "rows": 9}, False),
        ({"frame": 5_000, "wall": 5.0}, True),
        ({"frame": 50, "wall": 40.0}, True),
    ],
)
def test_time_left_is_shown_after_enough_frames_and_seconds(facts: dict[str, float], known: bool) -> None:
    progress = replace(at(1), **facts)
    assert (progress.seconds_left is not None) == known
    terminal = Terminal(False)
    terminal.display().show([progress])
    assert (" left" in terminal.lines[0]) == known
    assert replace(progress, max_wall=progress.wall + 2).seconds_left == (2 if known else None)


def learning(index: int = 0) -> SessionProgress:
    progress = at(1_250_000, index=index, fps=12_345.6)
    progress.max_frame, progress.return_mean = 10_000_000, 1234.5
    progress.returns = [1.0, 2.0, 4.0, 8.0]
    progress.losses = {"loss_policy": -0.0123, "loss_value": 21.4, "entropy": 0.693}
    return progress


def shown(width: int, height: int = 25, sessions: int = 1) -> list[str]:
    """Return the lines of the panel on a terminal of this size."""
    terminal = Terminal(True, width, height)
    display = terminal.display(sessions)
    display.show([learning(index) for index in range(sessions)])
    display.close()
    picture = terminal.text.getvalue().rpartition("\x1b[2K")[2]
    return [line for line in re.sub(r"\x1b\[[\d?]*[A-Za-z]", "", picture).splitlines() if line.strip()]


@pytest.mark.parametrize("sessions", [1, 4])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_panel_fits_terminals_and_leaves_room_on_the_right(width: int, sessions: int) -> None:
    """On a line that filled the terminal, the `^C` of an interruption would wrap."""
    lines = shown(width, sessions=sessions)
    assert max(map(len, lines)) <= width - 3
    assert len(lines) == 1 + 2 * sessions
    if width >= 60:
        assert "1,234.5" in lines[1]
        frames = "1.25M / 10M" if width < 80 else "1,250,000 / 10,000,000"
        assert not [fact for fact in ("12,346", "11 min 49 s", frames) if fact not in lines[1]]
    if width >= 80:
        assert "▁" in lines[1]
        assert "env 25% learn 75%  |  loss_policy -0.0123" in lines[-1]


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal(True)
    terminal.display().show([at(100)])
    assert terminal.lines[0].startswith("frame 100 of 10,000")


def test_spark_line_spans_lowest_to_highest_value() -> None:
    assert spark_line([0, 7, 3.5], 16) == "▁█▅"
    assert spark_line([5, 5, 5], 16) == "▁▁▁"
    assert spark_line(list(range(100)), 8) == "▁▂▃▄▅▆▇█"
    assert spark_line([float("nan"), 1.0], 8) == spark_line([], 8) == ""


def test_log_messages_appear_above_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, stderr = Terminal(True), Tty()
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = logging.StreamHandler()
    # Handlers that other tests have left may write to closed streams.
    monkeypatch.setattr(logging.getLogger("labrl"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("labrl"), "propagate", False)
    try:
        display = terminal.display()
        display.show([at(10)])
        logging.getLogger("labrl.test").warning("the disk is slow")
        display.close()
        assert "the disk is slow" in terminal.text.getvalue()
        assert stderr.getvalue() == ""
        logging.getLogger("labrl.test").warning("afterwards")
        assert stderr.getvalue() == "afterwards\n"
    finally:
        logging.getLogger("labrl").removeHandler(handler)


def test_trial_panel_prints_new_warnings_of_sessions_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labrl.session.callbacks.progress.REFRESH_SECONDS", 0.0)
    run = Run.create(tmp_path)
    terminal = Terminal(False)
    log = run.session(1).log
    log.write_text("2026-01-01 10:00:00,000 labrl.a: logged before a resume\n")
    with TrialPanel(run, 2, max_frame=100, console=terminal.console) as panel, open(log, "a") as file:
        file.write(
            "2026-01-01 10:00:01,000 labrl.b: no checkpoint at frame 7\nTraceback (most recent call la"
        )
        file.flush()
        panel.update()
        file.write("st):\n  File ...\n")
    assert terminal.lines == ["session 1: no checkpoint at frame 7"]


def test_progress_json_holds_the_progress_of_the_session(tmp_path: Path) -> None:
    progress = Progress(show=False)
    session = ToySession(tmp_path, max_frame=100).run(progress, LogTraining(50, [progress]))
    content = json.loads(session.folder.progress_json.read_text())
    assert content["frame"] == content["max_frame"] == 100
    assert content["status"] == "finished"
    assert content["rows"] == 2
    assert content["return_mean"] == 4.0
    assert content["phases"] == {"env": 0.25, "act": 0.0, "learn": 0.75, "callbacks": 0.0}
    assert not list(tmp_path.glob(".*")), "a temporary file was left behind"
    again = Progress(show=False)
    again.load_state_dict(progress.state_dict())
    resumed = ToySession(tmp_path / "on", max_frame=4).run(again)
    assert json.loads(resumed.folder.progress_json.read_text())["returns"] == content["returns"] != []


def test_progress_json_holds_the_status_of_an_ended_session(tmp_path: Path) -> None:
    session = ToySession(tmp_path).interrupt_at(20).run(Progress(show=False))
    assert json.loads(session.folder.progress_json.read_text())["status"] == "interrupted"
    failing = ToySession(tmp_path)
    failing.agent = None
    with pytest.raises(AttributeError):
        failing.run(Progress(show=False))
    assert json.loads(failing.folder.progress_json.read_text())["status"] == "failed"


def test_trial_panel_shows_all_sessions_from_their_files(tmp_path: Path) -> None:
    run = Run.create(tmp_path)
    terminal = Terminal(False)
    with TrialPanel(run, 3, max_frame=100, console=terminal.console) as panel:
        for index in (0, 2):
            session = ToySession(run.session(index).path, max_frame=100)
            session.index = index
            session.run(Progress(show=False))
        run.session(1).progress_json.write_text('{"frame": ')  # a damaged file counts as missing
        panel.update()
    assert [line.split(" (")[0] for line in terminal.lines] == [
        "session 0: frame 100 of 100",
        "session 2: frame 100 of 100",
    ]


def test_session_with_a_killed_process_is_shown_as_ended(tmp_path: Path) -> None:
    run = Run.create(tmp_path)
    terminal = Terminal(False)
    run.session(0).progress_json.write_text(json.dumps(asdict(at(40))))
    with TrialPanel(run, 1, max_frame=100, console=terminal.console) as panel:
        panel.update(ended=[0])
    assert terminal.lines[-1].endswith("ended")
