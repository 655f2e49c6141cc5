"""Tests of invalid replay buffers: wrong settings, too little room, and unsuitable files are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from disk_limit import file_size_limit
from refusals import damaged, refused
from replay_cases import STACK, VECTOR, World, everything, fill, load, prioritized, saved, uniform

from labrl.errors import LabrlError
from labrl.memory import workspace
from labrl.memory.replay import Replay
from labrl.memory.workspace import memory_available

ATARI = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


def add(memory: Replay, steps: int, seed: int = 0, space: gym.Space = STACK) -> World:
    """Add vector steps of two random environments to the buffer."""
    world = World(space, 2, seed)
    fill(world, steps, memory)
    return world


def test_capacity_larger_than_the_ram_is_refused_also_if_sessions_share_it() -> None:
    override = "agent.memory.capacity=10000000000"
    with refused("resources", "agent.memory.capacity", override, "75,290 GB", "agent.memory.storage=mmap"):
        uniform(ATARI, 8, capacity=10**10)
    one, shared = memory_available(), memory_available(sharers=1000)
    assert one is not None
    assert shared is not None
    assert shared < one
    with refused("resources", "agent.memory.capacity", "1000 sessions"):
        uniform(ATARI, 8, capacity=one // 84 // 84 // 2, sharers=1000)


def test_proposed_capacity_fits_into_the_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "memory_available", lambda sharers: 100_000_000)
    with refused("resources", "agent.memory.capacity", "0.1 GB", "agent.memory.capacity=13000"):
        uniform(ATARI, 8, capacity=10**6)
    uniform(ATARI, 8, capacity=13_000)


def test_memory_limit_of_a_container_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_CGROUP", tmp_path)
    free = memory_available()
    assert free is not None
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 100000\n")
    assert memory_available() == 630_000  # file cache counts as free, and a tenth is left free
    assert memory_available(sharers=4) == 225_000
    (tmp_path / "memory.max").write_text("max\n")
    assert (memory_available() or 0) > 1_000_000


def test_capacity_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with refused("resources", "agent.memory.capacity", str(tmp_path / "replay")):
        uniform(ATARI, 8, capacity=10**10, folder=tmp_path / "replay")
    assert list((tmp_path / "replay").iterdir()) == []


def test_no_files_are_left_when_they_cannot_be_made(tmp_path: Path) -> None:
    with (
        file_size_limit(100_000),
        refused("resources", "agent.memory.capacity", "agent.memory.capacity=1000"),
    ):
        uniform(ATARI, 8, capacity=1000, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def taken(folder: Path) -> int:
    """Return the bytes of disk that the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.parametrize("space", [STACK, VECTOR], ids=["images", "vectors"])
def test_disk_is_allocated_in_steps_before_it_is_written(space: Any, tmp_path: Path) -> None:
    capacity = 20_000 if space is STACK else 200_000
    memory = uniform(space, 2, capacity=capacity, folder=tmp_path)
    assert taken(tmp_path) < memory.num_bytes / 10
    frames = memory.num_bytes * 0.9  # most of all bytes
    world = World(space, 2, 0)
    for steps in (10, capacity // 8):
        fill(world, steps, memory)
        len(memory)  # writes the steps that wait
        share = 2 * memory.steps / capacity
        assert share * frames / 2 <= taken(tmp_path) <= (share + 0.2) * memory.num_bytes


def test_full_disk_while_the_buffer_grows_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = uniform(STACK, 2, capacity=4000, folder=tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LabrlError) as error:
        add(memory, 1000)
    assert error.value.code == "resources"
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("name", ["frames", "transitions", "written"])
def test_missing_file_is_reported_on_resume(name: str, tmp_path: Path) -> None:
    memory = uniform(STACK, 2, capacity=40, folder=tmp_path)
    add(memory, 10)
    state = saved(memory)
    (tmp_path / f"{name}.npy").unlink()
    with damaged(tmp_path if name == "written" else tmp_path / f"{name}.npy"):
        load(uniform(STACK, 2, capacity=40, folder=tmp_path), state)


def test_truncated_or_foreign_file_and_files_of_another_capacity_are_refused_and_kept(tmp_path: Path) -> None:
    add(uniform(STACK, 2, capacity=40, folder=tmp_path), 10)
    frames = tmp_path / "frames.npy"
    content = frames.read_bytes()
    for bad, capacity in ((content[:-7], 40), (b"not an array", 40), (content, 80)):
        frames.write_bytes(bad)
        with damaged(frames) as error:
            uniform(STACK, 2, capacity=capacity, folder=tmp_path)
        assert capacity == 40 or "agent.memory.capacity" in str(error.value)
        assert frames.read_bytes() == bad


def test_resume_with_another_capacity_or_storage_is_refused(tmp_path: Path) -> None:
    one, other = uniform(STACK, 2, capacity=40), uniform(STACK, 2, capacity=40, folder=tmp_path)
    for memory in (one, other):
        add(memory, 10)
    with refused("changed-past", "agent.memory.capacity", "2 environments", "20 transitions"):
        load(uniform(STACK, 2, capacity=50), saved(one))
    for old, new, storage in ((one, other, "ram"), (other, one, "mmap")):
        with refused("changed-past", "agent.memory.storage", f"agent.memory.storage={storage}"):
            load(new, saved(old))


def test_observation_that_is_not_the_previous_next_one_is_refused() -> None:
    memory = uniform(STACK, 2, capacity=40)
    world = add(memory, 3)
    _, action, step = world.step()
    with pytest.raises(ValueError, match="observation"):
        memory.add(world.look(), action, step)


def test_observations_of_another_dtype_than_the_space_are_refused() -> None:
    memory = uniform(STACK, 2, capacity=40)
    observation, action, step = World(STACK, 2, 0).step()
    with refused("unsupported", "transforms", "float32", "uint8"):
        memory.add(observation.astype(np.float32), action, step)


@pytest.mark.parametrize("build", [uniform, prioritized])
def test_nothing_is_sampled_before_the_first_n_step_window_is_complete(build: Any) -> None:
    memory = build(VECTOR, 2, 3, capacity=40, newest_share=1)
    world = World(VECTOR, 2, 0, ends=0, lives=0)
    fill(world, 2, memory)
    assert len(memory) == 0
    with pytest.raises(ValueError, match="sample"):
        memory.sample(4, 0)
    memory.add(*world.step())
    assert len(memory) == len(everything(memory).index) == 2
