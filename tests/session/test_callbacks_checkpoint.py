"""Tests of the checkpoint callback: when it saves, full disks, interruptions and consistent files."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from callback_cases import ToySession, evaluation

import labrl.run.checkpoint
import labrl.session.callbacks.checkpoint
from labrl.run.checkpoint import CheckpointStore
from labrl.run.tables import read_rows
from labrl.session.callbacks.checkpoint import Checkpoint, DiskRefusesError
from labrl.session.callbacks.evaluate import Evaluate
from labrl.session.callbacks.log import LogTraining


def callbacks(session: ToySession) -> tuple[LogTraining, Evaluate, Checkpoint]:
    evaluate = evaluation(40)
    return LogTraining(50), evaluate, Checkpoint(50, 2, evaluate, session.workspace)


def store(session: ToySession) -> CheckpointStore:
    return CheckpointStore(session.folder.checkpoints, 2)


def test_checkpoints_at_log_frequency_new_best_and_end(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=200)
    session.run(*callbacks(session))
    # Returns grow, so every evaluation is the best so far.
    assert session.saved_at == [40, 52, 80, 100, 120, 152, 160, 200]
    assert store(session).frames() == [200, 160]
    best, latest = store(session).best(), store(session).latest()
    assert best is not None
    assert best.frame == 200
    assert latest is not None
    assert latest.state["weight"] == session.agent.weight
    assert latest.state["callbacks"][0]["last_frame"] == 200
    assert latest.state["callbacks"][1]["best_frame"] == 200


@pytest.mark.parametrize(("frame", "saved"), [(68, [40, 52, 68]), (52, [40, 52])])
def test_interrupted_session_is_saved_once_at_its_last_frame(
    frame: int, saved: list[int], tmp_path: Path
) -> None:
    session = ToySession(tmp_path).interrupt_at(frame)
    session.run(*callbacks(session))
    assert session.saved_at == saved
    latest = store(session).latest()
    assert latest is not None
    assert latest.state["clock"]["frame"] == frame


@pytest.mark.parametrize("stays_full", [False, True])
def test_full_disk_fails_the_session_only_when_its_end_is_not_saved(
    stays_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = ToySession(tmp_path)
    written = labrl.run.checkpoint.write_synced

    def full(*place: Any) -> None:
        if stays_full or session.clock.frame < 60:
            raise OSError(28, "No space left on device")
        written(*place)

    monkeypatch.setattr("labrl.run.checkpoint.write_synced", full)
    if stays_full:
        with pytest.raises(DiskRefusesError) as refused:
            session.run(*callbacks(session))
        assert (refused.value.code, refused.value.key) == ("resources", str(session.folder.checkpoints))
    else:
        session.run(*callbacks(session))
        assert store(session).frames()[0] == session.clock.frame
    assert session.clock.finished
    assert caplog.text.count("No space left") == 1


@pytest.mark.parametrize(
    ("files", "saved", "frame"),
    [({"frames_safe": 2 * 40 + 4}, 40, 40 + 2 * 40), ({"fills": 0.1}, 52, 52 + 10 * 4)],
)
def test_training_stops_before_overwriting_data_of_the_last_checkpoint(
    files: dict[str, Any], saved: int, frame: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ToySession(tmp_path)
    session.in_files(**files)

    def full(*_: Any) -> None:
        if session.clock.frame > 52:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("labrl.session.callbacks.checkpoint.sync_file", full)
    with pytest.raises(DiskRefusesError) as refused:
        session.run(*callbacks(session))
    assert refused.value.key == str(session.folder.path / "replay")
    assert session.clock.frame == frame
    assert store(session).frames()[0] == saved


def test_checkpoints_are_earlier_when_files_fill_quickly(tmp_path: Path) -> None:
    session = ToySession(tmp_path, max_frame=80)
    session.in_files(fills=0.1)  # the files hold ten steps of four frames, which two checkpoints share
    session.run(*callbacks(session))
    saved = [0, *session.saved_at]
    assert max(b - a for a, b in pairwise(saved)) == 20


def test_rows_are_synced_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, int] = {}
    fsync, write = os.fsync, CheckpointStore.write
    session = ToySession(tmp_path)
    tables = (session.folder.train_csv, session.folder.eval_csv)
    counted: dict[int, list[int]] = {}
    checked = []

    state = session.state_dict

    def counting() -> dict[str, Any]:
        counted[session.clock.frame] = [table.stat().st_size for table in tables]
        return state()

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size

    def checking(store: CheckpointStore, frame: int, *overrides: Any, **named: Any) -> Path:
        sizes = zip(tables, counted[frame], strict=True)
        checked.append([synced.get(str(table), 0) >= size for table, size in sizes])
        return write(store, frame, *overrides, **named)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(CheckpointStore, "write", checking)
    monkeypatch.setattr(session, "state_dict", counting)
    evaluate = evaluation(50)
    session.run(LogTraining(50), evaluate, Checkpoint(50, 2, evaluate, session.workspace))
    assert checked == [[True, True]] * 4


@pytest.mark.parametrize("written", ["beside training", "with changing files", "too large for a copy"])
def test_checkpoint_holds_weights_of_its_frame_when_written_later(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ToySession(tmp_path)
    session.agent.weight = torch.zeros(3)  # a tensor that training changes in place
    session.agent.metrics = dict
    if written == "with changing files":
        session.in_files()
    if written == "too large for a copy":
        monkeypatch.setattr(labrl.session.callbacks.checkpoint, "LARGEST_COPY", 11)
    beside = written == "beside training"
    write, later, frames, weights = CheckpointStore.write, threading.Event(), [], {}

    def writing(store: CheckpointStore, frame: int, *overrides: Any, **named: Any) -> Path:
        if beside and frame == 52:
            assert later.wait(60)
        frames.append((frame, session.clock.frame))
        return write(store, frame, *overrides, **named)

    def note_weights() -> None:
        weights[session.clock.frame] = session.agent.weight.clone()
        if session.clock.frame == 80:
            later.set()

    monkeypatch.setattr(CheckpointStore, "write", writing)
    session.before_callbacks = note_weights
    evaluate = evaluation(1000)
    session.run(LogTraining(50), evaluate, Checkpoint(50, 4, evaluate, session.workspace))
    assert [frame for frame, _ in frames] == [52, 100, 152, 200]
    assert (frames[0][1] >= 80) if beside else all(frame == now for frame, now in frames)
    for frame in (52, 100, 152, 200):
        saved = store(session).at(frame)
        assert saved is not None
        assert torch.equal(saved.state["weight"], weights[frame])


def test_no_checkpoint_counts_rows_that_could_not_be_written(tmp_path: Path) -> None:
    session = ToySession(tmp_path)
    away = session.folder.train_csv.with_name("away.csv")

    def refuse_rows() -> None:
        if session.clock.frame == 80:  # a folder in place of the table, as no user may write to it
            session.folder.train_csv.rename(away)
            session.folder.train_csv.mkdir()
        if session.clock.frame == 152:
            while session.folder.checkpoints not in session.folder.errors.lacking:
                time.sleep(0.001)  # the checkpoint at frame 100 is written, and refused, in the background
            assert store(session).frames() == [52], "a checkpoint was saved without the rows before it"
            session.folder.train_csv.rmdir()
            away.rename(session.folder.train_csv)

    session.before_callbacks = refuse_rows
    evaluate = evaluation(1000)
    session.run(LogTraining(50), evaluate, Checkpoint(50, 4, evaluate, session.workspace))
    assert store(session).frames() == [200, 152, 52]
    assert [row["frame"] for row in read_rows(session.folder.train_csv)] == [52, 100, 152, 200]
    assert not session.folder.errors.lacking
