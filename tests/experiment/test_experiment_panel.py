"""Tests of the panel of an experiment: its rows, its estimate, its end, and lines without a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import start_labrl
from rich.console import Console
from run_cases import config_with
from screen import Screen
from trial_processes import fails_with_seed

from labrl.errors import INTERRUPTED
from labrl.experiment.local import WorkersLauncher
from labrl.experiment.machine import Need
from labrl.experiment.panel import ExperimentPanel
from labrl.experiment.scheduler import Queue
from labrl.run.atomic import write_json
from labrl.run.experiment import TRIAL_LOG, TrialRecord
from labrl.run.run import Run
from labrl.session.callbacks.display import Display, SessionProgress

BUDGET = 1000


class Trials(Queue):
    """Trials that the test starts and ends itself."""

    shows_progress = True

    def __init__(self, folder: Path, count: int) -> None:
        about = ["agent.lr=1e-3"]
        self.trials = [TrialRecord(number=n, overrides=about, folder=str(n)) for n in range(count)]
        super().__init__(folder, [(trial, Need(1, None)) for trial in self.trials])

    def about(self, trial: TrialRecord) -> str:
        return f"{trial.overrides[0]} seed={trial.number}"

    def note(self) -> str:
        return "best so far 478.2 (trial 3)"


class Experiment:
    """A panel on a terminal of a given size, whose text is kept."""

    def __init__(self, queue: Trials, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("labrl.session.callbacks.progress.REFRESH_SECONDS", 0.0)
        monkeypatch.setattr("labrl.experiment.panel.time.monotonic", lambda: self.now)
        self.now = 100.0
        self.queue, self.size = queue, size
        self.running: list[TrialRecord] = []
        self._text = io.StringIO()
        self.console = Console(
            file=self._text, force_terminal=True, width=size[0], height=size[1], color_system=None
        )
        self.panel = ExperimentPanel(queue, WorkersLauncher(), self.console)
        self.screen = Screen(size[0])

    def start(self, number: int, *sessions: SessionProgress) -> None:
        """Start a trial, with these sessions if it has begun."""
        trial = self.queue.trials[number]
        assert self.panel.adopt(trial)
        self.running.append(trial)
        self.queue.left = [one for one in self.queue.left if one[0].number != number]
        if sessions:
            run = Run.create(self.queue.path_of(trial))
            config = config_with(meta__max_session=len(sessions), env__max_frame=BUDGET)
            write_json(run.provenance_json, {"overrides": [], "config": config})
            self.proceed(number, *sessions)

    def proceed(self, number: int, *sessions: SessionProgress) -> None:
        """Let the sessions of a trial write their progress."""
        for one in sessions:
            folder = Run(self.queue.path_of(self.queue.trials[number])).session(one.index)
            folder.progress_json.write_text(json.dumps(asdict(one)))

    def end(self, number: int, status: str = "finished") -> None:
        """Let a trial end."""
        (trial,) = (one for one in self.running if one.number == number)
        self.running.remove(trial)
        trial.status = status  # type: ignore[assignment]
        self.queue.over[number] = trial

    def show(self) -> list[str]:
        """Show the current progress, and return what is on the terminal then."""
        self.panel.update(self.running)
        return self.shown()

    def shown(self) -> list[str]:
        self.screen.write(self._text.getvalue())
        self._text.seek(0)
        self._text.truncate()
        return self.screen.lines


def session(frame: int, index: int = 0, status: str = "running", **facts: object) -> SessionProgress:
    known = {"fps": 100.0, "wall": 10.0, "rows": 5, "returns": [1.0, 2.0, 3.0], "return_mean": 21.5} | facts
    return SessionProgress(index, frame, BUDGET, 12, status=status, **known)  # type: ignore[arg-type]


def row(lines: Sequence[str], number: int) -> str:
    """Return the row of a trial."""
    (found,) = (line for line in lines if re.match(rf" *{number} ", line) and "seed=" in line)
    return found


def test_rows_show_state_progress_return_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(Trials(tmp_path, 4), (80, 24), monkeypatch)
    experiment.start(0, session(1000, status="finished"))
    experiment.start(1, session(500))
    experiment.start(2)
    with experiment.panel:
        experiment.show()
        experiment.end(0)
        lines = experiment.show()
    assert max(map(len, lines)) <= 77
    rows = (["1k / 1k", "21.5", "finished"], ["500 / 1k", "21.5", "5 s"], ["starting"], ["waiting"])
    for number, facts in enumerate(rows):
        assert all(fact in row(lines, number) for fact in [*facts, f"lr=1e-3 seed={number}"]), lines
    assert "━" in row(lines, 0)
    assert lines[-3].split()[1:] == ["38%", "of", "4", "trials"]
    assert lines[-2] == "2 running, 1 waiting, 1 finished"
    assert lines[-1] == "best so far 478.2 (trial 3)"
    assert experiment.shown() == [], "the end of the experiment leaves the panel behind"
    assert experiment.screen.cursor_is_visible


def test_of_many_trials_the_running_ones_and_the_newest_results_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(Trials(tmp_path, 100), (120, 40), monkeypatch)
    with experiment.panel:
        for number in range(60):
            experiment.start(number, session(1000, status="finished"))
            experiment.end(number, "failed" if number % 10 == 0 else "finished")
        experiment.start(70, session(500))
        experiment.start(99, session(500))
        lines = experiment.show()
        assert len(lines) <= 39
        assert lines[-2] == "2 running, 38 waiting, 54 finished, 6 failed"
        assert "500 / 1k" in row(lines, 70)
        assert "500 / 1k" in row(lines, 99)
        shown = [int(line.split()[0]) for line in lines if "seed=" in line]
        assert shown == [*range(60 - (len(shown) - 2), 60), 70, 99]
        assert len(shown) >= 34


def test_messages_of_trials_appear_once_above_the_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(Trials(tmp_path, 2), (80, 24), monkeypatch)
    log = tmp_path / "0" / TRIAL_LOG
    log.parent.mkdir()
    log.write_text("from an earlier attempt\n")
    with experiment.panel:
        experiment.start(0)
        with open(log, "a") as file:
            file.write("W&B: off\nTraceback (most recent call last):\n  File ...\nincompl")
            file.flush()
            assert experiment.show()[0] == "[0] W&B: off"
            file.write("ete\n")
            file.flush()
            assert experiment.show()[:2] == ["[0] W&B: off", "[0] incomplete"]
            file.write("the last line\n")
        experiment.end(0)
    assert experiment.shown() == ["[0] W&B: off", "[0] incomplete", "[0] the last line"]


def test_sessions_are_those_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(Trials(tmp_path, 2), (80, 24), monkeypatch)
    with experiment.panel:
        experiment.start(0, session(600), session(200, 1))
        (tmp_path / "0" / "session_1" / "progress.json").unlink()
        assert "300 / 1k" in row(experiment.show(), 0)  # the second one has not started
        experiment.proceed(0, session(600), session(200, 1))
        assert "400 / 1k" in row(experiment.show(), 0)
        experiment.proceed(0, session(1000, status="finished"), session(1000, 1, "finished"))
        assert "finishing" in row(experiment.show(), 0)


def test_time_left_counts_what_this_command_has_gained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(Trials(tmp_path, 4), (80, 24), monkeypatch)
    with experiment.panel:
        experiment.start(0, session(500))  # of which a resume has found 500
        assert experiment.show()[-3].endswith("of 4 trials")
        experiment.now += 10
        experiment.proceed(0, session(750))
        experiment.show()
        experiment.now += 10
        experiment.proceed(0, session(1000))
        assert "1 min 0 s" not in experiment.show()[-3]
        assert "2 min 0 s" in experiment.shown()[-3]  # half a trial in 20 s, and three trials remain


QUICK = [
    *("agent=random", "env.num_envs=1", "meta.report=false", "meta.videos=false", "meta.tensorboard=false"),
    *("wandb=disabled", "hydra.sweep.dir=e"),
]


def read_until(leader: int, sign: str | None, text: str = "") -> str:
    """Return `text` with what the terminal shows until `sign` appears, or with None until the end."""
    while sign is None or sign not in text:
        part = b""
        with contextlib.suppress(OSError):  # at the end, from a pseudo-terminal of Linux
            part = os.read(leader, 1 << 16)
        if not part:
            assert sign is None, text
            break
        text += part.decode()
    return text


@pytest.mark.extended
@pytest.mark.usefixtures("own_folder")
def test_interrupted_panel_leaves_the_error_of_a_failed_trial_and_how_to_resume() -> None:
    overrides = [*QUICK, fails_with_seed(1), "env.max_frame=1e9", "meta.log_frequency=1000", "seed=1,2,3"]
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 300, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    env["TERM"] = "xterm"
    command = start_labrl("-m", *overrides, env=env, stdout=follower, stderr=follower)
    os.close(follower)
    text = read_until(leader, " / 1G", read_until(leader, "1 failed"))
    os.killpg(command.pid, signal.SIGINT)
    text = read_until(leader, None, text)
    os.close(leader)
    assert command.wait(timeout=100) == INTERRUPTED
    screen = Screen(300, text)
    assert screen.cursor_is_visible
    printed = "".join(screen.lines)
    assert not any(hidden in printed for hidden in ("━", "Traceback"))
    assert "+resume=" in printed
    assert any("a wheel came off" in line and "breaking.py:5" in line for line in screen.lines)
    assert "Traceback" in Path("e/0_random_cartpole/session_0/session.log").read_text()


def test_notebook_shows_one_display_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    def show(content: object, display_id: bool) -> SimpleNamespace:
        assert display_id
        assert not shown, "a second display"
        shown.append(content)
        return SimpleNamespace(update=shown.append)

    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(display=show))
    display = Display(1, Console(force_jupyter=True))
    for frame in (100, 200, 300):
        display.show([session(frame)])
    display.close()
    assert len(shown) > 1
    assert "300 / 1,000" in shown[-1]._repr_mimebundle_([], [])["text/html"]
