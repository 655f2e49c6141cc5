"""Videos that every browser plays: H.264 in MP4 files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = 256
"""Pixels that the shorter side of a small image is enlarged to."""

LARGEST = 4096
"""Largest side after enlargement, in pixels."""


class EncoderError(Exception):
    """Raised if the encoder does not accept the images, for instance because they are 100,000 pixels wide."""


class Mp4:
    """An MP4 file that is written image by image."""

    def __init__(self, container: Any, frames_per_second: float) -> None:
        self._container, self._rate = container, Fraction(frames_per_second).limit_denominator(1000)
        self._stream: Any = None
        self._zoom = 1

    def add(self, picture: NDArray[np.uint8]) -> None:
        """picture: RGB image, [height, width, 3]. An image of another size than the first is scaled to that
        size.

        Raises EncoderError, or OSError if the file cannot be written.
        """
        import av

        with _refusals():
            if self._stream is None:
                self._begin(*picture.shape[:2])
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
        """Write the images that the encoder still holds. Raises ValueError if there were none."""
        if self._stream is None:
            raise ValueError("a video needs at least one picture")
        with _refusals():
            self._container.mux(self._stream.encode(None))

    def _begin(self, height: int, width: int) -> None:
        import av

        self._zoom = max(1, min(round(SMALLEST / max(min(height, width), 1)), LARGEST // max(height, width)))
        encoder = "libx264" if "libx264" in av.codecs_available else "h264"
        options = {"crf": "23", "preset": "veryfast"} if encoder == "libx264" else {}
        stream = self._stream = self._container.add_stream(encoder, rate=self._rate, options=options)
        stream.height = (height * self._zoom + 1) // 2 * 2
        stream.width = (width * self._zoom + 1) // 2 * 2
        stream.pix_fmt = "yuv420p"
        # Two threads on one core (hyper-threads) take longer than one.
        stream.codec_context.thread_count = max((os.cpu_count() or 1) // 2, 1)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise EncoderError for whatever the encoder does not accept. Errors of the disk stay OSError."""
    import av

    try:
        yield
    except OSError:
        raise
    except (av.FFmpegError, ValueError) as error:
        raise EncoderError(str(error)) from error


@contextmanager
def write_mp4(path: Path, frames_per_second: float) -> Iterator[Mp4]:
    """Context manager: replace `path` by a video of the images that are added. After an error the old file
    stays.

    Raises ImportError if PyAV is missing, EncoderError, and OSError if the file cannot be written.
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
