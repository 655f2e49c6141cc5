"""Settings of all tests: no Weights & Biases, and no videos or reports unless a test asks for them.

Slow work that is the same for every run is done at most once per test run: merged Hydra configurations are
cached (see `compositions`), so is the state of the repository (see `surroundings`), and imported objects are
excluded from garbage collection. `preparation` prepares the processes that run tests. The process that only
distributes the tests to others does not import PyTorch.
"""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack

import pytest
from hypothesis import settings
from shared_folder import share_compositions

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
_shared = ExitStack()
_shared.enter_context(share_compositions())


def pytest_configure(config: pytest.Config) -> None:
    """Prepare this process if it runs tests itself."""
    if config.getoption("dist", "no") == "no":
        # PyTorch reads the number of threads when it is imported, so this import follows the settings above.
        config.pluginmanager.import_plugin("preparation")


def pytest_unconfigure() -> None:
    """Remove the files that test processes share, and make pytest's five garbage collections cheap."""
    _shared.close()
    gc.collect()
    gc.freeze()


LONGEST = (
    *("test_docs", "test_config_compose", "test_fork", "test_experiment", "test_graphs"),
    *("test_known_optimum", "test_standard_error", "test_restoring", "test_export", "test_clusters"),
    *("test_resume_refusals", "test_start_from", "test_mujoco", "test_search_input"),
    *("test_wrong_command_lines", "test_diagnosis", "test_packaging", "test_info", "test_resume"),
    *("test_secrets", "test_start", "test_subclasses", "test_masks", "test_clean"),
    *("test_reporting", "test_env_gymnasium", "test_search_processes", "test_stages"),
    *("test_wandb_runs", "test_shared_weights", "test_replay_command", "test_script"),
    *("test_env_atari", "test_trial_processes", "test_dqn", "test_search_run", "test_wandb"),
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
