"""Tests of random streams, which depend only on the seed and their name, and of derived seeds."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from labrl.run.checkpoint import CheckpointStore
from labrl.seeding import MAX_SEED, Streams, derived_seed, draw_seed, episode_seed, session_seed

SEEDS = st.integers(0, MAX_SEED)
NAMES = st.lists(
    st.sampled_from(["act", "minibatch", "init", "evaluation", "noise"]), unique=True, min_size=2
)


@given(SEEDS, NAMES, st.randoms())
def test_streams_do_not_depend_on_the_order_of_creation(seed: int, names: list[str], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(names)
    random.shuffle(shuffled)
    one, other = Streams(seed), Streams(seed)
    drawn = {name: (one.numpy(name).random(3).tolist(), one.torch(name).initial_seed()) for name in names}
    again = {
        name: (other.numpy(name).random(3).tolist(), other.torch(name).initial_seed()) for name in shuffled
    }
    assert drawn == again
    assert len({tuple(numbers) for numbers, _ in drawn.values()}) == len(names), "two streams are equal"


def test_drawing_from_one_stream_does_not_change_the_others() -> None:
    quiet, busy = Streams(3), Streams(3)
    busy.numpy("act").random(1000)
    busy.torch("act").manual_seed(0)
    assert quiet.numpy("init").random() == busy.numpy("init").random()
    draw = [torch.rand(2, generator=streams.torch("init")).tolist() for streams in (quiet, busy)]
    assert draw[0] == draw[1]


def test_streams_restored_from_a_checkpoint_continue_in_place(tmp_path) -> None:  # type: ignore[no-untyped-def]
    store = CheckpointStore(tmp_path, keep_last=1)
    first = Streams(11)
    first.numpy("a").standard_normal(7)
    torch.rand(5, generator=first.torch("b"))
    store.save(1, first.state_dict())
    future = first.numpy("a").random(4).tolist(), torch.rand(4, generator=first.torch("b")).tolist()

    second = Streams(99)
    held = second.numpy("a"), second.torch("b")  # as a part of the agent does before the checkpoint is loaded
    checkpoint = store.latest()
    assert checkpoint is not None
    second.load_state_dict(checkpoint.state)
    assert (held[0].random(4).tolist(), torch.rand(4, generator=held[1]).tolist()) == future
    assert second.numpy("new").random() == Streams(11).numpy("new").random(), "the seed was not restored"


@given(SEEDS, st.integers(0, 63), st.integers(0, 10**6))
def test_derived_seeds_are_accepted_by_every_backend(seed: int, env: int, episode: int) -> None:
    seeds = (episode_seed(seed, env, episode), session_seed(seed, env), derived_seed(seed, "x", env))
    for derived in (*seeds, draw_seed()):
        assert 0 <= derived < 2**31
        np.random.default_rng(derived)


def test_derived_seed_depends_on_each_part_of_its_path_and_their_order() -> None:
    seeds = [episode_seed(0, env, episode) for env in range(16) for episode in range(64)]
    seeds += [session_seed(0, index) for index in range(16)]
    seeds += [derived_seed(*path) for path in ((1, 2), (2, 1), (1, "a"), (1, "b"))]
    assert len({*seeds}) == len(seeds)
    assert derived_seed(5, "evaluation", 3) == derived_seed(5, "evaluation", 3)
