"""Switch off for every test: Weights & Biases under the user's login, videos and reports.

What costs time in each run and is the same in all is done once, or not at all: what Hydra merges is
remembered (see `compositions`), so is the state of the repository (see `surroundings`), and the collector of
garbage passes over what was imported.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from commands import share_nursery
from compositions import remember, share_compositions
from hypothesis import settings

# Two threads of torch collapse to a fifth of their speed where the other test process wants a core too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `labrl` does; see labrl.processes.let_threads_sleep
os.environ["WANDB_MODE"] = "disabled"

# torch reads the number of threads when it is imported
from surroundings import remember_surroundings

from labrl.trial import playback, reporting

# A busy machine may take a second over an example, and no promise is about that. The same code is tested
# with the same examples each time; `make exact` draws others (--hypothesis-profile=random).
settings.register_profile("labrl", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("labrl")

# What is imported and composed while tests are collected stays.
gc.disable()
_shared = ExitStack()
_shared.enter_context(share_compositions())
remember()
remember_surroundings()
share_nursery()


def pytest_unconfigure() -> None:
    """Remove what the processes of this test run shared, and collect once, where pytest would five times."""
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
"""Files that take longest. They come first, so that no test process is alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files come first. Processes take whole files, in this order (`--dist loadfile`)."""
    place = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Spare the collector of garbage a hundred thousand objects that were imported, each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


SELDOM = (20_000, 10, 20)
"""Thresholds of the collector of garbage. Sessions that end unfreeze all, which takes it a quarter second."""


_make_report, _prepare, _render_videos = reporting.make_report, reporting.prepare, playback.render_videos


@pytest.fixture(autouse=True, scope="session")
def _no_reports_and_videos() -> Iterator[None]:
    """Runs in a test's own process end without a report and videos, which would take minutes in all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "make_report", lambda folder, prepared=None: None)
        patch.setattr(reporting, "prepare", lambda folder: None)
        patch.setattr(playback, "render_videos", lambda run, sessions: [])
        yield


@pytest.fixture(autouse=True)
def _as_in_a_new_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `report` or `uses_videos` get these; no test has the console of an earlier one.

    Hydra leaves its console with the logger, which would write into the closed output of an earlier test.
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
