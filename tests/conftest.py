"""Settings of all tests: no Weights & Biases, and no videos or reports unless a test asks for them.

Merged Hydra configurations are cached (see `compositions`), and imported objects are excluded from garbage
collection. `preparation` prepares the processes that run tests, and `tiers` keeps the tests of `make test`
small. The process that only distributes the tests does not import PyTorch.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
from hypothesis import settings

# Two PyTorch threads are five times slower when another test process competes for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "500")  # as in labrl.processes.startup.let_threads_sleep
os.environ["WANDB_MODE"] = "disabled"

# Examples have no deadline, because a busy machine may need a second for one. The same code is always tested
# with the same examples; `make exact` draws new ones (--hypothesis-profile=random).
settings.register_profile("labrl", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("labrl")

# Objects that are created while tests are collected are needed until the end: don't search them for garbage.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Prepare this process if it runs tests itself."""
    if config.getoption("dist", "no") == "no":
        # PyTorch reads the number of threads when it is imported, so this import follows the settings above.
        config.pluginmanager.import_plugin("preparation")
        config.pluginmanager.import_plugin("tiers")


def pytest_unconfigure() -> None:
    """Make pytest's five garbage collections cheap."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Exclude the hundred thousand imported objects from all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


TRAINING_TESTS = 200
"""Maximum number of tests of the first tier that train (see `tiers`)."""

_training_tests = 0


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add the number of tests that have trained in a process that has ended."""
    global _training_tests
    _training_tests += getattr(node, "workeroutput", {}).get("training_tests", 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of tests that have trained."""
    if _training_tests:
        terminalreporter.write_line(f"{_training_tests} tests train (at most {TRAINING_TESTS})")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if too many tests of the first tier train."""
    if _training_tests > TRAINING_TESTS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
