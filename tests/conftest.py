"""Settings of all tests: no Weights & Biases, and no videos or reports unless a test asks for them.

Slow work that is the same for every run is done at most once per test run: merged Hydra configurations are
cached (see `compositions`), so is the state of the repository (see `surroundings`), and imported objects are
excluded from garbage collection.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import share_nursery
from compositions import remember, share_compositions
from hypothesis import settings

# Two PyTorch threads are five times slower when another test process competes for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `labrl` does; see labrl.processes.let_threads_sleep
os.environ["WANDB_MODE"] = "disabled"

# PyTorch reads the number of threads when it is imported, so these imports follow the settings above.
from surroundings import remember_surroundings

from labrl.trial import playback, reporting

# Examples have no deadline, because a busy machine may need a second for one. The same code is always tested
# with the same examples; `make exact` draws new ones (--hypothesis-profile=random).
settings.register_profile("labrl", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("labrl")

# Objects that are created while tests are collected are needed until the end: don't search them for garbage.
gc.disable()
_shared = ExitStack()
_shared.enter_context(share_compositions())
remember()
remember_surroundings()
share_nursery()


def pytest_unconfigure() -> None:
    """Remove the files that test processes share, and make pytest's five garbage collections cheap."""
    _shared.close()
    gc.collect()
    gc.freeze()


LONGEST = (
    *("test_start", "test_restoring", "test_export", "test_experiment", "test_docs", "test_fork"),
    *("test_search_processes", "test_wandb_runs", "test_search_input", "test_start_from"),
    *("test_replay_command", "test_wandb", "test_known_optimum", "test_reduced_precision"),
    *("test_config_compose", "test_reporting", "test_report_browser", "test_trial_processes"),
    *("test_dqn_session", "test_enjoy", "test_place", "test_replay_actor_critic", "test_env_atari"),
    *("test_report", "test_clusters", "test_session", "test_steady_output", "test_plots"),
    *("test_closer_look", "test_masks", "test_script", "test_dqn_chain", "test_policy_kernels"),
    *("test_replay", "test_search_run", "test_packaging", "test_load", "test_resume", "test_config_errors"),
    "test_env_classic",
)
"""The slowest files. They run first, so that no test process is still busy with one after all others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests so that the slowest files run first; processes take whole files (`--dist loadfile`)."""
    place = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Exclude the hundred thousand imported objects from all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


SELDOM = (20_000, 10, 20)
"""Thresholds of rare garbage collections: after a session has unfrozen all objects, one takes 0.25 s."""


_make_report, _prepare, _render_videos = reporting.make_report, reporting.prepare, playback.render_videos


@pytest.fixture(autouse=True, scope="session")
def _no_reports_and_videos() -> Iterator[None]:
    """Skip the reports and videos of runs in the test process, which would take minutes in total."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "make_report", lambda folder, prepared=None: None)
        patch.setattr(reporting, "prepare", lambda folder: None)
        patch.setattr(playback, "render_videos", lambda run, sessions: [])
        yield


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
    report, videos = (mark in request.keywords for mark in ("report", "uses_videos"))
    if not report and not videos:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if report:
            patch.setattr(reporting, "make_report", _make_report)
            patch.setattr(reporting, "prepare", _prepare)
        if videos:
            patch.setattr(playback, "render_videos", _render_videos)
        yield


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `tmp_path` the working directory, in which a test finds its runs."""
    monkeypatch.chdir(tmp_path)
