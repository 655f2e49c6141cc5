"""Switch off for every test: Weights & Biases under the user's login, videos and reports.

What costs time in each run and is the same in all is done once, or not at all: what Hydra merges is
remembered (see `compositions`), so is the state of the repository, files are not forced onto the disk, and
the collector of garbage passes over what was imported.
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

from labrl.trial import reporting

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
    """Remove what the processes of this test run shared."""
    _shared.close()


LONGEST = (
    *("test_experiment", "test_start", "test_config_compose", "test_search_processes", "test_restoring"),
    *("test_docs", "test_export", "test_fork", "test_reduced_precision", "test_replay_actor_critic"),
    *("test_known_optimum", "test_dqn_chain", "test_env_emulators", "test_dqn_session", "test_masks"),
    *("test_enjoy", "test_closer_look", "test_stop", "test_clusters", "test_load", "test_torchrun"),
    *("test_trial_processes", "test_shared_weights", "test_action_spaces", "test_offline_agents"),
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


_make_report, _prepare = reporting.make_report, reporting.prepare


@pytest.fixture(autouse=True)
def _no_handlers_of_other_tests() -> None:
    """Hydra leaves its console with the logger; it would write into the closed output of an earlier test."""
    for logger in (logging.root, logging.getLogger("labrl")):
        logger.handlers = [
            handler for handler in logger.handlers if type(handler) is not logging.StreamHandler
        ]


@pytest.fixture(autouse=True)
def _no_videos(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials end without videos, a second each, but in tests that are about them (`uses_videos`)."""
    if "uses_videos" not in request.keywords:
        monkeypatch.setattr("labrl.trial.playback.render_videos", lambda run, sessions: [])


@pytest.fixture(autouse=True, scope="session")
def _no_reports() -> Iterator[None]:
    """Runs in a test's own process make no report: hundreds of them would take minutes of plotting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "make_report", lambda folder, prepared=None: None)
        patch.setattr(reporting, "prepare", lambda folder: None)
        yield


@pytest.fixture(autouse=True)
def _reports_where_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`@pytest.mark.report` is for tests that want one."""
    if request.node.get_closest_marker("report"):
        monkeypatch.setattr(reporting, "make_report", _make_report)
        monkeypatch.setattr(reporting, "prepare", _prepare)
