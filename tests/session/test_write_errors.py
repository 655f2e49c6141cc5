"""Tests of disks that cannot be written: training continues, each cause is reported once, files are completed
later, and the exit code is 1 if a file is incomplete at the end."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from disk_limit import file_size_limit
from exact_cases import QUIET, differences

import labrl
from labrl.run.experiment import Experiment, TrialRecord
from labrl.run.run import Run
from labrl.run.session_log import warnings_logged
from labrl.run.write_errors import WriteErrors
from labrl.session.callbacks.callback import Callback, SessionView

RUN = ["agent=random", "env.num_envs=2", "env.max_frame=1200", "meta.log_frequency=100", *QUIET]
RUN += ["meta.tensorboard=true", "meta.record_episodes=each", "meta.keep_last=20"]


class Disconnect(Callback):
    """Make the folder of the session unusable, as a lost network disk is, from one frame to another."""

    def __init__(self, start: int, end: int) -> None:
        self.frequencies = (start, end)
        self._start, self._end = start, end

    def step(self, session: SessionView) -> None:
        folder, away = session.folder.path, session.folder.path.with_name(f"away_{session.index}")
        if session.clock.frame == self._start:
            saved = session.folder.checkpoints / "frame_000000000200"
            while not saved.exists() or list(saved.parent.glob(".*")):  # it is being written
                time.sleep(0.01)
            folder.rename(away)
            folder.write_text("a file, which even root cannot open as a folder")
        elif session.clock.frame == self._end:
            # Replaced in one step, because a checkpoint may be on its way in another thread.
            link = away.with_name(f"link_{session.index}")
            link.symlink_to(away)
            link.replace(folder)


def disconnected(start: int, end: int) -> list[str]:
    target = "test_write_errors.Disconnect"
    return [f"+callbacks.cut={{_target_: {target}, start: {start}, end: {end}}}"]


def trained(folder: Path, more: Sequence[str] = ()) -> labrl.TrialResult:
    return labrl.train([*RUN, *more, f"hydra.run.dir={folder}"])


@pytest.mark.extended
@pytest.mark.parametrize("sessions", [1, 2])
def test_files_are_completed_when_the_disk_returns(
    sessions: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    more = [f"meta.max_session={sessions}"]
    whole = trained(tmp_path / "whole", more)
    cut = trained(
        tmp_path / "cut", [*more, *(disconnected(250, 850) if sessions == 1 else disconnected(252, 852))]
    )
    assert (cut.exit_code, cut.error) == (whole.exit_code, whole.error) == (0, None)
    assert differences(tmp_path / "whole", tmp_path / "cut") == []
    for index in range(sessions):
        names = [
            {path.name for path in (run / f"session_{index}").rglob("*") if "tfevents" not in path.name}
            for run in (tmp_path / "whole", tmp_path / "cut")
        ]
        assert names[1] - names[0] == {"session.log"}
        gone = {name for name in names[0] - names[1] if not name.startswith("frame_")}
        assert gone == set(), "more than the checkpoints of that time are missing"
        log = (tmp_path / "cut" / f"session_{index}" / "session.log").read_text().splitlines()
        assert len(log) == 2, "the cause and its end are not reported once each"


@pytest.mark.extended
def test_incomplete_files_at_the_end_are_a_failure_with_the_first_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = trained(tmp_path / "cut", disconnected(250, 10**6))
    assert result.exit_code == 1
    (session,) = result.sessions
    assert (session.status, session.frame) == ("failed", 1200)
    assert "Not a directory" in (session.error or "")
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
    assert Run.open(tmp_path / "cut").recorded_status == "failed"
    (tmp_path / "cut" / "session_0").unlink()
    shutil.move(tmp_path / "cut" / "away_0", tmp_path / "cut" / "session_0")
    assert labrl.train([f"+resume={tmp_path / 'cut'}", "callbacks.cut=null"]).exit_code == 0
    trained(tmp_path / "whole")
    assert differences(tmp_path / "whole", tmp_path / "cut") == []


def test_facts_that_a_full_disk_refuses_are_written_with_the_next_ones(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    with file_size_limit(0):
        run.set_status("failed", sessions=[{"index": 0}])
        assert list(run.errors.lacking) == [run.marker]
        assert run.recorded_status == "failed"
    assert Run.open(run.path).recorded_status == "running"
    run.update(ranks=2)
    assert not run.errors.lacking
    info = json.loads(run.marker.read_text())
    assert (info["status"], info["sessions"], info["ranks"]) == ("failed", [{"index": 0}], 2)


def test_experiment_keeps_the_status_of_trials_that_a_full_disk_refuses(tmp_path: Path) -> None:
    records = [TrialRecord(number=number, overrides=[], folder=str(number)) for number in range(3)]
    made = Experiment.begin(tmp_path / "e", "grid", records)
    with file_size_limit(0):
        for record in records[:2]:
            record.status = "finished"
            made.set_trials([record])
    made.set_status("interrupted")
    statuses = [trial.status for trial in Experiment.open(tmp_path / "e").trials()]
    assert statuses == ["finished", "finished", "waiting"]


def test_log_that_cannot_be_written_raises_nothing_and_is_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest would keep the message for its report, which has to be valid UTF-8.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log, errors, logger = tmp_path / "folder" / "session.log", WriteErrors(), logging.getLogger("labrl.test")
    with warnings_logged(log, errors=errors):
        logger.warning("one")
        log.parent.mkdir()
        logger.warning("two %s", "\udcff")
    assert [line.split(": ")[-1][:3] for line in log.read_text().splitlines()] == ["one", "two"]
    assert not errors.lacking
    assert "Traceback" not in capsys.readouterr().err
    with warnings_logged(tmp_path / "missing" / "session.log", errors=errors):
        logger.warning("three")
    assert list(errors.lacking) == [tmp_path / "missing" / "session.log"]
