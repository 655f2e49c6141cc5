"""Playback of recorded episodes from their seeds and actions: as a check, in a window, or as a video."""

from __future__ import annotations

import math
import os
import sys
import time
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
from labrl.errors import DONE, FAILED, InputError, LabrlError
from labrl.processes.output import doing
from labrl.run.episodes import RecordedEpisode, read_episode, recorded_names
from labrl.run.run import Run
from labrl.run.session import RunSession, SessionResult
from labrl.run.trust import check_recorded
from labrl.session.episodes import replayed
from labrl.trial.find import find_run
from labrl.trial.showing import ReplayRequest
from labrl.trial.summary import say

SMALLEST = 480
"""Size in pixels to which the shorter side of a smaller image is enlarged in a window."""

LARGEST = 4096
"""Maximum size of a side after enlargement, in pixels."""

VIDEO_SMALLEST = 256
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


def to_window(episode: RecordedEpisode, window: Window, screening: Screening) -> str | None:
    """Play back an episode in a window at normal speed. Return how it differs from the record; None if it
    does not.

    Raises InputError if the environment cannot render images, and WindowClosedError if the user closes the
    window.
    """
    env = screening.environment(episode)
    return replayed(episode, env, lambda _: window.show(env.picture(), env.frames_per_second))


class WindowClosedError(Exception):
    """Raised when the user closes the window, or presses Escape or q."""


class Window:
    """A window that shows images. Raises InputError if there is no display."""

    def __init__(self) -> None:
        displays, instead = ("DISPLAY", "WAYLAND_DISPLAY"), "Leave it out to write videos"
        if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in displays):
            why = "it needs a display, but neither DISPLAY nor WAYLAND_DISPLAY is set"
            raise InputError.usage("render=human", why, instead)
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            why, fix = f"it needs pygame ({error})", 'Type pip install "gymnasium[classic-control]"'
            raise InputError.about("render=human", why, fix, code="not-installed") from error
        try:
            pygame.display.init()
        except pygame.error as error:
            why = f"it needs a display: {error}"
            raise InputError.usage("render=human", why, instead) from error
        self._pygame: Any = pygame
        self._screen: Any = None
        self._due = 0.0

    def show(self, picture: NDArray[np.uint8], frames_per_second: float) -> None:
        """Show an image, and wait until the next image is due. Raises WindowClosedError.

        picture: RGB, [height, width, 3].
        """
        pygame = self._pygame
        height, width = picture.shape[:2]
        if self._screen is None or pygame.display.get_surface() is not self._screen:
            # An environment that draws with pygame shuts pygame down when it is closed.
            pygame.display.init()
            zoom = max(1, min(round(SMALLEST / max(min(height, width), 1)), LARGEST // max(height, width)))
            self._screen = pygame.display.set_mode((width * zoom, height * zoom))
            pygame.display.set_caption("labrl")
        image = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
        self._screen.blit(pygame.transform.scale(image, self._screen.get_size()), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            leaving = event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
            if event.type == pygame.QUIT or leaving:
                raise WindowClosedError
        time.sleep(max(self._due - time.perf_counter(), 0.0))
        self._due = time.perf_counter() + 1 / frames_per_second

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()


def make_videos(run: Run) -> None:
    """Make the videos of a run that has ended, unless they exist or were not requested.

    If a trial is killed while it makes its videos, the next report or resume makes them.
    """
    info = run.read_info()
    if info.get("videos_due"):
        doing("making videos of the best and the last episode")
        prepare(_config_dir(run))
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
                to_video(_recorded(run, source), target, screening, LONGEST)
            except Exception as error:  # A user's environment may fail in any way.
                known = isinstance(error, LabrlError | OSError)
                say(f"no videos: {'' if known else f'{type(error).__name__}: '}{error}")
                if isinstance(error, OSError):
                    run.errors.failed(target, error)
                break
            written.append(target)
    return written


def replay(request: ReplayRequest) -> int:
    """Play back a recorded episode as a video or in a window, and print whether it equals the record.

    If the episode cannot be shown, prints a line with the reason and still checks the episode. Returns the
    exit code: 1 if the episode differs. Raises InputError if there is no such run or episode.
    """
    window = Window() if request.render == "human" else None
    run = find_run(request.which, [], "replay")
    prepare(_config_dir(run))
    session = _session(run, request)
    name = f"{request.episode}.npz"
    episode = _recorded(run, session.episodes / name)
    say(
        f"Episode {request.episode} of session {session.index}, {episode.source} at frame {episode.frame:,}: "
        f"return {episode.episode_return:g} in {episode.length:,} steps, seed {episode.seed}"
    )
    target = session.videos / f"{request.episode}.mp4"
    try:
        with Screening() as screening:
            if window is not None:
                difference = to_window(episode, window, screening)
            else:
                difference = to_video(episode, target, screening)
                say(f"video: {os.path.relpath(target)}")
    except WindowClosedError:
        return DONE
    except OSError as error:
        raise InputError.usage(target, f"it cannot be written ({error.strerror or error})") from error
    except LabrlError as error:
        say(f"no {'video' if window is None else 'images'}: {error}")
        difference = check(episode)
    finally:
        if window is not None:
            window.close()
    if difference is not None:
        say(f"the episode differs from the record: {difference} (another version of the environment?)")
        return FAILED
    say("identical to the record: return, length and last observation are equal")
    return DONE


def _recorded(run: Run, source: Path) -> RecordedEpisode:
    """Read a recorded episode. Raises InputError if someone else wrote it and it names code that is not part
    of labrl."""
    episode = read_episode(source)
    check_recorded(run, {"env": episode.env})
    return episode


def _config_dir(run: Run) -> str | None:
    """Return the folder of the user's modules, if the run has one that still exists."""
    folder = run.config_dir
    return folder if folder is not None and Path(folder).is_dir() else None


def _session(run: Run, request: ReplayRequest) -> RunSession:
    """Return the session that recorded the requested episode. Raises InputError, which lists the available
    episodes, if no session did."""
    wanted = run.sessions if request.session is None else [run.choose_session(request.session)]
    for session in wanted:
        if (session.episodes / f"{request.episode}.npz").exists():
            return session
    names = list(dict.fromkeys(name for session in wanted for name in recorded_names(session.episodes)))
    if not names:
        fix = "A run records its best and its latest episode when it evaluates, every meta.eval_frequency "
        fix += "frames, unless meta.record_episodes=none"
        raise InputError.not_found(run.path, "it has no recorded episode", fix)
    more = "" if any(name.isdigit() for name in names) else "; meta.record_episodes=each records more"
    why = f"the recorded episodes of {run.path} are {', '.join(names)}{more}"
    raise InputError.not_found(f"episode={request.episode}", why)


# --- videos that every browser can play: H.264 in MP4 files ---


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
                zoom = min(round(VIDEO_SMALLEST / max(min(height, width), 1)), LARGEST // max(height, width))
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
