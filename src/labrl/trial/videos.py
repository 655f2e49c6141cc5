"""Videos of recorded episodes, which are played again from their seeds and actions."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labrl.component import Component
from labrl.config.compose import prepare
from labrl.config.validate import dataclass_of
from labrl.envs.make import watch
from labrl.envs.protocol import Backend, Watched
from labrl.errors import InputError, LabrlError
from labrl.processes.output import doing
from labrl.run.episodes import RecordedEpisode, read_episode
from labrl.run.run import Run
from labrl.run.session import SessionResult
from labrl.run.trust import check_recorded
from labrl.session.episodes import replayed
from labrl.trial.summary import say

LARGEST = 4096
"""Maximum size of a side after enlargement, in pixels."""

SMALLEST = 256
"""Size in pixels to which the shorter side of a smaller image is enlarged in a video."""

VIDEOS = ("best", "last")
"""Names of the recorded episodes of which videos are made at the end of a trial."""

LONGEST = 1800
"""Maximum number of images in a video at the end of a trial: two minutes of an Atari game at the default
frame skip."""


def check(episode: RecordedEpisode) -> str | None:
    """Play back an episode without images. Return how it differs from the record; None if it does not.

    Raises InputError if the environment of the episode cannot be made.
    """
    node = dataclass_of(Component, episode.env, "env")
    env: Backend = node.build(num_envs=1, num_threads=1, evaluation=episode.source == "evaluation")
    try:
        return replayed(episode, env, lambda _: None)
    finally:
        env.close()


class Screening:
    """Context manager with an environment that renders images, for playing back episodes one after
    another."""

    def __init__(self) -> None:
        self._env: Watched | None = None
        self._made_of: dict[str, Any] = {}

    def __enter__(self) -> Screening:
        return self

    def __exit__(self, *error: object) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def environment(self, episode: RecordedEpisode) -> Watched:
        """Return the environment of an episode, and make it if needed. Raises InputError if it cannot render
        images."""
        if self._env is None or self._made_of != episode.env:
            self.__exit__()
            self._env, self._made_of = watch(dataclass_of(Component, episode.env, "env")), episode.env
        return self._env


def to_video(
    episode: RecordedEpisode, path: Path, screening: Screening, longest: int | None = None
) -> str | None:
    """Play back an episode as an MP4 file. Return how it differs from the record; None if it does not.

    longest: number of images after which the video ends unchecked; None: no limit. Raises InputError if the
    environment cannot render images or the encoder fails, and OSError if the file cannot be written.
    """
    env = screening.environment(episode)
    try:
        with write_mp4(path, env.frames_per_second) as video:

            def add(steps: int) -> bool:
                video.add(env.picture())
                return steps + 1 == longest

            return replayed(episode, env, add)
    except ImportError as error:
        why = f"videos need PyAV, which cannot be imported ({error})"
        raise InputError.about("av", why, "Type pip install av", code="not-installed") from error
    except EncoderError as error:
        why = f"the images of {env.name} cannot be encoded: {error}"
        raise InputError.unsupported("env", why) from error


def make_videos(run: Run) -> None:
    """Make the videos of a run that has ended, unless they exist or were not requested.

    If a trial is killed while it makes its videos, the next report or resume makes them.
    """
    info = run.read_info()
    if info.get("videos_due"):
        doing("making videos of the best and the last episode")
        prepare(own_modules(run))
        render_videos(run, [SessionResult(**one) for one in info.get("sessions", [])])
        run.set_status(info["status"], videos_due=False)


def render_videos(run: Run, sessions: Sequence[SessionResult]) -> list[Path]:
    """Write `videos/best.mp4` and `videos/last.mp4` of the session with the best score.

    Videos that are newer than their episodes are kept. If videos cannot be made, prints a line with the
    reason. Returns the files that were written.
    """
    if not sessions:
        return []
    best = max(sessions, key=lambda one: -math.inf if one.best_return is None else one.best_return)
    folder = run.session(best.index)
    written: list[Path] = []
    with Screening() as screening:
        for name in VIDEOS:
            source, target = folder.episodes / f"{name}.npz", folder.videos / f"{name}.mp4"
            made = target.exists() and source.exists() and target.stat().st_mtime >= source.stat().st_mtime
            if made or not source.exists():
                continue
            try:
                to_video(recorded_episode(run, source), target, screening, LONGEST)
            except Exception as error:  # A user's environment may fail in any way.
                known = isinstance(error, LabrlError | OSError)
                say(f"no videos: {'' if known else f'{type(error).__name__}: '}{error}")
                if isinstance(error, OSError):
                    run.errors.failed(target, error)
                break
            written.append(target)
    return written


def recorded_episode(run: Run, source: Path) -> RecordedEpisode:
    """Read a recorded episode. Raises InputError if someone else wrote it and it names code that is not part
    of labrl."""
    episode = read_episode(source)
    check_recorded(run, {"env": episode.env})
    return episode


def own_modules(run: Run) -> str | None:
    """Return the folder of the user's modules, if the run has one that still exists."""
    folder = run.config_dir
    return folder if folder is not None and Path(folder).is_dir() else None


class EncoderError(Exception):
    """Raised if the encoder does not accept the images, for example because they are 100,000 pixels wide."""


class Mp4:
    """An MP4 file that is written image by image."""

    def __init__(self, container: Any, frames_per_second: float) -> None:
        self._container, self._rate = container, Fraction(frames_per_second).limit_denominator(1000)
        self._stream: Any = None
        self._zoom = 1

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Append an image to the video. Images of other sizes are scaled to the size of the first image.

        picture: RGB image, [height, width, 3]. Raises EncoderError if the encoder does not accept the image,
        and OSError if the file cannot be written.
        """
        import av

        with _refusals():
            if self._stream is None:
                height, width = picture.shape[:2]
                zoom = min(round(SMALLEST / max(min(height, width), 1)), LARGEST // max(height, width))
                self._zoom = max(1, zoom)
                encoder = "libx264" if "libx264" in av.codecs_available else "h264"
                options = {"crf": "23", "preset": "veryfast"} if encoder == "libx264" else {}
                stream = self._stream = self._container.add_stream(encoder, rate=self._rate, options=options)
                stream.height = (height * self._zoom + 1) // 2 * 2
                stream.width = (width * self._zoom + 1) // 2 * 2
                stream.pix_fmt = "yuv420p"
                # Two threads on one core (hyper-threads) take longer than one.
                stream.codec_context.thread_count = max((os.cpu_count() or 1) // 2, 1)
            picture = picture.repeat(self._zoom, 0).repeat(self._zoom, 1) if self._zoom > 1 else picture
            # Colors are stored for blocks of two by two pixels, so both sides must be even.
            odd = picture.shape[0] % 2, picture.shape[1] % 2
            if any(odd):
                picture = np.pad(picture, ((0, odd[0]), (0, odd[1]), (0, 0)), "edge")
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            if (frame.width, frame.height) != (self._stream.width, self._stream.height):
                frame = frame.reformat(width=self._stream.width, height=self._stream.height)
            self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write the images that are still in the encoder. Raises ValueError if the video has no images."""
        if self._stream is None:
            raise ValueError("a video needs at least one picture")
        with _refusals():
            self._container.mux(self._stream.encode(None))


@contextmanager
def _refusals() -> Iterator[None]:
    """Context manager: convert errors of the encoder to EncoderError. Errors of the disk remain OSError."""
    import av

    try:
        yield
    except OSError:
        raise
    except (av.FFmpegError, ValueError) as error:
        raise EncoderError(str(error)) from error


@contextmanager
def write_mp4(path: Path, frames_per_second: float) -> Iterator[Mp4]:
    """Context manager: replace `path` with a video of the images that are added. If there is an error, the
    old file is kept.

    Raises ImportError if PyAV is missing, EncoderError if encoding fails, and OSError if the file cannot be
    written.
    """
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.stem}.*.tmp.mp4"):
        with suppress(PermissionError):  # someone else's process
            try:
                os.kill(int(leftover.name.split(".")[-3]), 0)
            except ProcessLookupError:
                leftover.unlink(missing_ok=True)  # it was killed
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")
    try:
        # The index comes first, so that a browser shows the video before it has loaded all of it.
        with av.open(str(temporary), "w", format="mp4", options={"movflags": "faststart"}) as container:
            video = Mp4(container, frames_per_second)
            yield video
            video.finish()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
