"""Tests of run folders: claimed by exactly one run, with its status, and readable without labrl."""

from __future__ import annotations

import errno
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import damaged, refused

from labrl.errors import LabrlError
from labrl.run.atomic import write_atomic
from labrl.run.provenance import Origin, write_provenance
from labrl.run.run import Run


def test_only_one_of_many_simultaneous_claims_gets_the_folder(tmp_path: Path) -> None:
    def claim(_: int) -> bool:
        try:
            Run.create(tmp_path / "a" / "b")
        except LabrlError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(64))) == 1


def test_path_that_cannot_be_encoded_is_refused(tmp_path: Path) -> None:
    with refused("usage", "hydra.run.dir"):
        Run.create(os.fsdecode(os.fsencode(tmp_path) + b"/l\xe4uf"))
    assert not list(tmp_path.iterdir())


def test_path_with_a_file_among_its_parents_is_refused_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "a" / "run"):
        with refused("range", "hydra.run.dir") as error:
            Run.create(path)
        assert f"{tmp_path / 'file'} " in str(error.value)
    if sys.platform.startswith("linux"):
        with refused("range", "hydra.run.dir", "/proc/labrl/run"):  # which not even root can write
            Run.create("/proc/labrl/run")


@pytest.mark.parametrize("content", ["[1]", '{"name": "something else"}'])
def test_damaged_or_missing_run_is_refused(tmp_path: Path, content: str) -> None:
    with refused("not-found", tmp_path):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text(content)
    with damaged(tmp_path / "run.json"):
        Run.open(tmp_path)


def test_session_folders_are_listed_in_numerical_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path)
    for index in (11, 2, 0):
        run.session(index)
    (tmp_path / "session_notes").mkdir()
    assert [folder.path.name for folder in run.sessions] == ["session_0", "session_2", "session_11"]
    assert run.session(2).train_csv == tmp_path / "session_2" / "train.csv"


def test_file_is_replaced_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "before")

    def refuse(*_: object) -> None:
        raise OSError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match="refused"):
            write_atomic(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_file_system_that_cannot_sync_folders_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", sync)
    for name in ("a", "b"):
        write_atomic(tmp_path / name, "content")
        assert (tmp_path / name).read_text() == "content"
    assert len(caplog.records) == 1


def test_refused_run_leaves_other_files_and_the_working_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run")
    run.session(0)
    for file in (run.config_yaml, run.overrides_yaml, run.provenance_json, run.path / "labrl.diff"):
        file.write_text("")
    with run.lock():
        pass
    run.discard()
    monkeypatch.chdir(tmp_path)
    Run.create(".").discard()
    assert list(tmp_path.iterdir()) == []
    Path("notes.txt").write_text("")
    Run.create(".").discard()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["train.csv", "result.json", "checkpoints/frame_000000000008/state.pt"])
def test_run_that_has_played_is_not_discarded(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path)
    run.config_yaml.write_text("")
    other = run.session(0).path / name
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("")
    run.discard()
    assert other.exists()
    assert run.recorded_status == "running"


def test_what_a_run_keeps_is_read_again_after_it_has_changed_the_folder(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    with run.lock():
        assert (run.status, run.config, run.sessions) == ("running", {}, [])
        for resume, lr in ((None, 0.1), (1, 0.2)):
            config = {"seed": 1, "agent": {"lr": lr}, "env": {}, "meta": {}}
            write_provenance(run, config, Origin([f"agent.lr={lr}"]), resume)
            assert (run.config, run.overrides) == (config, [f"agent.lr={lr}"])
        run.session(2)
        run.set_status("failed")
    assert (run.status, run.info["status"], Run.status_at(run.path)) == ("failed",) * 3
    assert [session.index for session in run.sessions] == [2]
    assert Run.status_at(tmp_path / "none") is None
