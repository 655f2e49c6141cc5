"""Tests of unusual machines: long paths, a user without a home folder, no shared memory."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

import labrl.cli
from labrl.dashboards.sender import has_login
from labrl.experiment.search.study import open_storage, own_url
from labrl.processes.startup import name_user_and_home
from labrl.run.experiment import STUDY_FILE

QUIET = ["wandb=disabled", "meta.report=false", "meta.videos=false"]


@pytest.mark.extended
def test_processes_start_when_the_path_of_tmpdir_is_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    folder.mkdir(parents=True)
    with pytest.raises(OSError, match="path too long"), socket.socket(socket.AF_UNIX) as own:
        own.bind(str(folder))
    overrides = ["agent=dqn", "env.num_envs=2", "env.max_frame=300", "agent.learning_starts=100", "seed=1"]
    overrides += ["env.vectorization=async", "meta/async_unroll=on"]
    overrides += ["meta.rigorous_eval=1", "meta.async_eval=true", *QUIET, f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "labrl", *overrides]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "TMPDIR": str(folder)}, check=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
    assert not list(folder.glob("pymp-*"))


def test_run_dir_with_parent_parts_creates_no_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: Hydra also created `a` of a path `a/../b`, and a refused command left it behind."""
    monkeypatch.chdir(tmp_path)
    tiny = ["agent=random", "env.max_frame=64", *QUIET]
    assert labrl.cli.main(["agent.lr=abc", "hydra.run.dir=${env.name}x/../run"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert labrl.cli.main([*tiny, "hydra.run.dir=${env.name}x/../run"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("line", ["agent.lr=abc", "-m seed=1,2 agent.lr=abc"])
@pytest.mark.parametrize("folder", ["", "a/b/c"])
def test_refused_command_neither_creates_nor_deletes_folders(
    line: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: a refused run left an empty runs/ behind and deleted an empty folder of the user."""
    monkeypatch.chdir(tmp_path)
    overrides = shlex.split(line)
    if folder:
        overrides.append(f"hydra.{'sweep' if '-m' in overrides else 'run'}.dir={folder}")
    assert labrl.cli.main(overrides) == 2
    assert not list(tmp_path.iterdir())
    for mine in ("runs", "a/b/c"):
        (tmp_path / mine).mkdir(parents=True)
    assert labrl.cli.main(overrides) == 2
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"runs", "a", "a/b", "a/b/c"}


def test_unknown_user_gets_a_name_and_a_private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    names = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "NETRC", "WANDB_API_KEY", "WANDB_CONFIG_DIR")
    for name in names:
        monkeypatch.setenv(name, "")  # registers the old value, so that it is restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert not has_login()
    name_user_and_home()
    assert os.environ["USER"] == str(os.getuid())
    assert Path.home().parent == tmp_path
    assert Path.home().stat().st_mode & 0o777 == 0o700


def test_workers_need_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_shared_memory(self: object) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("multiprocessing.context.BaseContext.Lock", no_shared_memory)
    overrides = ["agent=random", "env.num_envs=2", "env.max_frame=100", "env.vectorization=async"]
    assert labrl.train([*overrides, *QUIET, f"hydra.run.dir={tmp_path / 'run'}"]).exit_code == 0


def test_study_is_stored_in_a_folder_with_special_characters(tmp_path: Path) -> None:
    folder = tmp_path / "100%41 ?a=b {c} #d"
    folder.mkdir()
    open_storage(own_url(folder)).remove_session()
    assert (folder / STUDY_FILE).exists()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
