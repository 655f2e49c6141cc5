"""Tests of restoring every part from a checkpoint: an interrupted session equals an uninterrupted one.

Agents, their parts and transforms are found in the configurations, so a part that is added later and does not
save its state fails here without further work.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import yaml
from exact_cases import ALIKE, VARIANTS, small
from restoring import STOP, changed_futures, config_of

from labrl.config import config_folder
from labrl.config.compose import compose
from labrl.errors import InputError
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
    defaults = yaml.safe_load((CONFIGS / "agent" / f"{agent}.yaml").read_text()).get("defaults", [])
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


TRANSFORMS = {f"{path.parent.name}={path.stem}" for path in (CONFIGS / "transforms").glob("*/*.yaml")} - {
    "observation=none",
    "reward=none",
}
VALUES = {"reward=scale": ["transforms.tested.scale=0.5"], "reward=shift": ["transforms.tested.shift=0.5"]}
"""Values without a default."""


@pytest.mark.parametrize("option", sorted(TRANSFORMS))
def test_every_transform_resumes_exactly(option: str, tmp_path: Path) -> None:
    group, _, name = option.partition("=")
    transform = [f"+transforms/{group}@transforms.tested={name}", *VALUES.get(option, [])]
    assert changed_futures(tmp_path, [*small("ppo", "cartpole"), *SHORT, *transform]) == []


@pytest.mark.parametrize("frame", [92, 128, 184, 204, 224])
def test_interruption_at_a_frame_with_rows_resumes_exactly(frame: int, tmp_path: Path) -> None:
    overrides = [*small("ppo", "cartpole"), *SHORT, "meta.tensorboard=true"]
    assert changed_futures(tmp_path, overrides, frame) == []
