"""Tests of what a power failure leaves behind: what a resume needs is synced before the first frame, and an
emptied `run.json` is refused."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import ClassVar

import pytest
from exact_cases import QUIET
from refusals import damaged

import labrl
from labrl.session.callbacks.callback import Callback, SessionView

pytestmark = pytest.mark.extended

RUN = ["agent=random", "env.num_envs=2", "env.max_frame=64", "meta.log_frequency=32", *QUIET]

NOT_NEEDED = {".lock", "networks.txt", "progress.json", "session.log", "changed.json", "episodes"}
"""Files without which a run can be resumed."""

EMPTIED = {"empty": b"", "zeros": bytes(300)}
"""What a power failure can leave of a file that was not synced."""


class Disk:
    """What a power failure leaves: what is now in the working folder, and what is synced from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = list(Path.cwd().rglob("*"))
        states = [path.stat() for path in before if path.is_file()]
        self.files = {state.st_ino: state.st_mtime_ns for state in states}
        folders = [path for path in [Path.cwd(), *before] if path.is_dir()]
        self.names = {path.stat().st_ino: set(os.listdir(path)) for path in folders}  # by inode of the folder
        sync = os.fsync

        def record(descriptor: int) -> None:
            sync(descriptor)
            state = os.fstat(descriptor)
            if stat.S_ISDIR(state.st_mode):
                self.names[state.st_ino] = set(os.listdir(descriptor))
            else:
                self.files[state.st_ino] = state.st_mtime_ns

        monkeypatch.setattr(os, "fsync", record)

    def lost(self, run: Path) -> list[str]:
        """Return what would be lost: files of a run, and folders on its path from the working folder."""
        inside = [path for path in run.rglob("*") if not set(path.relative_to(run).parts) & NOT_NEEDED]
        lost = [path for path in inside if path.is_file() and not self._holds(path)]
        above = [path for path in (run, *run.parents) if Path.cwd() in path.parents]
        names = {path: self.names.get(path.parent.stat().st_ino, ()) for path in [*inside, *above]}
        lost += [path for path, known in names.items() if path.name not in known]
        return sorted({os.path.relpath(path, run) for path in lost})

    def _holds(self, file: Path) -> bool:
        return self.files.get(file.stat().st_ino) == file.stat().st_mtime_ns


class Look(Callback):
    """Note what would be lost if the power failed just before the first frame."""

    frequencies = ()
    disk: ClassVar[Disk]
    lost: ClassVar[list[str] | None]

    def start(self, session: SessionView) -> None:
        Look.lost = Look.disk.lost(session.folder.path.parent)


LOOK = "+callbacks.look={_target_: test_power_failure.Look}"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run with several checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert labrl.train([*RUN, "meta.keep_every=32", f"hydra.run.dir={folder}"]).exit_code == 0
    return folder


@pytest.fixture
def run(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "run"))


@pytest.mark.parametrize(
    "overrides",
    [
        [*RUN, "hydra.run.dir=new/folder"],
        ["+resume=run", "env.max_frame=128"],
        ["+fork=run", "at=32", "env.max_frame=128", "hydra.run.dir=new/folder"],
        [*RUN, "agent=ppo", "env.max_frame=128", "start_from.run=learned", "hydra.run.dir=new/folder"],
    ],
    ids=["new", "resume", "fork", "start_from"],
)
def test_everything_that_a_resume_needs_is_synced_before_the_first_frame(
    overrides: list[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    if "start_from.run=learned" in overrides:
        assert labrl.train([*RUN, "agent=ppo", "env.max_frame=128", "hydra.run.dir=learned"]).exit_code == 0
    Look.disk, Look.lost = Disk(monkeypatch), None
    assert labrl.train([*overrides, LOOK]).exit_code == 0
    assert Look.lost == []


@pytest.mark.parametrize("content", EMPTIED.values(), ids=EMPTIED)
def test_emptied_run_json_is_refused(content: bytes, run: Path) -> None:
    (run / "run.json").write_bytes(content)
    with damaged(run / "run.json"):
        labrl.train([f"+resume={run}", "env.max_frame=128"])
