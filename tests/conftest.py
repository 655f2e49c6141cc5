"""Settings of all tests: no Weights & Biases, and no videos or reports unless a test asks for them.

Merged Hydra configurations are cached (see `compositions`), and imported objects are excluded from garbage
collection. `preparation` prepares the processes that run tests, and `tiers` keeps the tests of `make test`
small. The process that only distributes the tests does not import PyTorch.
"""

from __future__ import annotations

import gc
import os

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
