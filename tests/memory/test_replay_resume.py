"""Tests of resuming a replay buffer: exact even if its files were written to after the checkpoint."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_cases import NUMBER, STACK, VECTOR, World, assert_same, load, prioritized, saved, uniform

from labrl.errors import LabrlError
from labrl.memory import Transitions
from labrl.memory.replay import Replay
from labrl.memory.workspace import Workspace
from labrl.run.tree import pack
from labrl.step import Step

Steps = list[tuple[np.ndarray, np.ndarray, Step]]


def run(memory: Replay, steps: Steps) -> list[Transitions]:
    """Add the steps, sample after each, and update the priorities; return the samples."""
    samples = []
    for number, (observation, action, step) in enumerate(steps):
        memory.add(observation, action, step)
        if len(memory):
            samples.append(memory.sample(7, number))
            memory.update_priorities(samples[-1].index, np.abs(samples[-1].reward))
    return samples


def copied(steps: Steps) -> Steps:
    """Return the same steps in new arrays, as environments provide them after a resume."""
    copies = [(o.copy(), a.copy(), Step(*(np.copy(getattr(s, n)) for n in FIELDS))) for o, a, s in steps]
    for (_, _, step), (observation, _, _) in pairwise(copies):
        step.observation = observation
    return copies


FIELDS = ("observation", "next_observation", "reward", "terminated", "truncated", "episode_over")


@pytest.mark.parametrize("build", [uniform, prioritized])
@pytest.mark.parametrize("storage", ["ram", "mmap"])
@pytest.mark.parametrize("space", [VECTOR, STACK, NUMBER])
@pytest.mark.parametrize("before", [0, 3, 20, 75])
def test_loaded_buffer_gives_the_same_samples(
    build: Any, storage: str, space: gym.Space, before: int, tmp_path: Path
) -> None:
    kept = 30  # vector steps that may be added after the checkpoint
    options = {"capacity": 60, "folder": tmp_path if storage == "mmap" else None, "frames_kept": 3 * kept}
    steps = list(World(space, 3, seed=before, ends=0.03).steps(before + kept + 40))
    first = build(space, 3, 3, **options)
    run(first, steps[:before])
    state = saved(first)
    future = run(first, steps[before : before + kept])
    # As after a kill, nothing is closed, and the files contain steps that followed the checkpoint.
    second = build(space, 3, 3, seed=99, **{**options, "frames_kept": 200})
    load(second, state)
    resumed = run(second, copied(steps[before:]))
    assert len(future) > 0
    for one, other in zip(future, resumed[: len(future)], strict=True):
        assert_same(one, other)
    if storage == "ram" or before == 0:
        third = build(space, 3, 3, seed=98, **options)
        load(third, state)
        for one, other in zip(resumed, run(third, steps[before:]), strict=True):
            assert_same(one, other)


def test_checkpoint_of_buffer_files_is_exact_or_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Interrupt and go back to earlier checkpoints repeatedly, with episodes of any length."""
    accepted: list[int] = []

    @settings(max_examples=20, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        draw, folder = data.draw, tmp_path_factory.mktemp("replay")
        steps_in_all, every = 100, 10
        space, seed = draw(st.sampled_from([VECTOR, STACK])), draw(st.integers(0, 10_000))
        ends = draw(st.sampled_from([0.0, 0.05, 0.5]))
        options = {"capacity": 40, "folder": folder, "frames_kept": 2 * draw(st.integers(0, 10))}
        steps = list(World(space, 2, seed, ends, jumps=draw(st.sampled_from([0, 0.2]))).steps(steps_in_all))
        alone = uniform(space, 2, 2, capacity=40)
        expected, states = [], {}
        memory = uniform(space, 2, 2, **options)
        for t in range(steps_in_all):
            if t % every == every - 1:
                states[t] = saved(memory)
            expected.append(run(alone, steps[t : t + 1]))
            for one, other in zip(expected[-1], run(memory, steps[t : t + 1]), strict=True):
                assert_same(one, other)
        for _ in range(5):
            start = draw(st.sampled_from(sorted(states)))
            memory = uniform(space, 2, 2, **options)
            try:
                load(memory, states[start])
            except LabrlError as error:
                assert "agent.memory" in str(error)  # noqa: PT017 - a refusal is allowed too
                continue
            accepted.append(start)
            for t in range(start, min(start + draw(st.integers(1, 30)), steps_in_all)):
                for one, other in zip(expected[t], run(memory, steps[t : t + 1]), strict=True):
                    assert_same(one, other)

    check()
    assert accepted, "all checkpoints were refused"


def test_checkpoint_of_a_memory_mapped_buffer_is_small(tmp_path: Path) -> None:
    space = gym.spaces.Box(0, 255, (4, 40, 40), np.uint8)
    memory = uniform(space, 2, capacity=1000, folder=tmp_path)
    run(memory, list(World(space, 2, 0).steps(20)))
    arrays = [value for value in memory.state_dict()["transitions"].values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) < 1000
    assert memory.state_dict()["transitions"]["content"] is None


def test_state_dict_in_ram_is_a_view_of_the_filled_rows() -> None:
    """Regression test: a copy needed the RAM of a second buffer at each checkpoint."""
    memory = prioritized(STACK, 2, capacity=30)
    run(memory, list(World(STACK, 2, 0).steps(10)))
    content = memory.state_dict()["transitions"]["content"]
    assert all(np.shares_memory(rows, memory.rows) for rows in content["rows"])
    assert [len(rows) for rows in content["rows"]] == [10 * memory.rows.itemsize] * 2
    for array in (*content["rows"], *content["frames"]):
        (tensor,) = (one for one in pack({"": array})[""].values() if isinstance(one, torch.Tensor))
        assert tensor.data_ptr() == array.ctypes.data, "packing for the checkpoint copied the array"


def test_state_dict_has_no_arbitrary_bytes_between_fields() -> None:
    """Regression test: padding between fields was uninitialized, so checkpoints of equal runs differed."""
    memory = uniform(VECTOR, 2, capacity=400)
    run(memory, list(World(VECTOR, 2, 0).steps(50)))
    rows = memory.rows
    filled = rows.view(np.uint8)[:, : 50 * rows.itemsize]
    used = sum(kind.itemsize for kind, *_ in rows.dtype.fields.values())
    assert used < rows.itemsize, "the rows have no padding, so this test checks nothing"
    for _ in range(5):
        dirty = [np.full(filled.nbytes, 255, np.uint8) for _ in range(20)]
        del dirty  # the next arrays probably reuse this memory
        for rows, expected in zip(memory.state_dict()["transitions"]["content"]["rows"], filled, strict=True):
            np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("build", [uniform, prioritized])
def test_storage_spare_room_and_earlier_files_do_not_change_the_samples(build: Any, tmp_path: Path) -> None:
    steps = list(World(STACK, 2, 0, ends=0.02).steps(100))
    expected = run(build(STACK, 2, capacity=40), steps)
    for frames_kept in (0, 20, 20, 57):  # at the second 20, there are files without a checkpoint
        memory = build(STACK, 2, capacity=40, folder=tmp_path / str(frames_kept), frames_kept=frames_kept)
        for one, other in zip(expected, run(memory, steps), strict=True):
            assert_same(one, other)


@pytest.mark.parametrize(("ends", "jumps"), [(0.0, 0.0), (0.3, 0.2), (1.0, 1.0)])
def test_checkpoint_is_exact_until_the_spare_room_is_used_up(
    ends: float, jumps: float, tmp_path: Path
) -> None:
    """Vary how many images observations share and how short episodes are."""
    options = {"capacity": 40, "folder": tmp_path}
    workspace = Workspace(tmp_path, frames_kept=40)
    first = uniform(STACK, 2, 2, workspace=workspace, **options)
    steps = list(World(STACK, 2, 1, ends=ends, jumps=jumps).steps(60))
    run(first, steps[:30])
    state = saved(first)
    workspace.mark()
    future, end = [], 30
    while workspace.spent <= 1 and end < 50:
        future += run(first, steps[end : end + 1])
        end += 1
    assert end >= (50 if ends == jumps == 0 else 36)
    second = uniform(STACK, 2, 2, frames_kept=40, **options)
    load(second, state)
    for one, other in zip(future, run(second, steps[30:end]), strict=True):
        assert_same(one, other)


def test_checkpoint_with_overwritten_images_is_always_refused(tmp_path: Path) -> None:
    """Store one-step episodes, which need four images each, so that the spare room is soon used up."""
    options = {"capacity": 40, "folder": tmp_path, "frames_kept": 20}
    steps = list(World(STACK, 2, 0, ends=1, jumps=1).steps(39))
    memory, states = uniform(STACK, 2, 2, **options), {}
    for t, step in enumerate(steps):
        if t in (30, 34):
            states[t] = saved(memory)
        run(memory, [step])
    with pytest.raises(LabrlError, match=str(tmp_path)):
        load(uniform(STACK, 2, 2, **options), states[30])
    # Going back to a newer checkpoint does not restore the images of the older one.
    newer = uniform(STACK, 2, 2, **options)
    load(newer, states[34])
    run(newer, steps[34:35])
    with pytest.raises(LabrlError, match=str(tmp_path)):
        load(uniform(STACK, 2, 2, **options), states[30])
