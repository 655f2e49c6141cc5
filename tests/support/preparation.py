"""Prepare a process that runs tests: what it remembers, and the fixtures of all tests."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from compositions import remember

from labrl.trial import reporting
from labrl.trial import videos as video_files

remember()

SELDOM = (20_000, 10, 20)
"""Thresholds of rare garbage collections: after a session has unfrozen all objects, one takes 0.25 s."""


_make_report, _render_videos = reporting.make_report, video_files.render_videos


def _make_empty_report(folder: Path, env: object = None, aloud: bool = False) -> None:
    with contextlib.suppress(OSError):
        (folder / "report.html").touch()


@pytest.fixture(autouse=True, scope="session")
def _no_reports_and_videos() -> Iterator[None]:
    """Skip the videos and the content of reports of runs in the test process, which would take minutes in
    total."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "make_report", _make_empty_report)
        patch.setattr(video_files, "render_videos", lambda run, sessions: [])
        yield


_number = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new folder. Its number is unique, because pytest would search all folders for a free one."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_number)}", numbered=False)


@pytest.fixture(autouse=True)
def _as_in_a_new_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove the log handlers of earlier tests, and enable reports and videos for tests marked accordingly.

    The marks are `report` and `uses_videos`. Hydra's handlers remain attached to the logger after a run and
    would write to the closed output of an earlier test.
    """
    gc.set_threshold(*SELDOM)
    for logger in (logging.root, logging.getLogger("labrl")):
        logger.handlers = [
            handler for handler in logger.handlers if type(handler) is not logging.StreamHandler
        ]
    report, videos = map(request.node.get_closest_marker, ("report", "uses_videos"))
    if not report and not videos:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if report:
            patch.setattr(reporting, "make_report", _make_report)
        if videos:
            patch.setattr(video_files, "render_videos", _render_videos)
        yield


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `tmp_path` the working directory, in which a test finds its runs."""
    monkeypatch.chdir(tmp_path)
