"""Tests of `labrl-replay`, of the videos made at the end of a trial, and of rendered images."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from env_cases import own_env
from exact_cases import QUIET, small
from one_process import ONE_PROCESS
from pictures_env import Drawn
from refusals import refused

import labrl
from labrl.cli import main, replay, report
from labrl.envs.make import watch
from labrl.errors import DONE, FAILED, WRONG_INPUT
from labrl.run.episodes import RecordedEpisode, read_episode, write_episode
from labrl.run.run import Run
from labrl.trial import videos as video_files
from labrl.trial.videos import write_mp4

CARTPOLE = [
    *QUIET,
    "agent=random",
    "env=cartpole",
    "env.num_envs=2",
    "env.max_frame=600",
    "meta.eval_frequency=300",
]


WITH_VIDEOS = [override for override in CARTPOLE if not override.startswith("meta.videos")]


def video_size(path: Path) -> tuple[int, int, int]:
    """Return the number of images, height and width of a video, whose format every browser must support."""
    with av.open(str(path)) as video:
        stream = video.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        return sum(1 for _ in video.decode(stream)), stream.height, stream.width


@pytest.mark.extended
def test_playback_makes_a_video_of_each_recorded_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = labrl.train([*CARTPOLE, "meta.record_episodes=each", f"hydra.run.dir={tmp_path / 'run'}"]).folder
    session = run / "session_0"
    for name in ("best", "last", "300"):
        assert replay([str(run), f"episode={name}"]) == DONE, capsys.readouterr().err
        count, height, width = video_size(session / "videos" / f"{name}.mp4")
        assert count == read_episode(session / "episodes" / f"{name}.npz").length + 1
        assert height % 2 == width % 2 == 0
    best = read_episode(session / "episodes" / "best.npz")
    write_episode(session / "episodes", "best", RecordedEpisode(**{**best.plain(), "seed": best.seed + 1}))
    assert replay([str(run)]) == FAILED, "an episode with a changed seed passed the check"


def test_video_of_an_atari_game_is_in_color(tmp_path: Path) -> None:
    overrides = [*small("random", "pong"), "env.max_frame=100"]
    run = labrl.train([*overrides, f"hydra.run.dir={tmp_path / 'run'}"]).folder
    assert replay([str(run), "episode=last"]) == DONE
    video = run / "session_0" / "videos" / "last.mp4"
    assert video_size(video) == (41, 420, 320)
    with av.open(str(video)) as file:
        red, _, blue = next(file.decode(video=0)).to_ndarray(format="rgb24")[200, 160].astype(int)
    assert red - blue > 40


@pytest.mark.extended
@pytest.mark.uses_videos
def test_trial_ends_with_videos_unless_videos_is_false(tmp_path: Path) -> None:
    result = labrl.train([*WITH_VIDEOS, f"hydra.run.dir={tmp_path / 'run'}"])
    videos = result.folder / "session_0" / "videos"
    assert sorted(path.name for path in videos.iterdir()) == ["best.mp4", "last.mp4"]
    assert video_size(videos / "best.mp4")[0] > 1
    labrl.train([*WITH_VIDEOS, "meta.videos=false", f"hydra.run.dir={tmp_path / 'without'}"])
    assert not (tmp_path / "without" / "session_0" / "videos").exists()


@pytest.mark.extended
@pytest.mark.uses_videos
@pytest.mark.parametrize("command", ["report", "resume", "unrecorded", "experiment"])
def test_videos_missing_after_a_kill_are_made_later(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: a kill while videos were rendered lost them and left an incomplete file behind.

    unrecorded: the kill came before the run's end was recorded.
    """
    path = tmp_path / "run"
    experiment = ["-m", *WITH_VIDEOS, "seed=1", f"hydra.sweep.dir={path}"]
    experiment += [ONE_PROCESS]

    class Killed(BaseException):
        pass

    def killed(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(video_files, "render_videos", killed)
        with pytest.raises(Killed):
            main(experiment if command == "experiment" else [*WITH_VIDEOS, f"hydra.run.dir={path}"])
    if command == "unrecorded":
        Run.open(path).set_status("running", videos_due=False)
    videos = next(path.glob("**/session_0")) / "videos"
    videos.mkdir()
    (videos / ".best.999999999.tmp.mp4").write_bytes(b"half a video")
    running = videos / f".best.{os.getppid()}.tmp.mp4"
    running.write_bytes(b"of a process that lives")
    if command == "report":
        assert report([str(path)]) == DONE
    elif command in ("resume", "unrecorded"):
        assert main([f"+resume={path}"]) == DONE
        assert main([f"+resume={path}"]) == WRONG_INPUT, "a finished run was resumed"
    else:
        assert main(["-m", f"+resume={path}"]) == DONE
    assert sorted(videos.iterdir()) == sorted([running, videos / "best.mp4", videos / "last.mp4"])
    made = {one.name: one.stat().st_mtime_ns for one in videos.iterdir()}
    assert report([str(path)]) == DONE
    assert {one.name: one.stat().st_mtime_ns for one in videos.iterdir()} == made, (
        "videos were rendered twice"
    )


@pytest.mark.parametrize("kind", ["none", "fraction", "gray", "transparent", "no pixels", "raises", "exits"])
def test_invalid_image_is_refused(kind: str) -> None:
    env = watch(own_env(Drawn, {"kind": kind}, fresh_env_per_episode=False))
    with refused("environment", "env.make"):
        env.reset(np.ones(1, np.bool_), np.zeros(1, np.int64))
        env.picture()
    env.close()


@pytest.mark.uses_videos
@pytest.mark.parametrize("kind", ["unseen", "raises later", "changing"])
def test_playback_checks_the_episode_with_and_without_images(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = (
        "{_target_: pictures_env.Unseen}"
        if kind == "unseen"
        else f"{{_target_: pictures_env.Drawn, kind: {kind}}}"
    )
    own = ["env=gymnasium", "env.id=null", "env.name=toy", f"env.make={make}"]
    overrides = [
        override for override in CARTPOLE if not override.startswith(("meta.videos", "env=", "env.max_frame"))
    ]
    run = labrl.train([*overrides, *own, "env.max_frame=300", f"hydra.run.dir={tmp_path / 'run'}"]).folder
    session = run / "session_0"
    has_images = kind == "changing"
    assert (session / "videos" / "best.mp4").exists() is has_images
    assert replay([str(run)]) == 0
    assert (session / "videos" / "best.mp4").exists() is has_images
    assert main([f"+enjoy={run}", "episodes=1"]) == 0
    assert len(list(run.glob("enjoy/*/result.json"))) == 1
    assert len(list(run.glob("enjoy/*/*.mp4"))) == int(has_images)
    best = read_episode(session / "episodes" / "best.npz")
    write_episode(session / "episodes", "best", RecordedEpisode(**{**best.plain(), "seed": best.seed + 1}))
    assert replay([str(run)]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.extended
def test_ctrl_c_during_rendering_leaves_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(video_files, "render_videos", interrupted)
    assert main([*WITH_VIDEOS, f"hydra.run.dir={tmp_path / 'run'}"]) == 130
    output = "".join(capsys.readouterr())
    assert f"labrl-report {tmp_path / 'run'}" in output
    assert "+resume" not in output
    assert Run.open(tmp_path / "run").recorded_status == "finished"


@pytest.mark.parametrize("size", [(1, 1), (33, 47), (2, 900)])
def test_images_of_any_size_make_a_video(size: tuple[int, int], tmp_path: Path) -> None:
    with write_mp4(tmp_path / "video.mp4", 12.5) as video:
        for shade in range(0, 250, 50):
            video.add(np.full((*size, 3), shade, np.uint8))
    count, height, width = video_size(tmp_path / "video.mp4")
    assert count == 5
    assert height % 2 == width % 2 == 0
    assert height / width == pytest.approx(size[0] / size[1], rel=0.01)


@pytest.mark.extended
def test_missing_episode_session_or_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal_words(*overrides: str) -> set[str]:
        assert replay(list(overrides)) == WRONG_INPUT
        return {word.strip(" ,.:;?()'") for word in capsys.readouterr().err.split()}

    run = labrl.train([*CARTPOLE, f"hydra.run.dir={tmp_path / 'run'}"]).folder
    capsys.readouterr()
    assert {"episode=700", "best", "last", "meta.record_episodes=each"} <= refusal_words(
        str(run), "episode=700"
    )
    assert {"episode", "first", "best", "last"} <= refusal_words(str(run), "episode=first")
    assert {"session=1", "0"} <= refusal_words(str(run), "session=1")
    assert {"episodes=1", "episode"} <= refusal_words(str(run), "episodes=1")
    assert str(tmp_path / "nowhere") in refusal_words(str(tmp_path / "nowhere"))
    for path in (run / "session_0" / "episodes").iterdir():
        path.unlink()
    assert {str(run), "meta.record_episodes=none"} <= refusal_words(str(run))


def test_user_module_is_importable_for_training_and_playback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from gymnasium.envs.classic_control import CartPoleEnv\n\nclass Lamp(CartPoleEnv): ...\n"
    (tmp_path / "own_lamp.py").write_text(code)
    made = ["env=gymnasium", "env.id=null", "env.name=lamp", "+env.make._target_=own_lamp.Lamp"]
    overrides = [*QUIET, "agent=random", *made, "env.num_envs=1", "env.max_frame=128", "hydra.run.dir=run"]
    # Installed commands, unlike `python -m`, start without the working folder on Python's path.
    for command, arguments in ((main, overrides), (replay, ["run"])):
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
        sys.modules.pop("own_lamp", None)
        assert importlib.util.find_spec("own_lamp") is None
        assert command(arguments) == DONE
        assert "own_lamp" in sys.modules
