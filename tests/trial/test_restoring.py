"""Tests of restoring every part from a checkpoint: an interrupted session equals an uninterrupted one.

Agents, their parts, transforms and callbacks are found in the package, so a part that is added later and does
not save its state fails here without further work.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from exact_cases import ALIKE, SMALL, VARIANTS, small
from restoring import (
    STOP,
    changed_futures,
    config_of,
    session_in,
)

import labrl.agents
import labrl.agents.transforms
import labrl.session.callbacks
from labrl.config import config_folder
from labrl.config.compose import compose
from labrl.errors import InputError
from labrl.session.callbacks import Callback
from labrl.trial.create import check

CONFIGS = config_folder()
AGENTS = sorted(path.stem for path in (CONFIGS / "agent").glob("*.yaml"))
OPTIONS = {
    f"agent/{path.parent.name}={path.stem}"
    for path in (CONFIGS / "agent").glob("*/*.yaml")
    if not path.stem.startswith("_")
}
SHORT = ["env.max_frame=224", "env.num_envs=4", "meta.log_frequency=64", "meta.eval_frequency=92"]
SHORT += ["meta.rigorous_eval=1", "env.max_episode_steps=40"]


def classes(package: ModuleType) -> Iterator[type]:
    """Return the classes that the modules of `package` define."""
    for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(one.name)
        for _, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == module.__name__:
                yield found


@pytest.mark.parametrize(
    "agent",
    [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in (*AGENTS, *VARIANTS)],
)
def test_every_agent_resumes_exactly(agent: str, tmp_path: Path) -> None:
    overrides = [*small(agent, "cartpole"), *SHORT]
    try:
        check(config_of(*overrides))
    except InputError:  # the agent supports continuous actions only
        overrides = [*small(agent, "pendulum"), *SHORT]
    assert changed_futures(tmp_path, overrides) == []


@pytest.mark.extended
@pytest.mark.parametrize(("agent", "storage"), [("ppo", None), ("dqn", None), ("rainbow", "ram")])
def test_agent_of_a_game_resumes_exactly(agent: str, storage: str | None, tmp_path: Path) -> None:
    more = [] if storage is None else [f"agent.memory.storage={storage}"]
    assert changed_futures(tmp_path, [*small(agent, "pong"), *more]) == []
    in_files = any(path.is_file() for path in (tmp_path / "run" / "session_0" / "replay").rglob("*"))
    assert in_files == (agent == "dqn")  # the buffer of a game is in files unless it is set to RAM


def default_options(agent: str) -> set[str]:
    """Return the options that the defaults list of an agent's YAML file selects."""
    defaults = yaml.safe_load((config_folder() / "agent" / f"{agent}.yaml").read_text()).get("defaults", [])
    parts = [part for one in defaults if isinstance(one, dict) for part in one.items()]
    return {f"agent/{group.removeprefix('override ')}={option}" for group, option in parts}


SOURCES = {"agent/offline=run", "agent/offline=minari"}
"""Options that need a run or a dataset, which are tested in test_offline.py."""


@pytest.mark.extended
@pytest.mark.parametrize("option", sorted(OPTIONS.difference(SOURCES, *map(default_options, AGENTS))))
def test_every_part_that_is_no_default_resumes_exactly(option: str, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, *fitting(option)) == []


NEEDED_OVERRIDES = {"agent/optimizer=torch": ["agent.optimizer.name=AdamW"]}
"""Overrides that an option needs in addition."""


@functools.cache
def parts(agent: str) -> set[str]:
    """Return the keys of an agent's configuration, which include those of its parts."""
    return set(map(str, compose([f"agent={agent}"]).agent))


def fitting(option: str) -> tuple[list[str], int]:
    """Return the overrides of a small run with an agent that accepts `option`, and where to interrupt it."""
    part = option.removeprefix("agent/").partition("=")[0]
    for agent in ("ppo", "recurrent_ppo", "dqn", *AGENTS):
        if part not in parts(agent):
            continue
        inputs = ["env.max_frame=64"]
        tasks = [("cartpole", SHORT, STOP), ("lamp", [*inputs, "+env.make.style=picture"], 50)]
        tasks += [("lamp", inputs, 50), ("bits", SHORT, STOP), ("pendulum", SHORT, STOP)]
        for task, budget, frame in tasks:
            try:
                needed = NEEDED_OVERRIDES.get(option, [])
                overrides = [*small(agent, task, narrow=False), *budget, option, *needed]
                check(config_of(*overrides))
                return overrides, frame
            except InputError:
                continue
    raise AssertionError(f"no agent accepts {option}")


def test_memory_mapped_replay_buffer_resumes_exactly(tmp_path: Path) -> None:
    overrides = [*small("rainbow", "cartpole"), *SHORT, "agent.memory.storage=mmap"]
    assert changed_futures(tmp_path, overrides) == []


def test_every_agent_class_has_a_tested_option() -> None:
    agents = {f"{found.__module__}.{found.__name__}" for found in classes(labrl.agents) if is_agent(found)}
    targets = {str(compose([f"agent={agent}"]).agent["_target_"]) for agent in AGENTS}
    assert agents == targets == set(SMALL) - set(AGENTS)


def is_agent(found: type) -> bool:
    return hasattr(found, "Config") and all(hasattr(found, name) for name in ("act", "observe", "learn"))


TRANSFORMS = {
    "observation=normalize": [],
    "reward=clip": [],
    "reward=normalize": [],
    "reward=scale": ["transforms.tested.scale=0.5"],
    "reward=shift": ["transforms.tested.shift=0.5"],
    "reward=sign": [],
}
"""Options of transforms, with the overrides that they need."""


def transformed(option: str) -> list[str]:
    """Return the overrides of a small run with a transform under the name `tested`."""
    group, _, name = option.partition("=")
    transform = [f"+transforms/{group}@transforms.tested={name}", *TRANSFORMS[option]]
    return [*small("ppo", "cartpole"), *SHORT, *transform]


def test_every_transform_has_a_tested_option() -> None:
    found = {kind for kind in classes(labrl.agents) if hasattr(kind, "Config") and hasattr(kind, "collect")}
    targets = {str(compose(transformed(option)).transforms.tested["_target_"]) for option in TRANSFORMS}
    assert targets == {f"{kind.__module__}.{kind.__name__}" for kind in found}


@pytest.mark.parametrize("option", TRANSFORMS)
def test_every_transform_resumes_exactly(option: str, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, transformed(option)) == []


def test_every_callback_is_part_of_the_tested_sessions(tmp_path: Path) -> None:
    """Find callbacks that the default configuration does not use, which need tests of their own."""
    overrides = [*small("ppo", "cartpole"), *SHORT, "meta.tensorboard=true"]
    session = session_in(tmp_path / "run", config_of(*overrides))
    session.close()
    used = {type(callback) for callback in session.callbacks}
    known = {found for found in classes(labrl.session.callbacks) if issubclass(found, Callback)}
    # Two have no state, and are tested in test_profile_and_crash.py and test_search_processes.py. The third
    # is not made for environments of labrl, and is tested in test_env_repeats.py.
    on_demand = {"Profile", "ReportToSearch", "CheckRepeats"}
    tested = {found.__name__ for found in used} | on_demand
    assert {found.__name__ for found in known} - {"Callback"} == tested


@pytest.mark.parametrize("frame", [92, 128, 184, 204, 224])
def test_interruption_at_a_frame_with_rows_resumes_exactly(frame: int, tmp_path: Path) -> None:
    overrides = [*small("ppo", "cartpole"), *SHORT, "meta.tensorboard=true"]
    assert changed_futures(tmp_path, overrides, frame) == []
