"""Tests of `labrl-clean`, which removes what finished runs no longer need, and of disk use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from exact_cases import differences, small
from one_process import ONE_PROCESS
from refusals import refused
from run_cases import files_of, rising, write_run

import labrl
from labrl import cli
from labrl.errors import DONE, FAILED, WRONG_INPUT
from labrl.run.checkpoint import CheckpointStore
from labrl.run.disk import clean, disk_use
from labrl.run.run import MARKER, Run

PPO = [*small("ppo", "cartpole"), "agent.lr=1e-3", "agent.clip_range=0.2"]
DQN = [*small("dqn", "cartpole"), "agent.lr=1e-3"]
FILES = "agent.memory.storage=mmap"
KEEP, AT = "meta.keep_every=800", 800
LARGER = "env.max_frame=3200"
REMOVED = ("replay/", "videos/last.mp4", "checkpoints/frame_")

pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.extended]


@pytest.fixture(scope="module")
def dqn_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dqn") / "run"
    assert cli.main([*DQN, KEEP, FILES, f"hydra.run.dir={folder}"]) == DONE
    for name in ("session_0/videos/best.mp4", "session_0/videos/last.mp4", "enjoy/one/episode_0.mp4"):
        video = folder / name
        video.parent.mkdir(parents=True, exist_ok=True)
        video.write_bytes(bytes(10_000))
    return folder


@pytest.fixture
def dqn(dqn_once: Path) -> Path:
    return Path(shutil.copytree(dqn_once, "runs/dqn"))


def has_files_in(run: Path, *names: str) -> bool:
    return any(path.is_file() for name in names for path in run.glob(f"{name}/**/*"))


def made_up(path: Path, status: str = "finished") -> Path:
    """Write a run without training that has a replay buffer, three checkpoints and a video."""
    write_run(path, [rising(10)], status=status)
    session = Run.open(path).session(0)
    for frame in (100, 200, 300):
        session.store(keep_last=3).save(frame, {"frame": frame})
    for file in (session.replay / "frames.npy", session.videos / "last.mp4"):
        file.parent.mkdir()
        file.write_bytes(bytes(10_000))
    return path


def frames_of(run: Path) -> list[int]:
    return Run.open(run).session(0).checkpoint_frames()


def test_clean_removes_buffers_old_checkpoints_and_other_videos_than_the_best_and_nothing_else(
    dqn: Path,
) -> None:
    before = files_of(dqn)
    assert cli.clean(["runs"]) == DONE
    assert files_of(dqn) == before, "files were removed without --yes"
    (newest, *_), best = frames_of(dqn), Run.open(dqn).session(0).store().best_frame()
    assert has_files_in(dqn, "session_0/replay", f"session_0/checkpoints/frame_{newest:012d}/replay")
    assert cli.clean([str(dqn), "--yes"]) == DONE
    after = files_of(dqn)
    assert set(frames_of(dqn)) == {newest} | ({best} & set(frames_of(dqn)))
    assert Run.open(dqn).session(0).store().best_frame() == best
    removed = {str(path.relative_to(dqn)) for path in before.keys() - after.keys()}
    kinds = ("enjoy/one/episode_0.mp4", *(f"session_0/{one}" for one in REMOVED))
    assert all(path.startswith(kinds) for path in removed)
    assert not has_files_in(dqn, "session_0/replay", "session_0/checkpoints/*/replay")
    assert [path.name for path in dqn.rglob("*.mp4")] == ["best.mp4"]
    changed = {path for path in after if before.get(path) != after[path]}
    assert changed == {dqn / MARKER}


def test_run_without_its_buffer_can_only_be_repeated(dqn: Path) -> None:
    assert cli.clean([str(dqn), "--yes"]) == DONE
    before = files_of(Path("runs"))
    with refused("not-found", "+resume", str(dqn), f"+rerun={dqn.absolute()}", "start_from.run="):
        labrl.train([f"+resume={dqn}", LARGER])
    with refused("not-found", "+resume"):
        labrl.train([f"+resume={dqn}", LARGER, "+force=true"])
    for at in ([], [f"at={AT}"]):
        with refused("not-found", "+fork", f"+rerun={dqn.absolute()}"):
            labrl.train([f"+fork={dqn}", *at, LARGER])
    with refused("not-found", "agent.offline.folder", f"+rerun={dqn.absolute()}"):
        labrl.train(["agent=dqn", "agent/offline=run", f"agent.offline.folder={dqn}", "env.max_frame=800"])
    assert files_of(Path("runs")) == before
    again = labrl.train([f"+rerun={dqn}"])
    assert again.exit_code == DONE
    assert labrl.train([f"+resume={again.folder}", LARGER]).exit_code == DONE


def test_experiment_with_a_cleaned_trial_is_not_extended(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["-m", *DQN, FILES, "env.max_frame=800", "seed=1,2", ONE_PROCESS]
    assert cli.main([*grid, "hydra.sweep.dir=grid"]) == DONE
    trial = min(marker.parent for marker in Path("grid").glob(f"*/{MARKER}"))
    assert cli.clean([str(trial), "--yes"]) == DONE
    capsys.readouterr()
    assert cli.main(["-m", "+resume=grid", LARGER]) == WRONG_INPUT
    assert "labrl-clean" in capsys.readouterr().err
    assert cli.main(["-m", "+resume=grid", "seed=1,2"]) == DONE


def test_cleaned_run_of_an_agent_without_a_buffer_is_extended_exactly() -> None:
    ppo = labrl.train([*PPO, KEEP, "hydra.run.dir=runs/ppo"]).folder
    assert cli.clean([str(ppo), "--yes"]) == DONE
    assert frames_of(ppo) != []
    assert labrl.train([f"+resume={ppo}", LARGER]).exit_code == DONE
    whole = labrl.train([*PPO, KEEP, LARGER, "hydra.run.dir=runs/whole"])
    assert differences(ppo, whole.folder) == []


def test_newest_whole_and_best_checkpoints_are_not_old(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=9)
    for frame in range(1, 7):
        store.save(frame, {"frame": frame}, best=frame if frame in (2, 3) else None)
    assert [path.name[-1] for path in store.old()] == ["5", "4", "2", "1"]
    (store.folder / "frame_000000000006" / "state.pt").unlink()
    assert [path.name[-1] for path in store.old()] == ["4", "2", "1"], "the newest complete one is 5"


@pytest.mark.parametrize("status", ["interrupted", "failed", "waiting", "running"])
def test_unfinished_run_is_skipped_and_named(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(Path("runs/cut"), status)
    made_up(Path("runs/done"))
    before = files_of(Path("runs/cut"))
    assert cli.clean(["runs", "--yes"]) == DONE
    assert files_of(Path("runs/cut")) == before
    assert frames_of(Path("runs/done")) == [300]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "runs/cut" in line)
    assert "+resume" in line


def test_run_in_use_is_skipped_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    run = made_up(Path("runs/used"))
    before = files_of(run)
    with Run.open(run).session(0).lock():
        assert cli.clean(["runs", "--yes"]) == DONE
    assert files_of(run) == before
    assert "runs/used" in capsys.readouterr().out


@pytest.mark.parametrize(
    "linked", ["session_0", "session_0/replay", "session_0/checkpoints", "session_0/videos/last.mp4"]
)
def test_symbolic_link_is_not_followed(linked: str) -> None:
    run = made_up(Path("runs/one"))
    elsewhere = Path("elsewhere")
    shutil.move(run / linked, elsewhere)
    (run / linked).symlink_to(elsewhere.absolute())
    before = files_of(Path("elsewhere")) or elsewhere.read_bytes()
    assert cli.clean(["runs/one", "--yes"]) == DONE
    assert (files_of(Path("elsewhere")) or elsewhere.read_bytes()) == before
    assert (run / linked).is_symlink()


def test_link_inside_a_removed_folder_is_removed_and_its_target_stays() -> None:
    run = made_up(Path("runs/one"))
    Path("data").mkdir()
    Path("data/mine").write_text("kept")
    (run / "session_0" / "replay" / "data").symlink_to(Path("data").absolute())
    assert cli.clean(["runs/one", "--yes"]) == DONE
    assert not (run / "session_0" / "replay").exists()
    assert Path("data/mine").read_text() == "kept"


def test_file_that_cannot_be_removed_is_named_and_removed_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    run = made_up(Path("runs/one"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        assert cli.clean(["runs", "--yes"]) == FAILED
    assert str(run / "session_0" / "checkpoints") in capsys.readouterr().out
    with refused("not-found", "+resume"):  # part of it may be missing
        Run.open(run).check_buffers([0], "+resume")
    assert cli.clean(["runs", "--yes"]) == DONE
    assert not (run / "session_0" / "replay").exists()


@pytest.mark.parametrize(
    "place", ["", "nowhere", "runs/x*", "runs/one/session_0", "runs/one/run.json", "empty"]
)
def test_wrong_folder_is_refused_and_removes_nothing(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(Path("runs/one"))
    Path("empty").mkdir()
    before = files_of(Path())
    assert cli.clean([place, "--yes"]) == WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert place in line
    assert files_of(Path()) == before


def test_disk_use_is_the_size_of_all_files_by_kind_and_the_printed_size_that_of_removed_ones(
    dqn: Path,
) -> None:
    def size() -> int:
        files = [path.lstat() for path in dqn.rglob("*") if path.is_file()]
        return sum({stat.st_ino: stat.st_blocks * 512 for stat in files}.values())

    used, before = disk_use(Run.open(dqn)), size()
    assert sum(used.values()) == before
    assert {"replay buffer", "checkpoints"} <= used.keys()
    marker = (dqn / MARKER).lstat().st_blocks * 512
    removed = clean(Run.open(dqn), remove=True).total()
    assert removed == before - size() + (dqn / MARKER).lstat().st_blocks * 512 - marker > 0
